"""Exported programs on disk: written whole or not at all, what they are written inside them."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

from clcnn.errors import LoadError
from clcnn.export.checks import ExportError

Format: TypeAlias = Literal["torch", "onnx"]
SUFFIXES: dict[Format, str] = {"torch": ".pt2", "onnx": ".onnx"}
KEY = "clcnn"
"""The entry of an ONNX file's metadata that holds ours, as JSON."""
ENTRY = "clcnn.json"
"""The extra file inside a .pt2 file that holds ours."""


def choose_format(path: str | os.PathLike[str] | None, asked: Format | None) -> Format:
    """The format asked for, or the one that the path's suffix tells."""
    if asked is not None and asked not in SUFFIXES:
        raise ExportError(f"found format={asked!r}; expected 'torch' or 'onnx'.")
    if path is None:
        return asked or "torch"
    suffix = Path(path).suffix
    told: Format | None = next((f for f, end in SUFFIXES.items() if end == suffix), None)
    if asked is None and told is None:
        raise ExportError(
            f"found the path {os.fspath(path)!r}, whose suffix tells no format; expected .pt2 or "
            ".onnx, or format='torch' or 'onnx'."
        )
    if asked is not None and told is not None and asked != told:
        raise ExportError(
            f"found format={asked!r} for the path {os.fspath(path)!r}; expected the suffix "
            f"{SUFFIXES[asked]}. Leave `format` out, or change the path."
        )
    return asked or told or "torch"


def check_folder(path: str | os.PathLike[str] | None) -> None:
    """Find a missing folder before the work, not after it."""
    if path is not None and not Path(path).resolve().parent.is_dir():
        raise FileNotFoundError(
            f"the folder {str(Path(path).resolve().parent)!r} does not exist. Make it first, or "
            "choose another."
        )


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place if all goes well."""
    target = Path(path).resolve()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as folder:
        # A folder, as torch wants the suffix that the file will have in the end.
        partial = Path(folder) / target.name
        yield partial
        os.replace(partial, target)


def metadata(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `export` wrote into the file: cuts, shapes, solver, embeddings, batch, versions."""
    if not Path(path).is_file():
        raise LoadError(f"there is no file {os.fspath(path)!r}.")
    text = _from_archive(path) if zipfile.is_zipfile(path) else _from_onnx(path)
    if text is None:
        raise LoadError(
            f"{os.fspath(path)!r} says nothing of clcnn; expected a .pt2 or .onnx file written by "
            "robust.export(path)."
        )
    found: dict[str, Any] = json.loads(text)
    return found


def _from_archive(path: str | os.PathLike[str]) -> str | None:
    with zipfile.ZipFile(path) as archive:
        entries = [name for name in archive.namelist() if name.split("/")[-1] == ENTRY]
        return archive.read(entries[0]).decode() if entries else None


def _from_onnx(path: str | os.PathLike[str]) -> str | None:
    onnx = require("onnx")
    try:
        model = onnx.load(os.fspath(path))
    except Exception as error:
        raise LoadError(
            f"{os.fspath(path)!r} is neither a whole .pt2 nor a whole .onnx file ({error})."
        ) from error
    return next((entry.value for entry in model.metadata_props if entry.key == KEY), None)


def require(name: str) -> Any:
    """A package of the extra `export`, or a word on how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ExportError(
            f"ONNX export needs the package {name!r}, which is not installed. Install it with "
            "pip install 'clcnn[export]'."
        ) from error
