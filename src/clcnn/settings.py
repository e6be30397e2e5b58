"""Settings that hold for all cuts or for each: numbers, sequences and dicts made one list."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from clcnn.dynamics.base import describe
from clcnn.errors import CutError
from clcnn.objective import Regularization

Value = TypeVar("Value")


def values_per_cut(
    values: Mapping[str, Value] | Sequence[Value], cuts: Sequence[str], what: str
) -> list[Value]:
    """One value for each cut out of a dict by name or a sequence in order."""
    if isinstance(values, Mapping):
        missing = [name for name in cuts if name not in values]
        unknown = [name for name in values if name not in cuts]
        if missing or unknown:
            raise CutError(
                f"the dict for {what} has {', '.join(map(str, values))}; expected just the cuts "
                f"{', '.join(cuts)}"
                + (f". Missing: {', '.join(missing)}" if missing else "")
                + (f". Not a cut: {', '.join(map(str, unknown))}" if unknown else "")
                + "."
            )
        return [values[name] for name in cuts]
    listed = list(values)
    if len(listed) != len(cuts):
        raise CutError(
            f"found {len(listed)} values for {what}; expected one for each of the {len(cuts)} cuts "
            f"({', '.join(cuts)})."
        )
    return listed


def regularization_per_cut(
    given: Any, cuts: Sequence[str], shapes: Sequence[tuple[int, ...]] | None
) -> list[Regularization]:
    """R_t for every cut: numbers stay numbers, diagonals take their state's shape."""
    if isinstance(given, np.ndarray):
        given = torch.as_tensor(given)
    if isinstance(given, Tensor) and given.dim() == 0:
        given = given.item()
    if isinstance(given, numbers.Real):
        listed: list[Any] = [given] * len(cuts)
    elif isinstance(given, Tensor) and len(cuts) == 1:
        listed = [given]
    else:
        listed = values_per_cut(_several(given, "regularization"), cuts, "regularization")
    return [
        _one(R, name, None if shapes is None else shapes[t])
        for t, (R, name) in enumerate(zip(listed, cuts, strict=True))
    ]


def _several(given: Any, what: str) -> Any:
    if not isinstance(given, (Mapping, Sequence)) or isinstance(given, str):
        raise CutError(
            f"found a {type(given).__name__} for {what}; expected a number, or a list or dict with "
            "one value for each cut."
        )
    return given


def _one(R: Any, name: str, shape: tuple[int, ...] | None) -> Regularization:
    if isinstance(R, np.ndarray):
        R = torch.as_tensor(R)
    if isinstance(R, Tensor) and R.dim() > 0:
        if not (R.isfinite().all() and (R >= 0).all()):
            raise CutError(f"R at cut {name!r} has negative or non-finite entries; expected >= 0.")
        if shape is None:
            return R
        if R.numel() != math.prod(shape):
            raise CutError(
                f"R at cut {name!r} has {R.numel()} entries of shape {tuple(R.shape)}; expected "
                f"the diagonal in the state's shape {shape}."
            )
        return R.reshape(shape)
    if not isinstance(R, (numbers.Real, Tensor)):
        raise CutError(f"R at cut {name!r} is a {type(R).__name__}; expected a number or a tensor.")
    value = float(R)
    if not (math.isfinite(value) and value >= 0):
        raise CutError(f"found R={value} at cut {name!r}; expected a finite number of at least 0.")
    return value


def weights_per_cut(
    given: Any, cuts: Sequence[str], shapes: Sequence[tuple[int, ...]] | None
) -> list[float]:
    """w_t for every cut: 1 for "sum", 1/d_t for "mean"."""
    if isinstance(given, str) and given == "sum":
        return [1.0] * len(cuts)
    if isinstance(given, str) and given == "mean":
        return [1.0] * len(cuts) if shapes is None else [1.0 / math.prod(s) for s in shapes]
    if isinstance(given, str):
        raise CutError(f"found weights={given!r}; expected 'sum', 'mean', or numbers.")
    if isinstance(given, numbers.Real):
        listed: list[Any] = [given] * len(cuts)
    else:
        listed = values_per_cut(_several(given, "weights"), cuts, "weights")
    weights = [float(w) if isinstance(w, numbers.Real) else math.nan for w in listed]
    if not all(math.isfinite(w) and w > 0 for w in weights):
        raise CutError(f"found weights {listed}; expected finite numbers above 0.")
    return weights


def check_kind(given: object, kind: type, what: str) -> None:
    """Refuse anything but one of its kind, or a dict of them."""
    if isinstance(given, kind):
        return
    wrong = (
        [v for v in given.values() if not isinstance(v, kind)]
        if isinstance(given, Mapping)
        else [given]
    )
    if wrong:
        found = (
            f"the class {wrong[0].__name__}" if isinstance(wrong[0], type) else describe(wrong[0])
        )
        raise CutError(
            f"found {found} as {what}; expected a {kind.__name__} or a dict with one for each cut"
            + (f". Make one: {wrong[0].__name__}()." if isinstance(wrong[0], type) else ".")
        )
