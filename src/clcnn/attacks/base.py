"""The frame of every attack: what it owns, so that an attack writes its steps only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from typing import final

import torch
from torch import Tensor, nn

from clcnn.attacks.norms import Norm, norm_called
from clcnn.checks import require_pixels
from clcnn.control import ControlledModule
from clcnn.dynamics.base import check_mode
from clcnn.errors import ClcnnError, CutError, DataError

Model = Callable[[Tensor], Tensor]

_ROUNDING = 1e-6
"""What float32 may add to a distance between pixels in [0,1]."""


class AttackError(ClcnnError, RuntimeError):
    """An attack cannot be run on this model, or broke its own bound."""


@dataclass(frozen=True)
class Attack(ABC):
    """Find x_adv with ||x_adv - x|| <= eps and values in [0,1] that the model gets wrong.

    ``eps`` is in pixel units of [0,1]. A new attack writes `run`; calling the attack checks the
    input, leaves out images that are misclassified as they are (they count as successes and come
    back unchanged), splits into batches, seeds, projects and checks the result.
    """

    eps: float
    norm: str = field(default="linf", kw_only=True)
    batch_size: int = field(default=250, kw_only=True)
    seed: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        if not 0 <= self.eps < float("inf"):
            raise DataError(f"expected eps >= 0, finite, in pixel units of [0,1], got {self.eps}")
        self.require_counts("batch_size")
        norm_called(self.norm)

    def require_counts(self, *names: str) -> None:
        """Fail unless these settings are whole numbers of at least 1."""
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, Integral):
                raise DataError(f"expected {name} as a whole number, got {value!r}")
            if value < 1:
                raise DataError(f"expected {name} >= 1, got {value}")

    def require_step_size(self, step_size: float | None) -> None:
        """Fail unless the step is a length, or left to the attack."""
        if step_size is not None and not 0 < step_size < float("inf"):
            raise DataError(f"expected step_size > 0, finite, got {step_size}")

    @abstractmethod
    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """Perturb a batch; ``model`` maps images to checked logits of shape (batch, classes)."""

    def view(self, model: Model) -> Model:
        """The model as this attack sees it; success is judged on ``model`` itself all the same."""
        return model

    def for_verdicts(self) -> Attack:
        """The same where nothing counts but which samples are beaten: as cheap as it can be."""
        return self

    def constrain(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """The nearest point in the ball around ``x``, then in [0,1], which only moves towards x."""
        return (x + self.ball.project(x_adv - x, self.eps)).clamp(0, 1)

    @property
    def label(self) -> str:
        """A short name for tables."""
        return type(self).__name__

    @property
    def ball(self) -> Norm:
        """The norm itself."""
        return norm_called(self.norm)

    @final
    def __call__(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Adversarial examples for the images ``x`` (batch, ...) with labels ``y`` (batch,)."""
        with outside_inference_mode():
            return self._all_batches(model, x, y)

    def _all_batches(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        x, y = checked_images(x, y)
        refuse_training_mode(model)
        if self.eps == 0 or not len(x):
            return x.clone()
        generator = torch.Generator().manual_seed(self.seed)
        target, seen = Checked(model), Checked(self.view(model))
        refuse_training_mode(seen.inside)
        results = [
            self._attack(target, seen, x[part], y[part], generator)
            for part in parts(len(x), self.batch_size)
        ]
        return torch.cat(results)

    def within(self, x_adv: Tensor, x: Tensor) -> Tensor:
        """Whether ||x_adv - x|| <= eps, up to rounding, with values in [0,1]: shape (batch,)."""
        near = self.ball.size(x_adv - x) <= self.eps * (1 + _ROUNDING) + _ROUNDING
        return near & ((x_adv >= 0) & (x_adv <= 1)).flatten(1).all(1)

    def _attack(
        self, target: Model, seen: Model, x: Tensor, y: Tensor, generator: torch.Generator
    ) -> Tensor:
        result = x.clone()
        right = is_correct(target, x, y)
        if right.any():
            start = x[right]
            attacked = self.run(seen, start, y[right], generator).detach()
            # What is inside stays as it is: one more rounding could undo a narrow success.
            inside = self.within(attacked, start).view(-1, *(1,) * (x.ndim - 1))
            result[right] = torch.where(inside, attacked, self.constrain(attacked, start))
        self._check(result, x)
        return result

    def _check(self, x_adv: Tensor, x: Tensor) -> None:
        """Fail unless the result is what was promised: an attack that cheats measures nothing."""
        if not bool(self.within(x_adv, x).all()):
            distance = float(self.ball.size(x_adv - x).max())
            raise AttackError(
                f"{type(self).__name__} returned images at a distance of {distance:.6g} "
                f"({self.norm}) with values in [{float(x_adv.min()):.6g}, "
                f"{float(x_adv.max()):.6g}], expected at most {self.eps:.6g} and [0, 1]"
            )


def parts(total: int, batch_size: int) -> Iterator[slice]:
    """Slices that cover 0 ... total - 1 in order, each of at most ``batch_size``."""
    return (slice(i, i + batch_size) for i in range(0, total, batch_size))


def refuse_training_mode(model: Model) -> None:
    """Fail where any part makes an answer depend on the whole batch, or lets no gradient pass."""
    if isinstance(model, ControlledModule):
        model = model.model  # the rest of it is always in eval mode
    if isinstance(model, nn.Module):
        try:
            check_mode(model)
        except CutError as error:
            raise AttackError(str(error)) from None


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Ordinary tensors inside, where there is a gradient for whoever asks for it."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def checked_images(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Images and labels after `check_images`, as tensors that a backward pass can keep."""
    check_images(x, y)
    x, y = x.detach(), y.detach()
    return x.clone() if x.is_inference() else x, y.clone() if y.is_inference() else y


def check_tensors(x: Tensor, y: Tensor) -> None:
    """Fail on arrays and lists."""
    for what, value in (("images", x), ("labels", y)):
        if not isinstance(value, Tensor):
            raise DataError(
                f"got {what} as a {type(value).__name__}, expected a torch.Tensor: use "
                "torch.as_tensor"
            )


def check_images(x: Tensor, y: Tensor) -> None:
    """Fail unless ``x`` are float images in [0,1] and ``y`` their labels."""
    check_tensors(x, y)
    if x.dtype in (torch.float16, torch.bfloat16):
        raise DataError(
            f"got images of {x.dtype}, expected float32 or float64, as lower precision moves them "
            "by more than an attack may: cast to it inside the model"
        )
    if not x.is_floating_point() or x.ndim < 2:
        raise DataError(
            f"got images of dtype {x.dtype} and shape {tuple(x.shape)}, expected a float batch "
            "with values in [0,1]"
        )
    if y.dtype is not torch.int64 or y.shape != x.shape[:1]:
        raise DataError(
            f"got labels of dtype {y.dtype} and shape {tuple(y.shape)}, expected int64 class "
            f"numbers of shape ({len(x)},)"
        )
    require_pixels(x, "attack the images")


class Checked:
    """A model, with a clear error when it does not return logits of shape (batch, classes).

    ``inside`` is the model itself, for attacks that need more of it than its logits.
    """

    def __init__(self, model: Model) -> None:
        self.inside: Model = inside(model)

    def __call__(self, x: Tensor) -> Tensor:
        """The logits of x, which a model that writes over its input does not change."""
        z = self.inside(x.clone())
        if not isinstance(z, Tensor) or z.ndim != 2 or len(z) != len(x):
            got = tuple(z.shape) if isinstance(z, Tensor) else type(z).__name__
            raise AttackError(
                f"the model returned {got} for {len(x)} images, expected logits of shape "
                f"({len(x)}, classes): wrap it so that it returns these alone"
            )
        return z


def inside(model: Model) -> Model:
    """The model without the check around it."""
    return model.inside if isinstance(model, Checked) else model


@torch.no_grad()
def is_correct(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """Whether the model's largest logit is at y, shape (batch,)."""
    z = model(x)
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < z.shape[1]:
        raise DataError(
            f"got labels from {int(y.min())} to {int(y.max())}, expected 0 to {z.shape[1] - 1} "
            "as the model has that many logits"
        )
    return z.argmax(1) == y
