"""From a network and clean data to sound cuts and fitted embeddings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn

from clcnn.dynamics.base import INPUT, Dynamics, describe
from clcnn.dynamics.choose import choose_cuts
from clcnn.dynamics.hooked import HookedDynamics
from clcnn.embeddings.base import Embedding, Lesson
from clcnn.errors import ClcnnError, DataError, FitError
from clcnn.states import Batches

_HEARD = 2000  # samples whose gradients are enough for a spectrum


def inspected(
    given: Dynamics | nn.Module, example: Tensor, allow_bypass: bool
) -> tuple[Dynamics, tuple[tuple[int, ...], ...]]:
    """The dynamics, its cuts chosen where only a network is given, and the shape of each state."""
    try:
        example = torch.cat([example, example])[:2]
        dynamics = _dynamics_for(given, example, allow_bypass)
        return dynamics, dynamics.inspect(example)
    except ClcnnError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise DataError(
            f"the model fails on inputs of {example.dtype} and shape (batch, "
            f"{', '.join(map(str, example.shape[1:]))}): {error}. Expected batches that the "
            "model takes, of its dtype and with the batch as first axis."
        ) from error


def _dynamics_for(given: Dynamics | nn.Module, example: Tensor, allow_bypass: bool) -> Dynamics:
    inner_cuts_only = isinstance(given, Dynamics) and INPUT not in given.cuts
    if not example.is_floating_point() and not inner_cuts_only:
        raise DataError(
            f"found inputs of {example.dtype}; expected floating point. Convert images first, "
            "for instance x.float() / 255."
        )
    if isinstance(given, Dynamics):
        return given
    return HookedDynamics(given, choose_cuts(given, example), allow_bypass=allow_bypass)


def fit_embeddings(
    cuts: Sequence[str],
    prototypes: Sequence[Embedding],
    states: Sequence[Iterable[Tensor]],
    *,
    each_its_own: bool,
) -> list[Embedding]:
    """One fitted embedding a cut; what goes wrong is said with the cut's name.

    A prototype that serves all cuts may choose for each (`Embedding.for_cut`); one that was given
    for its own cut is taken as it is.
    """
    fitted = []
    for t, (name, prototype) in enumerate(zip(cuts, prototypes, strict=True)):
        fresh = prototype.for_cut(0, 1) if each_its_own else prototype.for_cut(t, len(cuts))
        try:
            embedding: object = fresh.fit(states[t])
        except (FitError, DataError) as error:
            raise type(error)(f"at cut {name!r}: {error}") from error
        if not isinstance(embedding, Embedding):
            raise FitError(
                f"{type(fresh).__name__}.fit returned {describe(embedding)}; expected the "
                "embedding itself: end it with `return self`."
            )
        fitted.append(embedding)
    return fitted


def hear_gradients(
    dynamics: Dynamics,
    batches: Batches,
    fitted: Sequence[Embedding],
    states: Sequence[Iterable[Tensor]],
    device: torch.device | None,
) -> None:
    """Tell embeddings that ask for it what the network's answers depend on, at up to 2,000 samples.

    They come from everywhere in the data, which may be sorted by class.
    The gradient at cut t is that of the largest logit less the second: the direction in which the
    answer changes first, without a label, and never faded by a confident softmax.
    """
    places = [t for t, embedding in enumerate(fitted) if embedding.wants_gradients]
    if not places:
        return
    if batches.one_shot:
        raise FitError(
            f"{type(fitted[places[0]]).__name__} learns from the network's gradients, for which "
            "the data are run again, and the loader can be iterated only once. Hand over something "
            "that can be iterated again (a DataLoader, a list of batches, tensors)."
        )
    heard: list[list[Tensor]] = [[] for _ in fitted]
    for x in batches.some(_HEARD):
        x = x.to(device) if device is not None else x
        found = _gradients(dynamics, x.clone() if x.is_inference() else x)
        for t in places:
            heard[t].append(found[t])
    for t in places:
        try:
            fitted[t].hear(heard[t], states[t])
        except FitError as error:
            raise FitError(f"at cut {dynamics.cuts[t]!r}: {error}") from error


def teach(
    dynamics: Dynamics, batches: Batches, fitted: list[Embedding], device: torch.device | None
) -> None:
    """Let embeddings that ask for it learn through the network behind their cut.

    The classes wanted are the data's labels; without any, the network's answers to clean data.
    """
    for t, embedding in enumerate(fitted):
        if not embedding.lesson_size:
            continue
        if batches.one_shot:
            raise FitError(
                f"{type(embedding).__name__} learns from the data again and again, and the loader "
                "can be iterated only once. Hand over something that can be iterated again (a "
                "DataLoader, a list of batches, tensors)."
            )
        try:
            fitted[t] = embedding.learn(
                _Lessons(dynamics, batches, t, embedding.lesson_size, device)
            )
        except (FitError, DataError) as error:
            raise type(error)(f"at cut {dynamics.cuts[t]!r}: {error}") from error


class _Lessons:
    """The data as lessons of ``size`` samples at cut t, in another order each time."""

    def __init__(
        self, dynamics: Dynamics, batches: Batches, t: int, size: int, device: torch.device | None
    ) -> None:
        self.dynamics, self.batches, self.t, self.size = dynamics, batches, t, size
        self.device = device
        self.generator = torch.Generator().manual_seed(0)
        self.classes: int | None = None

    def __iter__(self) -> Iterator[Lesson]:
        for x, y in self.batches.mixed(self.size, self.generator):
            if y is not None:
                _check_labels(x, y)
            yield self._lesson(x, y)

    def _lesson(self, x: Tensor, y: Tensor | None) -> Lesson:
        x = x if self.device is None else x.to(self.device)
        states: list[Tensor] = []

        def look(t: int, state: Tensor) -> Tensor:
            if t == self.t:
                states.append(state)
            return state

        def answer(state: Tensor) -> Tensor:
            return self.dynamics.rollout(x, lambda t, own: state if t == self.t else own)

        if y is not None:
            y = self._whole(x, y)
            if self.dynamics.cuts[self.t] == INPUT:
                return Lesson(x, y, answer)
        with torch.no_grad():
            logits = self.dynamics.rollout(x, look)
        return Lesson(states[0], logits.argmax(1) if y is None else y, answer)

    def _whole(self, x: Tensor, y: Tensor) -> Tensor:
        """The labels as classes of the network."""
        if self.classes is None:
            with torch.no_grad():
                self.classes = self.dynamics.rollout(x[:1], lambda t, state: state).shape[1]
        if int(y.min()) < 0 or int(y.max()) >= self.classes:
            raise DataError(
                f"found labels from {int(y.min())} to {int(y.max())}; expected 0 to "
                f"{self.classes - 1}, as the network has {self.classes} classes."
            )
        return y.to(x.device, torch.long)


def _check_labels(x: Tensor, y: Tensor) -> None:
    if y.shape != x.shape[:1] or y.is_floating_point() or y.dtype == torch.bool:
        raise DataError(
            f"found labels of {y.dtype} and shape {tuple(y.shape)} for inputs of shape "
            f"{tuple(x.shape)}; expected one whole number for each. Leave the labels out to learn "
            "from the network's own answers."
        )


def _gradients(dynamics: Dynamics, x: Tensor) -> tuple[Tensor, ...]:
    added: list[Tensor] = []

    def steer(t: int, state: Tensor) -> Tensor:
        added.append(torch.zeros_like(state).requires_grad_())
        return state + added[-1]

    with torch.enable_grad():
        logits = dynamics.rollout(x, steer)
        if logits.dim() != 2 or logits.shape[1] < 2:
            raise FitError(
                f"found answers of shape {tuple(logits.shape)}; expected logits (batch, classes) "
                "of at least two classes, whose difference tells what the network is sensitive to."
            )
        first, second = logits.topk(2, dim=1).values.unbind(1)
        return torch.autograd.grad((first - second).sum(), added)


def device_of(model: nn.Module) -> torch.device | None:
    """Where the network's weights are, if it has any."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return None if first is None else first.device
