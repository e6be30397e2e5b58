"""What a result depends on, as one number: settings, tensors, and the code itself."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clcnn._version import __version__

_PACKAGE = Path(__file__).parent.parent

NETWORKS = ("models/densenet", "models/layers", "models/resnet", "models/weights")
ATTACK_ROOMS = ("attacks", *NETWORKS)
CORRUPTION_ROOMS = ("corruptions",)
FIT_ROOMS = ("checks", "control", "dynamics", "embeddings", "fitting", "states", *NETWORKS)
SHIPPED_ROOMS = (*FIT_ROOMS, "loading", "models/hardening", "persistence")
DEFENCE_ROOMS = (*FIT_ROOMS, "gradients", "objective", "settings", "solvers")
EVALUATION_FILES = ("centring", "defending", "measuring", "prefixes", "threats")


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def digest_tensors(*tensors: Tensor) -> str:
    """SHA-256 of dtypes, shapes and values."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        total.update(raw.numpy().data)
    return total.hexdigest()


def digest_file(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def versions(rooms: Sequence[str]) -> dict[str, str]:
    """What computes a result: clcnn, torch and the code of the rooms that take part in it."""
    names = [*rooms, *(f"evaluation/{name}" for name in EVALUATION_FILES)]
    return {
        "clcnn": __version__,
        "torch": torch.__version__,
        "code": digest([room_code(name) for name in sorted(names)]),
    }


@cache
def room_code(room: str) -> str:
    """SHA-256 of a room's code: any statement that changes counts, comments and docstrings not."""
    place = _PACKAGE / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    trees = [
        (
            str(path.relative_to(_PACKAGE)),
            ast.dump(_without_docstrings(ast.parse(path.read_text()))),
        )
        for path in files
    ]
    return digest(trees)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [line for line in node.body if not _is_text(line)] or [ast.Pass()]
    return tree


def _is_text(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )
