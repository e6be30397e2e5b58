"""The nonlinear embedding: an auto-encoder trained to reconstruct clean states."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from clcnn.embeddings.architectures import build, is_image
from clcnn.embeddings.base import Embedding
from clcnn.embeddings.descent import Descent, Epoch
from clcnn.embeddings.linear import LinearEmbedding
from clcnn.embeddings.principal import check_variance
from clcnn.embeddings.streams import States, check_fitted, check_state
from clcnn.errors import DataError, FitError, LoadError
from clcnn.progress import Progress

_SMALLEST_SCALE = 0.1  # of the root mean square over all channels
_BUFFERS = ("mean", "scale", "holdout_error")


class AutoencoderEmbedding(Embedding):
    """E(x) = mean + scale * decode(encode((x - mean) / scale)), per channel or per flat feature.

    States (c, H, W) get the paper's convolutional auto-encoder, c -> c_2 -> c_3 -> c_2 -> c, with
    ``channels`` = (c_2, c_3); left out, they are the paper's for 3, 16 and 32 channels, else
    (4 c, 8 c). Sides that are no multiple of 4 are padded by replication and cropped back. States
    of any other shape are flattened into a dense one with widths ``hidden`` (two of 2 d, within
    64 and 1024, if left out) and a code of ``latent`` numbers (d / 2 if left out).

    `fit` minimises ||E(x) - x||^2 by Adam for at most ``epochs``, and stops when the error on a
    share ``holdout`` of the states has not fallen for ``patience`` epochs; the best weights are
    kept. It collects all states and raises if twice their size exceeds ``memory`` bytes. With
    ``linear_last`` the last of several cuts gets a `LinearEmbedding`, as in the paper. A progress
    bar is shown on a terminal (``progress=None``), always or never.

    Learned: ``network``, ``mean``, ``scale``, and for reports ``history_`` (an `Epoch` each; not
    saved) and ``holdout_error_``, the mean ||E(x) - x||^2 over the held-out states as a share of
    the variance of all, comparable with 1 - explained_ of a `LinearEmbedding`.
    """

    mean: Tensor
    scale: Tensor
    holdout_error: Tensor
    network: nn.Module | None

    def __init__(
        self,
        channels: Sequence[int] | None = None,
        hidden: Sequence[int] | None = None,
        latent: int | None = None,
        epochs: int = 100,
        lr: float = 3e-3,
        batch_size: int = 128,
        patience: int = 10,
        holdout: float = 0.1,
        linear_last: bool = True,
        memory: int = 2**31,
        seed: int = 0,
        progress: bool | None = None,
    ) -> None:
        super().__init__()
        self.channels = None if channels is None else tuple(channels)
        self.hidden = None if hidden is None else tuple(hidden)
        self.latent = latent
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.patience = patience
        self.holdout = holdout
        self.linear_last = linear_last
        self.memory = memory
        self.seed = seed
        self.progress = progress
        self._check_settings()
        self.shape_: tuple[int, ...] | None = None
        self.history_: list[Epoch] = []
        self.register_module("network", None)
        for name in _BUFFERS:
            self.register_buffer(name, None)

    def for_cut(self, t: int, T: int) -> Embedding:
        """A fresh copy, or a `LinearEmbedding` for the last of several cuts."""
        if self.linear_last and T > 1 and t == T - 1:
            return LinearEmbedding(energy=0.99)
        return super().for_cut(t, T)

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Collect the states and train on them, leaving the global random state as it was."""
        self.shape_ = None
        with torch.inference_mode(False), torch.no_grad():
            x = self._collect(States(states))
            shape = tuple(x.shape[1:])
            self.mean, self.scale, variance = _standard(x)
            network = self._build(shape)
            descent = Descent(
                self.epochs, self.lr, self.batch_size, self.patience, self.holdout, self.seed
            )
            # Weighted so, the loss is ||E(x) - x||^2 / trace(C) in the states' own units.
            w = self.scale.square() / variance
            with Progress(f"auto-encoder for {shape}", self.epochs, self.progress) as bar:
                x.sub_(self.mean).div_(self.scale)
                self.history_ = descent.run(network, x, w, bar)
            best = min(epoch.holdout for epoch in self.history_)
            self.holdout_error = self.mean.new_tensor(best)
        self.shape_ = shape
        return self

    def project(self, x: Tensor) -> Tensor:
        """E(x) = mean + scale * decode(encode((x - mean) / scale))."""
        check_fitted(self, self.shape_)
        check_state(x, self.shape_, self.mean.dtype)
        assert self.network is not None
        dtype = next(self.network.parameters()).dtype
        decoded: Tensor = self.network(((x - self.mean) / self.scale).to(dtype))
        return self.mean + self.scale * decoded.to(x.dtype)

    def in_bfloat16(self) -> AutoencoderEmbedding:
        """The same with the network's weights and products in bfloat16."""
        check_fitted(self, self.shape_)
        other = copy.copy(self)
        network = copy.deepcopy(self.network)
        assert network is not None
        other._modules = {**self._modules, "network": network.to(torch.bfloat16)}
        return other

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Build the network for states of ``shape``, then take back what `fit` learned."""
        missing = set(_BUFFERS) - set(tensors)
        if missing:
            raise LoadError(
                f"the saved tensors of an AutoencoderEmbedding lack {sorted(missing)}, found "
                f"{sorted(tensors)}. Load the file with the embedding that saved it."
            )
        self.mean = tensors["mean"].clone()
        self._build(tuple(shape))
        super().restore(tensors, shape)
        self.shape_ = tuple(shape)
        return self

    def train(self, mode: bool = True) -> Self:
        """Stay in eval mode: a prediction must not depend on its neighbours in a batch."""
        return super().train(False)

    @property
    def holdout_error_(self) -> float:
        """Mean ||E(x) - x||^2 over the held-out states / trace(C)."""
        check_fitted(self, self.shape_)
        return float(self.holdout_error)

    def extra_repr(self) -> str:
        """What was learned, in a line."""
        if self.shape_ is None:
            return "not fitted"
        return f"states {self.shape_}, held-out error {self.holdout_error_:.3g}"

    def _collect(self, stream: States) -> Tensor:
        """All states in one tensor of their own, within the memory budget."""
        batches, n = [], 0
        for batch in stream:
            n += len(batch)
            needed = 2 * n * batch[0].numel() * batch.element_size()
            if needed > self.memory:
                raise FitError(
                    f"collecting the first {n} states takes {needed} bytes, more than memory="
                    f"{self.memory}. Fit on fewer samples (the paper uses 5000), or raise memory=."
                )
            batches.append(batch.clone())
        if n < 3:
            raise FitError(
                f"the states to fit hold {n} samples, expected at least 3: two to train on and "
                "one to hold out. Pass more data."
            )
        return torch.cat(batches)

    def _build(self, shape: tuple[int, ...]) -> nn.Module:
        """Build the network, untrained and frozen, with the dtype and device of ``mean``."""
        network = build(shape, self.channels, self.hidden, self.latent, self.seed)
        self.network = network.to(self.mean).requires_grad_(False).eval()
        return self.network

    def _check_settings(self) -> None:
        widths = [*(self.channels or ()), *(self.hidden or ())]
        widths += [] if self.latent is None else [self.latent]
        least = min(self.epochs, self.patience, self.memory, self.batch_size, *widths)
        shaped = self.hidden != () and (self.channels is None or len(self.channels) == 2)
        if least < 1 or not shaped or not 0 < self.holdout < 1 or not self.lr > 0:
            raise DataError(
                f"{self.config()} found, expected epochs, patience, batch_size, memory and all "
                "widths >= 1, two channels, one hidden width or more, 0 < holdout < 1, lr > 0."
            )


def _standard(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Mean and scale, per channel (c, 1, 1) of an image and per feature of others; trace(C)."""
    n = len(x)
    total = sum((part.double().sum(0) for part in torch.split(x, 1024)), torch.zeros(()))
    mean = total / n  # (*state)
    squares = ((part - mean).square().sum(0) for part in torch.split(x, 1024))
    variance = sum(squares, torch.zeros_like(mean)) / (n - 1)
    trace = float(variance.sum())
    check_variance(trace, mean)
    if is_image(tuple(x.shape[1:])):
        centre = mean.mean((1, 2), keepdim=True)
        variance = (variance + (mean - centre).square()).mean((1, 2), keepdim=True)
        mean = centre
    # A channel that hardly varies would blow any perturbation of it up: bound its scale below.
    floor = _SMALLEST_SCALE * variance.mean().sqrt()
    return mean.to(x.dtype), variance.sqrt().clamp(min=floor).to(x.dtype), trace
