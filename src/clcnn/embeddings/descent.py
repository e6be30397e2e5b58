"""Training an auto-encoder: Adam, early stopping on held-out states, the best weights kept."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor, nn

from clcnn.errors import FitError
from clcnn.progress import Progress


@dataclass(frozen=True)
class Epoch:
    """The mean loss of an epoch: while training, and after it on the held-out states."""

    train: float
    holdout: float


@dataclass(frozen=True)
class Descent:
    """min over weights of the mean of loss(x) = sum(w * (network(x) - x)^2), by Adam."""

    epochs: int
    lr: float
    batch_size: int
    patience: int
    holdout: float
    seed: int

    def run(self, network: nn.Module, x: Tensor, w: Tensor, bar: Progress) -> list[Epoch]:
        """Train until the held-out loss stops falling; leave the best weights, in eval mode."""
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(len(x), generator=generator)
        held = min(max(1, round(self.holdout * len(x))), len(x) - 2)
        held_out, rest = order[:held], order[held:]
        network.requires_grad_(True)
        optimizer = torch.optim.Adam(network.parameters(), lr=self.lr)
        history: list[Epoch] = []
        best, best_weights = float("inf"), network.state_dict()
        stale = 0
        while len(history) < self.epochs and stale < self.patience:
            epoch = Epoch(
                self._train(network, optimizer, x, w, _shuffled(rest, generator)),
                self._evaluate(network, x, w, held_out),
            )
            history.append(epoch)
            self._check_finite(history)
            bar.update(len(history), f"held-out error {epoch.holdout:.3g}")
            stale += 1
            if epoch.holdout < best:
                best, best_weights = epoch.holdout, copy.deepcopy(network.state_dict())
                stale = 0
        network.load_state_dict(best_weights)
        network.requires_grad_(False)
        return history

    def _train(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        x: Tensor,
        w: Tensor,
        indices: Tensor,
    ) -> float:
        network.train()
        total = 0.0
        for batch in torch.split(indices.to(x.device), self.batch_size):
            with torch.enable_grad():
                loss = _loss(network, x[batch], w)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total += float(loss.detach()) * len(batch)
        return total / len(indices)

    def _evaluate(self, network: nn.Module, x: Tensor, w: Tensor, indices: Tensor) -> float:
        network.eval()
        batches = torch.split(indices.to(x.device), self.batch_size)
        return sum(float(_loss(network, x[b], w)) * len(b) for b in batches) / len(indices)

    def _check_finite(self, history: list[Epoch]) -> None:
        last = history[-1]
        if not (isfinite(last.train) and isfinite(last.holdout)):
            raise FitError(
                f"training diverged in epoch {len(history)}: the loss is {last.train:g}, on "
                f"held-out states {last.holdout:g}, expected finite values. Lower lr={self.lr:g}."
            )


def _shuffled(indices: Tensor, generator: torch.Generator) -> Tensor:
    return indices[torch.randperm(len(indices), generator=generator)]


def _loss(network: nn.Module, x: Tensor, w: Tensor) -> Tensor:
    reconstruction: Tensor = network(x)
    return (w * (reconstruction - x).square()).sum() / len(x)
