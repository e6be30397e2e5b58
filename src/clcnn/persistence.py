"""Files: safetensors with a JSON header, written whole or not at all, never unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from clcnn._version import __version__
from clcnn.embeddings.autoencoder import AutoencoderEmbedding
from clcnn.embeddings.base import Embedding
from clcnn.embeddings.frequency import FrequencyEmbedding
from clcnn.embeddings.linear import LinearEmbedding
from clcnn.embeddings.patch import PatchEmbedding
from clcnn.embeddings.refined import RefinedEmbedding
from clcnn.embeddings.separable import SeparableEmbedding
from clcnn.embeddings.spectral import SpectralEmbedding
from clcnn.embeddings.tail import TailEmbedding
from clcnn.errors import ClcnnError, FitError, LoadError
from clcnn.solvers import MSA, PMP, Feedback, Greedy, Reactive, Riccati
from clcnn.solvers.base import Solver
from clcnn.solvers.per_cut import FeedbackPerCut, IterativePerCut, MSAPerCut

FORMAT = 1
_KEY = "clcnn"
_SOLVERS: dict[str, type[Solver]] = {
    cls.__name__: cls
    for cls in (
        *(PMP, MSA, Greedy, Reactive, Riccati, Feedback),
        *(IterativePerCut, MSAPerCut, FeedbackPerCut),
    )
}
EMBEDDINGS: dict[str, type[Embedding]] = {
    cls.__name__: cls
    for cls in (
        *(LinearEmbedding, SeparableEmbedding, PatchEmbedding, FrequencyEmbedding),
        *(SpectralEmbedding, RefinedEmbedding, TailEmbedding, AutoencoderEmbedding),
    )
}


def write(
    path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write header and tensors beside the target, then move them there in one step."""
    target = Path(path).resolve()
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"the folder {str(target.parent)!r} does not exist. Make it first, or choose another."
        )
    stamped = {"format": FORMAT, "version": __version__, **header}
    try:
        text = json.dumps(stamped)
    except TypeError as error:
        raise LoadError(
            f"a setting is no JSON value ({error}). An embedding or solver of your own must give "
            "plain numbers, strings and lists in config() or settings()."
        ) from error
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".tmp")
    os.close(handle)
    try:
        # Clones, as safetensors refuses two names for one piece of memory.
        plain = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        save_file(plain, temporary, metadata={_KEY: text})
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file that `write` made; anything else is refused."""
    if not Path(path).is_file():
        raise LoadError(f"there is no file {str(path)!r}.")
    try:
        with safe_open(os.fspath(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise LoadError(
            f"{str(path)!r} is not a whole safetensors file ({error}). It was cut short or is of "
            "another kind; save it again."
        ) from error
    if _KEY not in metadata:
        raise LoadError(
            f"{str(path)!r} is a safetensors file, but was not made by clcnn (its header has no "
            f"{_KEY!r} entry). Expected a file written by robust.save(path)."
        )
    try:
        header = json.loads(metadata[_KEY])
        found = header["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise LoadError(f"the clcnn header of {str(path)!r} is damaged ({error}).") from error
    if found != FORMAT:
        raise LoadError(
            f"{str(path)!r} has format {found}, written by clcnn {header.get('version')}; this is "
            f"clcnn {__version__}, which reads format {FORMAT}. Install the version that wrote it, "
            "or fit and save again."
        )
    return header, tensors


def pack_solver(solver: Solver) -> dict[str, Any]:
    """Class name and settings, solvers within solvers included."""
    settings = {
        name: [pack_solver(one) for one in value] if name == "solvers" else value
        for name, value in solver.settings().items()
    }
    return {"class": type(solver).__name__, "settings": settings}


def unpack_solver(packed: Mapping[str, Any], known: Mapping[str, type[Solver]]) -> Solver:
    """The solver that `pack_solver` described; classes are looked up, never imported by name."""
    cls = _look_up(packed["class"], {**_SOLVERS, **known}, "solver")
    settings = {
        name: tuple(unpack_solver(one, known) for one in value) if name == "solvers" else value
        for name, value in packed["settings"].items()
    }
    solver: Solver = _construct(cls, settings)
    return solver


def pack_embedding(embedding: Embedding) -> dict[str, Any]:
    """Class name and configuration, embeddings within embeddings included."""
    loose = [name for name, value in vars(embedding).items() if isinstance(value, Tensor)]
    if loose:
        raise FitError(
            f"{type(embedding).__name__} keeps the tensor {loose[0]!r} as a plain attribute, which "
            f"would be lost. Keep it in a buffer: self.register_buffer({loose[0]!r}, ...)."
        )
    config = {
        name: pack_embedding(value) if isinstance(value, Embedding) else value
        for name, value in embedding.config().items()
    }
    packed = {"class": type(embedding).__name__, "config": config}
    return packed if embedding.choice_ is None else {**packed, "choice": embedding.choice_}


def unpack_embedding(
    packed: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    shape: tuple[int, ...],
    known: Mapping[str, type[Embedding]],
) -> Embedding:
    """The fitted embedding that `pack_embedding` and its tensors describe."""
    fitted = _unfitted(packed, known).restore(tensors, shape)
    fitted.choice_ = packed.get("choice")
    return fitted


def _unfitted(packed: Mapping[str, Any], known: Mapping[str, type[Embedding]]) -> Embedding:
    cls = _look_up(packed["class"], {**EMBEDDINGS, **known}, "embedding")
    config = {
        name: _unfitted(value, known) if isinstance(value, dict) and "class" in value else value
        for name, value in packed["config"].items()
    }
    embedding: Embedding = _construct(cls, config)
    embedding.choice_ = packed.get("choice")
    return embedding


def _look_up(name: str, known: Mapping[str, type[Any]], what: str) -> type[Any]:
    if name not in known:
        raise LoadError(
            f"the file uses the {what} {name!r}, which clcnn does not know (known: "
            f"{', '.join(sorted(known))}). Pass its class: clcnn.load(path, model, "
            f"classes=[{name}])."
        )
    return known[name]


def _construct(cls: type[Any], settings: Mapping[str, Any]) -> Any:
    try:
        return cls(**settings)
    except (TypeError, ClcnnError) as error:
        raise LoadError(f"the file's settings do not fit {cls.__name__}: {error}.") from error


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of all weights and buffers: tells whether a file was made for these very weights."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            digest.update(raw.numpy().data)
    return digest.hexdigest()
