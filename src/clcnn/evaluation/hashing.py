"""What a result depends on, as one number: settings, tensors, and the code itself."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clcnn._version import __version__
from clcnn.persistence import fingerprint

_PACKAGE = Path(__file__).parent.parent

NETWORKS = ("models/densenet", "models/layers", "models/resnet", "models/weights")
ATTACK_ROOMS = ("attacks", *NETWORKS)
CORRUPTION_ROOMS = ("corruptions",)
FIT_ROOMS = ("checks", "control", "dynamics", "embeddings", "fitting", "states", *NETWORKS)
SHIPPED_ROOMS = (*FIT_ROOMS, "loading", "models/hardening", "persistence")
DEFENCE_ROOMS = (*FIT_ROOMS, "gradients", "objective", "settings", "solvers")
EVALUATION_FILES = ("centring", "defending", "measuring", "prefixes", "threats")

APART = ("attacks/subspace",)
"""Files that their own class alone goes through: they make no other result of their room old."""

_SHARED = ("embeddings", "solvers")
"""Rooms of which a defence goes through some files only."""

_ALWAYS = ("embeddings/base", "embeddings/rounded", "solvers/base")

_MODULE = frozenset(vars(nn.Module()))
"""Attributes that every module has, of which only hooks and buffers decide its answers."""

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


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


def through(rooms: Sequence[str], *classes: type) -> tuple[str, ...]:
    """``rooms``, of embeddings and solvers only the files that ``classes`` go through.

    These are their own files and what those import of the two rooms, step by step: a change of the
    auto-encoder makes no result of principal components old. A room stays whole where none of the
    classes is from it.
    """
    own = [cls.__module__.removeprefix("clcnn.").replace(".", "/") for cls in classes]
    starts = [name for name in own if name.startswith(tuple(f"{room}/" for room in _SHARED))]
    narrowed = {name.partition("/")[0] for name in starts}
    found = _reached((*starts, *_ALWAYS)) if starts else frozenset()
    names = [room for room in rooms if room not in narrowed]
    return (*names, *sorted(f for f in found if f.partition("/")[0] in narrowed & set(rooms)))


@cache
def _reached(starts: tuple[str, ...]) -> frozenset[str]:
    """Files of the shared rooms that the files called ``starts`` import, and these."""
    found: set[str] = set()
    left = list(starts)
    while left:
        name = left.pop()
        if name in found:
            continue
        found.add(name)
        for line in ast.walk(ast.parse((_PACKAGE / name).with_suffix(".py").read_text())):
            if not isinstance(line, ast.ImportFrom) or line.module is None:
                continue
            room, _, file = line.module.removeprefix("clcnn.").partition(".")
            if room in _SHARED and file:
                left.append(f"{room}/{file.replace('.', '/')}")
            elif room in _SHARED:  # names of the room itself: any of its files
                left += [f"{room}/{path.stem}" for path in (_PACKAGE / room).glob("*.py")]
    return frozenset(found)


def code_and_weights(module: nn.Module) -> str:
    """The hash of a module's weights and of what else decides its answers, as far as it shows.

    That is its structure, the source of its classes and hooks, its buffers, and its attributes:
    values, tensors, functions, and objects by what they hold in turn. What the code refers to
    elsewhere (a constant of a file, a closure) is not seen.
    """
    parts = [fingerprint(module), repr(module)]
    for name, part in module.named_modules():
        parts.append(_source(type(part)))
        parts += [f"{name}.{k} = {_told(b, ())}" for k, b in part.named_buffers(recurse=False)]
        held = {k: v for k, v in vars(part).items() if k not in _MODULE}
        held |= {k: list(vars(part)[k].values()) for k in _HOOKS}
        parts += [f"{name}.{key} = {_told(held[key], ())}" for key in sorted(held)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _told(value: object, within: tuple[int, ...]) -> str:
    """A value in words: the same for what is the same, with nothing of where it lies in memory."""
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, Path)):
        return repr(value)
    if isinstance(value, Tensor):
        return digest_tensors(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, nn.Module):
        return type(value).__qualname__  # a part of the network tells for itself
    if id(value) in within:
        return "itself"
    within = (*within, id(value))
    if isinstance(value, Mapping):
        items = [f"{_told(k, within)}: {_told(v, within)}" for k, v in value.items()]
        return f"{{{', '.join(items)}}}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_told(v, within) for v in value)}]"
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(_told(v, within) for v in value))}}}"
    if isinstance(value, (torch.dtype, torch.device)):
        return repr(value)
    if isinstance(value, partial):
        return f"{_told(value.func, within)} {_told([value.args, value.keywords], within)}"
    return f"{_source(value)} {_told(dict(getattr(value, '__dict__', {})), within)}"


def _source(thing: object) -> str:
    """The code of a class or function, or of an object's class; of torch's own the name."""
    known = thing if hasattr(thing, "__qualname__") else type(thing)
    name = f"{known.__module__}.{known.__qualname__}"
    if name.startswith("torch."):
        return name
    try:
        return f"{name}: {inspect.getsource(known)}"  # type: ignore[arg-type]
    except (OSError, TypeError):  # built in, or typed at a prompt
        return name


@cache
def room_code(room: str) -> str:
    """SHA-256 of a room's code: what changes no result does not count.

    That is comments, docstrings, and refusals: the words of an error, and ``if ...: raise`` of one
    as a whole, since a result that is stored passed them all. What is raised inside of a ``try``,
    or is no error but a signal, may be caught, and counts.
    """
    place = _PACKAGE / room
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    apart = {(_PACKAGE / name).with_suffix(".py") for name in APART if name != room}
    trees = [
        (
            str(path.relative_to(_PACKAGE)),
            ast.dump(_what_computes(ast.parse(path.read_text()))),
        )
        for path in files
        if path not in apart
    ]
    return digest(trees)


def _what_computes(tree: ast.Module) -> ast.Module:
    """The code without docstrings and refusals."""
    tried = {
        id(inner) for node in ast.walk(tree) if isinstance(node, ast.Try) for inner in _in(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise):
            node.exc, node.cause = _raised(node), None
        for name in ("body", "orelse", "finalbody"):
            lines = getattr(node, name, None)
            if isinstance(lines, list):
                kept = [
                    line
                    for line in lines
                    if not _is_text(line) and (id(line) in tried or not _only_refuses(line))
                ]
                empty: list[ast.stmt] = [ast.Pass()] if lines and name == "body" else []
                setattr(node, name, kept or empty)
    return tree


def _in(node: ast.Try) -> list[ast.AST]:
    """Everything inside of the body of a ``try``."""
    return [inner for line in node.body for inner in ast.walk(line)]


def _raised(node: ast.Raise) -> ast.expr | None:
    """What is raised, without its words."""
    return node.exc.func if isinstance(node.exc, ast.Call) else node.exc


def _is_text(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr)
        and isinstance(line.value, ast.Constant)
        and isinstance(line.value.value, str)
    )


def _only_refuses(line: ast.stmt) -> bool:
    """``if test: raise SomeError(...)``, the test assigning nothing."""
    return (
        isinstance(line, ast.If)
        and not line.orelse
        and all(isinstance(inner, ast.Raise) and _is_error(inner) for inner in line.body)
        and not any(isinstance(part, ast.NamedExpr) for part in ast.walk(line.test))
    )


def _is_error(line: ast.Raise) -> bool:
    raised = _raised(line)
    return isinstance(raised, ast.Name) and raised.id.endswith("Error")
