"""The spectrum's filter, and a small network behind it that learned from the classifier."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import cos, inf, isfinite, pi
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from clcnn.embeddings.architectures import UNet, is_image, seeded
from clcnn.embeddings.base import Lesson
from clcnn.embeddings.spectral import SpectralEmbedding
from clcnn.embeddings.spectrum import Preset
from clcnn.embeddings.streams import check_fitted
from clcnn.errors import DataError, FitError, LoadError
from clcnn.progress import Progress

_UNTOUCHED = 0.25  # of the samples of a lesson meet no noise at all
_SENSITIVE = 0.5  # meet noise along the sensitive directions alone
_LOUD = 0.08  # meet white noise alone, up to _LOUDEST
_LOUDEST = 0.35
_WARM_UP = 0.1  # of the steps


class RefinedEmbedding(SpectralEmbedding):
    """E(x) = w + rho R(w),  w = x + u(x): a U-Net R corrects what the filter u makes of a state.

    rho = m / (m + turn mean(lambda)), with the mean perturbation level m = s + g that the filter
    acts upon: a sample that looks clean is left alone by both, but for `Feedback`'s floor, which
    counts in m, too. R is bounded by no ceiling; `Feedback`'s ``trust`` bounds the whole control.

    Everything of `SpectralEmbedding`, and R, trained in ``steps`` steps of ``batch_size`` states

        min_R  E [ Phi(f(w + rho R(w)), y) + fidelity ||w + rho R(w) - x||^2 / (d mean(lambda)) ],

    w = x + v + u(x + v), through the frozen classifier f behind the state. Phi is the cross-entropy
    with the label y (without labels, with the answer to the clean state); v is Gaussian with
    variances s + k_i^p g, which follow the network's sensitivity k, with random p, s and g of up to
    ``loudest`` of the clean states' spread; now and then it is white noise alone, now and then
    nothing. No attack is ever shown to it. u is the pull of `Feedback` with a strength and a floor
    drawn for each sample from the ranges ``strengths`` and ``floors`` (log-uniform), so that one R
    serves them all. R sees the filtered state alone: shown x as well, it would put back what the
    filter took out.

    R has ``widths`` channels at full, half and quarter size and starts at 0, so that an untrained
    one is a `SpectralEmbedding`. States must be images (c, H, W).

    Learned, beside the spectrum: ``network``, R's weights.
    """

    presets: ClassVar[Mapping[str, Preset]] = {
        "default": Preset(512.0, 0.004),
        "strong": Preset(512.0, 0.128),
    }
    network: UNet | None

    def __init__(
        self,
        widths: tuple[int, int, int] = (24, 48, 96),
        steps: int = 2000,
        batch_size: int = 64,
        lr: float = 2e-3,
        fidelity: float = 6.0,
        loudest: float = 0.32,
        turn: float = 0.05,
        strengths: tuple[float, float] = (64.0, 2048.0),
        floors: tuple[float, float] = (0.008, 0.128),
        memory: int = 2**31,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        super().__init__(memory)
        if not all(isinstance(value, (tuple, list)) for value in (widths, strengths, floors)):
            raise DataError(
                f"found widths={widths!r}, strengths={strengths!r}, floors={floors!r}; expected "
                "three whole numbers, and a range (low, high) each."
            )
        if not (isinstance(seed, int) and 0 <= seed < 2**63):
            raise DataError(f"found seed={seed!r}; expected a whole number from 0 to 2^63 - 1.")
        self.widths = tuple(widths)
        self.steps = steps
        self.batch_size = self.lesson_size = batch_size
        self.lr = lr
        self.fidelity = fidelity
        self.loudest = loudest
        self.turn = turn
        self.strengths = tuple(strengths)
        self.floors = tuple(floors)
        self.seed = seed
        self.progress = progress
        counts = (*self.widths, steps, batch_size)
        if (
            len(self.widths) != 3
            or min(*self.widths, batch_size) < 1
            or steps < 0
            or not all(isinstance(count, int) for count in counts)
        ):
            raise DataError(
                f"found widths={self.widths}, steps={steps}, batch_size={batch_size}; expected "
                "whole numbers, three widths and a batch size of at least 1, steps of 0 or more."
            )
        for name in ("lr", "fidelity", "loudest", "turn"):
            if not (
                isinstance(getattr(self, name), (int, float)) and 0 < getattr(self, name) < inf
            ):
                raise DataError(f"found {name}={getattr(self, name)!r}; expected more than 0.")
        for name in ("strengths", "floors"):
            ends = getattr(self, name)
            if len(ends) != 2 or not 0 < ends[0] <= ends[1] < inf:
                raise DataError(f"found {name}={ends}; expected a range (low, high) above 0.")
        self.register_module("network", None)

    def fit(self, states: Iterable[Tensor]) -> Self:
        """The spectrum; the network behind it is trained by `learn`."""
        super().fit(states)
        shape = self.shape_ or ()
        if not is_image(shape):
            raise FitError(
                f"found states of shape {shape}; expected images (c, H, W) of more than one pixel. "
                "Use a SpectralEmbedding at this cut (`clcnn.harden`: refine=False)."
            )
        self._build(shape)
        return self

    def learn(self, lessons: Iterable[Lesson]) -> Self:
        """Train R through the classifier, leaving the global random state as it was."""
        check_fitted(self, self.shape_)
        assert self.network is not None
        network = self.network.train().requires_grad_(True)
        optimizer = torch.optim.AdamW(network.parameters(), lr=self.lr, weight_decay=1e-4)
        generator = torch.Generator().manual_seed(self.seed)
        with Progress(f"refiner for {self.shape_}", self.steps, self.progress) as bar:
            for step, lesson in enumerate(_repeated(lessons, self.steps)):
                for group in optimizer.param_groups:
                    group["lr"] = self.lr * _one_cycle(step / self.steps)
                with torch.enable_grad():
                    loss = self._loss(lesson, generator)
                    optimizer.zero_grad()
                    torch.autograd.backward(loss, inputs=list(network.parameters()))
                optimizer.step()
                if not isfinite(value := float(loss.detach())):
                    raise FitError(
                        f"training the refiner diverged at step {step + 1} of {self.steps}: the "
                        f"loss is {value}, expected a finite one. "
                        + (
                            f"Lower lr={self.lr:g}."
                            if step
                            else "Look at the network's answers to these data, and at the labels."
                        )
                    )
                bar.update(step + 1, f"loss {value:.3g}")
        network.eval().requires_grad_(False)
        return self

    def _loss(self, lesson: Lesson, generator: torch.Generator) -> Tensor:
        x = lesson.state
        with torch.no_grad():
            noisy = x + self._noise(x, generator)
            # Clean states show in which range states are: pixels stay pixels.
            noisy = noisy.clamp(float(x.min()), float(x.max()))
            z = self.coefficients(noisy)
            levels = self.levels_of(z)
            strength, floor = (
                _between(ends, x, generator) for ends in (self.strengths, self.floors)
            )
            white = torch.maximum(levels.white, floor * self.mean_variance)
            sensitive = self.taken_for(levels, strength)
            u = self.pull(z, white, sensitive)
        refined = noisy + self.refine(noisy, u, white + sensitive)
        apart = (refined - x).square().mean() / self.mean_variance
        return cross_entropy(lesson.answer(refined), lesson.wanted) + self.fidelity * apart

    def _noise(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """U diag(n)^(1/2) times Gaussian numbers, n of a random level and shape for each sample."""
        B, k = len(x), self.sensitivity

        def uniform() -> Tensor:
            return torch.rand(B, 1, generator=generator, dtype=x.dtype).to(x.device)

        kinds = uniform()
        spread = self.mean_variance
        level = (self.loudest * uniform()).square() * spread
        level = torch.where(kinds < _UNTOUCHED, 0.0, level)
        share = torch.where(uniform() < _SENSITIVE, 0.0, uniform())
        shaped = k ** (0.5 + uniform())
        n = level * (share + (1 - share) * shaped / shaped.mean(1, keepdim=True))
        loud = (_LOUDEST * uniform()).square() * spread
        n = torch.where(kinds > 1 - _LOUD, loud, n)
        normal = torch.randn(B, len(k), generator=generator, dtype=x.dtype).to(x.device)
        return self._back(n.sqrt() * normal)

    def refine(self, x: Tensor, u: Tensor, level: Tensor) -> Tensor:
        """u + rho R(x + u)."""
        assert self.network is not None
        centre, scale = self.mean.mean(), self.mean_variance.sqrt()
        rho = level / (level + self.turn * self.mean_variance)
        correction: Tensor = self.network((x + u - centre) / scale)
        return u + rho.reshape(rho.shape[0], 1, 1, 1) * scale * correction

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` and `learn` learned for states of ``shape``."""
        prefix = "network."
        own = {k: v for k, v in tensors.items() if not k.startswith(prefix)}
        super().restore(own, shape)
        network = self._build(tuple(shape))
        weights = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            raise LoadError(
                f"the saved refiner does not fit widths={self.widths} and states of shape "
                f"{tuple(shape)}: {error}"
            ) from error
        network.to(self.mean)
        return self

    def _build(self, shape: tuple[int, ...]) -> UNet:
        with seeded(self.seed):
            network = UNet(shape[0], self.widths)
        network.to(self.mean).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.network = network.eval().requires_grad_(False)
        return network


def _between(ends: tuple[float, ...], x: Tensor, generator: torch.Generator) -> Tensor:
    """A number for each sample, log-uniform in [low, high]."""
    low, high = ends
    share = torch.rand(len(x), generator=generator, dtype=x.dtype).to(x.device)
    return low * (high / low) ** share


def _repeated(lessons: Iterable[Lesson], steps: int) -> Iterator[Lesson]:
    """The first ``steps`` lessons, from the beginning again as often as that takes."""
    left = steps
    while left > 0:
        before = left
        for lesson in lessons:
            yield lesson
            left -= 1
            if left == 0:
                return
        if left == before:
            raise FitError("there are no lessons to learn from; expected clean data.")


def _one_cycle(t: float) -> float:
    """From a tenth up to 1 in the first part of the training, then along a cosine to 0."""
    if t < _WARM_UP:
        return 0.1 + 0.9 * t / _WARM_UP
    return 0.5 + 0.5 * cos(pi * (t - _WARM_UP) / (1 - _WARM_UP))
