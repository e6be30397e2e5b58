"""Bring back a controlled network from its file and the network it was made for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clcnn import persistence
from clcnn.control import ControlledModule
from clcnn.detection import calibrated
from clcnn.dynamics.base import Dynamics
from clcnn.dynamics.hooked import HookedDynamics
from clcnn.embeddings.base import Embedding
from clcnn.errors import CutError, LoadError
from clcnn.gradients import GradMode
from clcnn.solvers.base import Solver

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}


def load(
    path: str | os.PathLike[str],
    model: nn.Module | Dynamics,
    *,
    grad: GradMode | None = None,
    classes: Sequence[type[Embedding] | type[Solver]] = (),
) -> ControlledModule:
    """The controlled network that ``robust.save(path)`` wrote, around ``model``.

    Cuts and state shapes are checked against the model; weights other than those it was fitted on
    get a warning. ``classes`` names embeddings and solvers of your own that the file uses.
    """
    header, tensors = persistence.read(path)
    try:
        return _build(os.fspath(path), header, tensors, model, grad, classes)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, CutError):
            raise
        raise LoadError(f"the header of {os.fspath(path)!r} is damaged: {error!r}.") from error


def _build(
    path: str,
    header: dict[str, Any],
    tensors: dict[str, Tensor],
    model: nn.Module | Dynamics,
    grad: GradMode | None,
    classes: Sequence[type[Embedding] | type[Solver]],
) -> ControlledModule:
    cuts = tuple(header["cuts"])
    shapes = tuple(tuple(shape) for shape in header["shapes"])
    dynamics = _dynamics(path, model, cuts, bool(header["allow_bypass"]))
    dtype, shape = _DTYPES[header["input_dtype"]], tuple(header["input_shape"])
    if not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"input_shape {shape}")
    device = next((p.device for p in dynamics.model.parameters()), torch.device("cpu"))
    # Some networks have no answer to a blank input: they divide by its spread.
    generator = torch.Generator().manual_seed(0)
    example = torch.rand(2, *shape, generator=generator).to(device, dtype)
    if example.is_floating_point():
        _check_shapes(path, dynamics, example, shapes)
    else:
        # Whole numbers made up may be no valid input, so the model is not tried on them.
        dynamics.copied = frozenset(header["copied"])
    own = {cls.__name__: cls for cls in classes}
    solvers = {name: cls for name, cls in own.items() if issubclass(cls, Solver)}
    embeddings = {name: cls for name, cls in own.items() if issubclass(cls, Embedding)}
    fitted = [
        persistence.unpack_embedding(
            packed, _part(tensors, f"embeddings.{t}."), shapes[t], embeddings
        )
        for t, packed in enumerate(header["embeddings"])
    ]
    if len(fitted) != len(cuts) or len(shapes) != len(cuts):
        raise LoadError(f"{path!r} has {len(fitted)} embeddings for {len(cuts)} cuts.")
    robust = ControlledModule(
        dynamics,
        embedding=dict(zip(cuts, fitted, strict=True)),
        solver=persistence.unpack_solver(header["solver"], solvers),
        regularization=[
            tensors[f"regularization.{t}"] if R is None else R
            for t, R in enumerate(header["regularization"])
        ],
        weights=header["weights"],
        grad=header["grad"] if grad is None else grad,
        allow_bypass=bool(header["allow_bypass"]),
    )
    robust.adopt(dynamics, [E.to(device) for E in fitted], shapes, example[:0])
    if header.get("alpha") is not None:
        alpha, scores = float(header["alpha"]), tensors["clean_scores"].flatten()
        robust.clean_scores, robust.alpha = calibrated(scores, alpha), alpha
    if persistence.fingerprint(dynamics.model) != header["fingerprint"]:
        warnings.warn(
            f"{path!r} was fitted on a {header['model']} with other weights than this "
            f"{type(dynamics.model).__name__}'s. Its embeddings may not fit these states: fit "
            "again unless only the dtype differs.",
            stacklevel=3,
        )
    return robust


def _dynamics(
    path: str, model: nn.Module | Dynamics, cuts: tuple[str, ...], allow_bypass: bool
) -> Dynamics:
    if isinstance(model, Dynamics):
        if model.cuts != cuts:
            raise LoadError(
                f"{path!r} was made for the cuts {', '.join(cuts)}; this dynamics has "
                f"{', '.join(model.cuts)}. Load it with the network it was fitted on."
            )
        return model
    try:
        return HookedDynamics(model, cuts, allow_bypass=allow_bypass)
    except CutError as error:
        raise LoadError(
            f"{path!r} was made for the cuts {', '.join(cuts)}, which do not fit this "
            f"{type(model).__name__}: {error}"
        ) from error


def _check_shapes(
    path: str, dynamics: Dynamics, example: Tensor, shapes: tuple[tuple[int, ...], ...]
) -> None:
    try:
        found = dynamics.inspect(example)
    except CutError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise LoadError(
            f"{path!r} was made for inputs of shape {tuple(example.shape[1:])} and "
            f"{example.dtype}, on which this model fails: {error}. Load it with the network it was "
            "fitted on, in the same dtype."
        ) from error
    if found != shapes:
        t = next(t for t, (a, b) in enumerate(zip(found, shapes, strict=True)) if a != b)
        raise LoadError(
            f"{path!r} was made for states of shape {shapes[t]} at cut {dynamics.cuts[t]!r}; this "
            f"model has {found[t]} there. Load it with the network it was fitted on."
        )


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
