"""The clean states a network shows at its cuts, gathered for fitting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor

from clcnn.checks import require_finite
from clcnn.dynamics.base import Dynamics
from clcnn.errors import DataError, FitError

Loader: TypeAlias = Tensor | tuple[Tensor, Tensor] | Iterable[Any]
"""One tensor of inputs, a pair (inputs, labels), or an iterable of such batches."""

CHUNK = 256
"""Samples a pass when the user hands over whole tensors."""


class Batches:
    """(x, y or None) batches out of whatever the user handed over, checked one by one."""

    def __init__(self, loader: Loader) -> None:
        if not isinstance(loader, Iterable):
            raise DataError(
                f"found a {type(loader).__name__} as data; expected a tensor, a pair (x, y) of "
                "tensors, or an iterable of batches such as a DataLoader."
            )
        self.one_shot = isinstance(loader, Iterator)
        self.loader = loader
        self._peeked: list[Any] = []

    def example(self) -> Tensor:
        """The first batch of inputs, without losing it where a loader runs only once."""
        for batch in self.loader if self.one_shot else ():
            self._peeked.append(batch)
            if len(_split(batch, 0)[0]):
                break
        for x, _ in Batches(self._peeked) if self.one_shot else self:
            return x
        raise FitError(
            "the loader gave no batch; expected clean data with at least two samples. A generator "
            "that was used up before gives nothing: make it anew."
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        shape: torch.Size | None = None
        for number, (x, y) in enumerate(self._raw()):
            if x.dim() < 2:
                raise DataError(
                    f"batch {number} is a tensor of shape {tuple(x.shape)}; expected (batch, ...). "
                    "Hand over batches, for instance a DataLoader around the data set."
                )
            if shape is not None and x.shape[1:] != shape:
                raise DataError(
                    f"batch {number} has samples of shape {tuple(x.shape[1:])}, earlier ones of "
                    f"{tuple(shape)}; expected one shape throughout."
                )
            shape = x.shape[1:]
            require_finite(x)
            if len(x):
                yield x, y

    def some(self, count: int) -> list[Tensor]:
        """Up to ``count`` inputs from everywhere in the data, in batches as large as those given.

        Each sample draws a number, and those with the lowest are kept: data that are sorted by
        class are met as those that are not. It takes one pass over all of the data; where these
        come in the same order, it is the same inputs that are kept.
        """
        generator = torch.Generator().manual_seed(0)
        kept: list[Tensor] = []
        drawn = torch.empty(0, dtype=torch.float64)
        largest = 1
        for x, _ in self:
            largest = max(largest, len(x))
            numbers = torch.rand(len(x), generator=generator, dtype=torch.float64)
            best = torch.cat([drawn, numbers]).argsort()[:count].sort().values
            old, new = best[best < len(drawn)], best[best >= len(drawn)] - len(drawn)
            kept = [kept[place] for place in old.tolist()]
            kept += [x[place].clone() for place in new.tolist()]  # a view would keep all of x
            drawn = torch.cat([drawn[old], numbers[new]])
        size = min(CHUNK, largest)
        return [torch.stack(kept[k : k + size]) for k in range(0, len(kept), size)]

    def mixed(
        self, size: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Batches of ``size``, in another order each time, without what is left over at the end.

        Tensors are mixed as a whole; what a loader gives is mixed within its own batches, of which
        small ones are joined. If all together are fewer than ``size``, they are one batch.
        """
        pool: list[tuple[Tensor, Tensor | None]] = []
        waiting = given = 0
        for x, y in self._mixed(generator):
            if pool and (y is None) != (pool[0][1] is None):
                raise DataError(
                    "found batches with labels and batches without; expected labels in all or in "
                    "none of them."
                )
            pool.append((x, y))
            waiting += len(x)
            if waiting >= size:
                whole_x, whole_y = _joined(pool)
                for start in range(0, waiting - size + 1, size):
                    part = slice(start, start + size)
                    yield whole_x[part], None if whole_y is None else whole_y[part]
                    given += 1
                rest = slice(waiting - waiting % size, None)
                pool = [(whole_x[rest], None if whole_y is None else whole_y[rest])]
                waiting %= size
        if not given and waiting:
            yield _joined(pool)

    def _mixed(self, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor | None]]:
        for x, y in self._large():
            for places in torch.split(torch.randperm(len(x), generator=generator), CHUNK):
                yield x[places.to(x.device)], None if y is None else y[places.to(y.device)]

    def _large(self) -> Iterable[tuple[Tensor, Tensor | None]]:
        """Whole tensors as one batch, anything else as it comes."""
        if isinstance(self.loader, Tensor):
            return [(self.loader, None)]
        if _is_pair(self.loader):
            x, y = self.loader
            return [(x, y)]
        return self

    def _raw(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        if isinstance(self.loader, Tensor):
            for x in torch.split(self.loader, CHUNK):
                yield x, None
        elif _is_pair(self.loader):
            x_all, y_all = self.loader
            yield from zip(torch.split(x_all, CHUNK), torch.split(y_all, CHUNK), strict=True)
        else:
            for number, batch in enumerate(chain(self._peeked, self.loader)):
                yield _split(batch, number)


def _is_pair(loader: object) -> bool:
    """(inputs, labels) as whole tensors, not a list of two batches."""
    if not (isinstance(loader, (tuple, list)) and len(loader) == 2):
        return False
    x, y = loader
    if not (isinstance(x, Tensor) and isinstance(y, Tensor) and x.dim() > 1):
        return False
    if isinstance(loader, list) and y.dim() != 1:
        return False
    if x.shape[1:] == y.shape[1:] and len(x) != len(y):
        return False  # batches, the last one shorter, as torch.split gives them
    if x.shape == y.shape:
        raise DataError(
            f"found a tuple of two tensors of shape {tuple(x.shape)}: inputs and labels, or two "
            "batches? Pass batches as a list, labels as whole numbers of shape (batch,)."
        )
    if len(x) != len(y):
        raise DataError(
            f"found {len(x)} inputs and {len(y)} labels; expected a label for each input."
        )
    return True


def _joined(pool: list[tuple[Tensor, Tensor | None]]) -> tuple[Tensor, Tensor | None]:
    labels = [y for _, y in pool if y is not None]
    return torch.cat([x for x, _ in pool]), torch.cat(labels) if labels else None


def _is_right(logits: Tensor, y: Tensor) -> Tensor:
    if logits.dim() != 2 or y.shape != logits.shape[:1] or y.is_floating_point():
        raise FitError(
            f"correct_only=True compares labels with the largest logit; found logits of shape "
            f"{tuple(logits.shape)} and labels of {y.dtype} and shape {tuple(y.shape)}; expected "
            "(batch, classes) and whole numbers of shape (batch,)."
        )
    return logits.argmax(1) == y.to(logits.device)


class RightOnly(Batches):
    """The batches without the samples that the network gets wrong."""

    def __init__(self, dynamics: Dynamics, batches: Batches, device: torch.device | None) -> None:
        super().__init__(batches.loader)
        self.one_shot = batches.one_shot
        self.dynamics, self.device = dynamics, device

    def _large(self) -> Iterable[tuple[Tensor, Tensor | None]]:
        return self

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor | None]]:
        for x, y in super().__iter__():
            at = x if self.device is None else x.to(self.device)
            with torch.no_grad():
                logits = self.dynamics.rollout(at, lambda t, state: state)
            if y is not None and (right := _is_right(logits, y).to(x.device)).any():
                yield x[right], y[right.to(y.device)]


