"""Batches of states on their way into a fit: checked once, here, for every embedding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from clcnn.errors import DataError, FitError

_SPLIT = 1024  # rows a batch when the states come as one tensor


class States:
    """Batches x of shape (batch, *state): tensors of one shape and dtype, finite, not all empty.

    ``shape`` (of one state) and ``dtype`` are known after the first batch. ``one_shot`` says that
    the batches come from an iterator and cannot be read a second time; ``held`` that they are in
    memory as they are, and stay, so that a view serves where others need a copy.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    def __init__(self, states: Iterable[Tensor]) -> None:
        self._batches = _split(states) if isinstance(states, Tensor) else states
        self.one_shot = isinstance(self._batches, Iterator)
        self.held = isinstance(self._batches, (list, tuple))

    def __iter__(self) -> Iterator[Tensor]:
        """Check and hand on each batch; an empty batch is skipped, an empty stream raises."""
        found = 0
        for index, batch in enumerate(self._batches):
            self._check(index, batch)
            found += len(batch)
            if len(batch):
                yield batch.detach()
        if not found:
            raise FitError(
                "the states to fit are empty: no sample found, expected at least 2. Pass more "
                "data, and check that a filter (such as correct_only) leaves some of it; an "
                "iterator that was read before is empty too."
            )

    def _check(self, index: int, batch: Tensor) -> None:
        where = f"batch {index} of the states"
        if not isinstance(batch, Tensor):
            raise DataError(
                f"{where} is a {type(batch).__name__}, expected a tensor of shape (batch, *state)."
                " Pass the states alone, without labels."
            )
        if batch.ndim < 2 or not batch.is_floating_point():
            raise DataError(
                f"{where} has shape {tuple(batch.shape)} and dtype {batch.dtype}, expected "
                "(batch, *state) of a floating dtype. Add the batch dimension, or convert it "
                "(integer images: x.float() / 255)."
            )
        shape, dtype = tuple(batch.shape[1:]), batch.dtype
        if not hasattr(self, "shape"):
            self.shape, self.dtype = shape, dtype
        if (shape, dtype) != (self.shape, self.dtype):
            raise DataError(
                f"{where} holds {dtype} states of shape {shape}, the batches before it "
                f"{self.dtype} states of shape {self.shape}. Give all states one shape and dtype."
            )
        # One bad value makes the sum bad, and the sum is much the cheaper question.
        if batch.sum().isfinite():
            return
        finite = batch.isfinite().flatten(1).all(1)
        if not finite.all():
            bad = (~finite).nonzero().flatten().tolist()
            raise DataError(
                f"{where} is not finite in {len(bad)} of its {len(batch)} samples "
                f"({_few(bad)}), expected finite values. Remove these samples, or look for an "
                "overflow in the layers before."
            )


class Part:
    """The states at the marked positions of a stream, batch by batch."""

    def __init__(self, batches: Iterable[Tensor], marked: Tensor, dtype: torch.dtype) -> None:
        self.batches, self.marked, self.dtype = batches, marked, dtype

    def __iter__(self) -> Iterator[Tensor]:
        """Hand on what is marked of each batch; a stream of another length raises."""
        n = 0
        for batch in self.batches:
            here = self.marked[n : n + len(batch)]
            n += len(batch)
            if len(here) == len(batch):
                yield batch[here.to(batch.device)].to(self.dtype)
        if n != len(self.marked):
            raise FitError(
                f"the states differ between two passes: {len(self.marked)} samples, then {n}. Pass "
                "an iterable that gives the same states each time."
            )


def held_out(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Marks ``count`` of n positions, drawn at random: (n,) of bool."""
    marked = torch.zeros(n, dtype=torch.bool)
    marked[torch.randperm(n, generator=generator)[:count]] = True
    return marked


def _split(states: Tensor) -> Iterable[Tensor]:
    if states.ndim < 2:
        raise DataError(
            f"the states are one tensor of shape {tuple(states.shape)}, expected "
            "(batch, *state). Add the batch dimension."
        )
    return torch.split(states, _SPLIT)


def _few(indices: list[int]) -> str:
    """``3, 7, 9 ...``: the first few of a list that may be long."""
    return ", ".join(map(str, indices[:5])) + (" ..." if len(indices) > 5 else "")


def check_fitted(embedding: object, shape: tuple[int, ...] | None) -> None:
    """Raise if an embedding, which knows its states' shape once fitted, is used before."""
    if shape is None:
        name = type(embedding).__name__
        raise FitError(f"this {name} is used before it was fitted. Call fit(states) first.")


def check_state(x: Tensor, shape: tuple[int, ...] | None, dtype: torch.dtype) -> None:
    """Raise if x is not a batch of states of the shape and dtype that were fitted."""
    if shape is not None and (tuple(x.shape[1:]), x.dtype) != (shape, dtype):
        raise DataError(
            f"states of shape {tuple(x.shape)} and dtype {x.dtype} cannot be projected, expected "
            f"(batch, {', '.join(map(str, shape))}) and {dtype}, as fitted. Pass states of the "
            "fitted cut, or move the embedding with .to(dtype)."
        )
