"""What every dynamics offers: the network as x_{t+1} = f_t(x_t + u_t), t = 0 ... T-1."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from clcnn.errors import CutError
from clcnn.types import Steer

INPUT = "input"
"""The name of the cut at the network's own input."""


class Dynamics(ABC):
    """x_{t+1} = f_t(z_t), z_t = steer(t, x_t); the last stage gives the logits.

    One callback serves every use: ``x + u[t]`` applies controls, a function of x is feedback,
    ignoring x and returning a stored state evaluates all stages side by side.
    """

    cuts: tuple[str, ...]
    model: nn.Module

    @property
    def T(self) -> int:
        """The number of controlled states."""
        return len(self.cuts)

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
        """Refuse a network in train mode: its output would depend on chance or on the batch."""
        training = [
            name or "the model itself" for name, m in self.model.named_modules() if m.training
        ]
        if training:
            more = f" and {len(training) - 3} more" if len(training) > 3 else ""
            raise CutError(
                f"the model is in train mode (found it in {', '.join(training[:3])}{more}), where "
                "a prediction can depend on the rest of the batch. Expected eval mode: call "
                "model.eval() first."
            )
