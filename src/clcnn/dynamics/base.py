"""What every dynamics offers: the network as x_{t+1} = f_t(x_t + u_t), t = 0 ... T-1."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain

from torch import Tensor, nn

from clcnn.errors import CutError
from clcnn.types import Steer

INPUT = "input"
"""The name of the cut at the network's own input."""


class Dynamics(ABC):
    """x_{t+1} = f_t(z_t), z_t = steer(t, x_t); the last stage gives the logits.

    One callback serves every use: ``x + u[t]`` applies controls, a function of x is feedback,
    ignoring x and returning a stored state evaluates all stages side by side.

    ``copied`` names the states that a layer changes in place; such a layer gets a copy, so that
    what ``steer`` or the caller keeps stays what it was. `inspect` finds them.
    """

    cuts: tuple[str, ...]
    model: nn.Module
    copied: frozenset[str] = frozenset()

    @property
    def T(self) -> int:
        """The number of controlled states."""
        return len(self.cuts)

    @property
    def rounds(self) -> bool:
        """Whether `sweep` has other states than `rollout`, by more than the last digits."""
        return False

    @abstractmethod
    def rollout(self, x0: Tensor, steer: Steer) -> Tensor:
        """x_0 -> logits through all stages; ``steer`` is called once a cut, in order."""

    @abstractmethod
    def sweep(self, x0: Tensor, steer: Steer) -> None:
        """As `rollout`, but stops at the last cut: J needs no logits."""

    @abstractmethod
    def inspect(self, x: Tensor) -> tuple[tuple[int, ...], ...]:
        """The shape of one state at each cut, after checking on x that the cuts are sound."""

    def check_mode(self) -> None:
        """Refuse a network that cannot be controlled as it is now."""
        check_mode(self.model)


def check_mode(model: nn.Module) -> None:
    """Refuse train mode, where a prediction depends on chance or on the batch, and weights that
    were made in inference mode, through which no gradient can pass.
    """
    training = [name or "the model itself" for name, m in model.named_modules() if m.training]
    if training:
        more = f" and {len(training) - 3} more" if len(training) > 3 else ""
        raise CutError(
            f"the model is in train mode (found it in {', '.join(training[:3])}{more}), where "
            "a prediction can depend on the rest of the batch. Expected eval mode: call "
            "model.eval() first."
        )
    if any(value.is_inference() for value in chain(model.parameters(), model.buffers())):
        raise CutError(
            "the model's weights were made or moved inside torch.inference_mode(), so no gradient "
            "can pass through them. Build, load or move the model outside of it."
        )


def check_logits(logits: object) -> Tensor:
    """Refuse a network that returns anything but one tensor."""
    if not isinstance(logits, Tensor):
        raise CutError(
            f"the model returned {describe(logits)}; expected one tensor of logits. Wrap it in "
            "a module whose forward returns the logits alone."
        )
    return logits


def describe(value: object) -> str:
    """A few words on what a value is, for error messages."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, (list, tuple, dict)):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}"
