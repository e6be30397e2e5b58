"""The package as a whole: what a bare import loads, and which way imports point."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import clcnn

SOURCE = Path(clcnn.__file__).parent

# A room may import itself and the rooms before it.
ROOMS = [
    "_version",
    "errors",
    "types",
    "checks",
    "progress",
    "memory",
    "dynamics",
    "embeddings",
    "objective",
    "solvers",
    "states",
    "fitting",
    "gradients",
    "settings",
    "persistence",
    "detection",
    "export",
    "control",
    "hardening",
    "loading",
    "theory",
    "statistics",
    "corruptions",
    "attacks",
    "data",
    "models",
    "training",
    "benchmarks",
    "evaluation",
    "experiments",
    "report",
    "cli",
    "__main__",
]


def imported_rooms(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("clcnn"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {parts[1] for parts in names if parts[0] == "clcnn" and len(parts) > 1}
    return found


def files() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_upwards_only(path: Path) -> None:
    room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    assert room in ROOMS, f"{room} is a new room: give it its place in the order"
    later = {other for other in imported_rooms(path) if ROOMS.index(other) > ROOMS.index(room)}
    assert not later


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in run.stdout.split()}


def test_a_bare_import_loads_torch_numpy_and_safetensors_only() -> None:
    core = loaded_by("import torch, numpy, safetensors.torch")
    extra = loaded_by("import clcnn") - core - {"clcnn"} - set(sys.stdlib_module_names)
    assert not extra


def test_rooms_are_there_after_a_bare_import_and_loaded_on_first_use() -> None:
    code = (
        "import clcnn, sys\n"
        "rooms = ('theory', 'models', 'data', 'attacks', 'training')\n"
        "assert not any(f'clcnn.{room}' in sys.modules for room in rooms)\n"
        "for room in rooms: assert getattr(clcnn, room).__name__ == f'clcnn.{room}'\n"
        "assert set(rooms) <= set(dir(clcnn))\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = clcnn.nonsense


def test_every_public_name_exists_and_is_documented() -> None:
    for name in clcnn.__all__:
        value = getattr(clcnn, name)
        assert isinstance(value, str) or value.__doc__, name


def test_the_package_is_typed() -> None:
    assert (SOURCE / "py.typed").is_file()