def _split(batch: object, number: int) -> tuple[Tensor, Tensor | None]:
    x, y = batch, None
    if isinstance(batch, (tuple, list)) and batch:
        x, y = batch[0], batch[1] if len(batch) > 1 else None
    if not isinstance(x, Tensor) or not (y is None or isinstance(y, Tensor)):
        raise DataError(
            f"batch {number} holds {type(x).__name__} and {type(y).__name__}; expected tensors x "
            "or (x, y) with a leading batch axis. A data set of single samples needs a DataLoader."
        )
    return x, y


def collect(
    dynamics: Dynamics,
    batches: Batches,
    *,
    device: torch.device | None,
    correct_only: bool,
    memory: int,
) -> list[Iterable[Tensor]]:
    """States x_t of clean data for every cut, each an iterable that can be run again.

    One pass of the network serves all cuts while the states fit ``memory`` bytes; beyond that each
    pass over a cut's states runs the network again.
    """
    kept: list[list[Tensor]] = [[] for _ in dynamics.cuts]
    used = 0
    for states in _passes(dynamics, batches, device, correct_only):
        used += sum(state.numel() * state.element_size() for state in states)
        if used > memory:
            if batches.one_shot:
                raise FitError(
                    f"the states take more than the {memory / 2**30:.3g} GiB allowed for keeping "
                    "them, and the loader can be iterated only once. Hand over something that can "
                    "be iterated again (a DataLoader, a list), fewer samples, or raise memory=."
                )
            return [_Rerun(dynamics, batches, device, correct_only, t) for t in range(dynamics.T)]
        for cut, state in zip(kept, states, strict=True):
            cut.append(state)
    if not kept[0]:
        raise FitError(
            "correct_only=True left nothing to fit: the model gets no sample of the loader right. "
            "Check the labels and the model's weights, or leave correct_only out."
        )
    return list(kept)


class _Rerun:
    """The states of one cut, computed anew on every iteration."""

    def __init__(
        self,
        dynamics: Dynamics,
        batches: Batches,
        device: torch.device | None,
        correct_only: bool,
        t: int,
    ) -> None:
        self.dynamics, self.batches, self.device = dynamics, batches, device
        self.correct_only, self.t = correct_only, t

    def __iter__(self) -> Iterator[Tensor]:
        for states in _passes(self.dynamics, self.batches, self.device, self.correct_only):
            yield states[self.t]


def _passes(
    dynamics: Dynamics, batches: Batches, device: torch.device | None, correct_only: bool
) -> Iterator[list[Tensor]]:
    """The states (x_0, ..., x_{T-1}) of each batch."""
    for x, y in batches:
        if correct_only and y is None:
            raise FitError(
                "correct_only=True needs labels, and the loader gives none. Hand over (x, y) "
                "batches, or leave correct_only out."
            )
        states: list[Tensor] = []

        def note(t: int, state: Tensor, states: list[Tensor] = states) -> Tensor:
            # A copy: a loader may refill its tensor, a skip connection add to it in place.
            states.append(state.clone())
            return state

        with torch.inference_mode(False), torch.no_grad():
            x = x.clone() if x.is_inference() else x
            x = x.to(device) if device is not None else x
            if correct_only and y is not None:
                right = _is_right(dynamics.rollout(x, note), y)
                states = [state[right] for state in states]
            else:
                dynamics.sweep(x, note)
        if len(states[0]):
            yield states
