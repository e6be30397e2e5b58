"""The networks inside embeddings: the paper's auto-encoder, a dense one, and a small U-Net."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PAPER_CHANNELS = {3: (18, 36), 16: (36, 72), 32: (128, 256)}
"""c_1 -> (c_2, c_3), Appendix B's table of convolutional auto-encoders."""


def default_channels(c1: int) -> tuple[int, int]:
    """(c_2, c_3): the paper's where it has c_1, else (4 c_1, 8 c_1) as for its 32 channels.

    Two halvings of both sides divide the number of pixels by 16, so that the code holds half as
    many numbers as the state.
    """
    return PAPER_CHANNELS.get(c1, (4 * c1, 8 * c1))


def default_hidden(d: int) -> tuple[int, int]:
    """Two hidden layers, twice as wide as the state, but at least 64 and at most 1024."""
    width = min(max(64, 2 * d), 1024)
    return width, width


def default_latent(d: int) -> int:
    """d / 2, as many as in the convolutional rule; 1 for a state of dimension 2."""
    return max(1, d // 2)


class ConvAutoencoder(nn.Module):
    """x (c_1, H, W) -> code (c_3, H/4, W/4) -> x, after replicating the border to multiples of 4.

    Sides that are no multiple of 4 are padded by repeating their outermost pixels, as evenly as
    possible on both ends, and the result is cropped back.
    """

    def __init__(self, c1: int, c2: int, c3: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            _halve(c1, c2),
            nn.ELU(),
            nn.BatchNorm2d(c2),
            _halve(c2, c3),
            nn.ELU(),
        )
        self.decoder = nn.Sequential(
            _double(c3, c2),
            nn.ELU(),
            _double(c2, c1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Decode the code of x."""
        return on_multiples_of_4(x, lambda padded: self.decoder(self.encoder(padded)))


class UNet(nn.Module):
    """x (c, H, W) -> (c, H, W) through full, half and quarter size, with ``widths`` channels there.

    Each size hands what it saw across to the way back. The last layer starts at 0, so an untrained
    one answers 0.
    """

    def __init__(self, c: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        full, half, quarter = widths
        self.down_full = _twice(c, full)
        self.down_half = _twice(full, half, stride=2)
        self.down_quarter = _twice(half, quarter, stride=2)
        self.up_half = nn.Conv2d(quarter, half, 1)
        self.join_half = nn.Sequential(nn.Conv2d(2 * half, half, 3, padding=1), nn.ReLU())
        self.up_full = nn.Conv2d(half, full, 1)
        self.join_full = nn.Sequential(nn.Conv2d(2 * full, full, 3, padding=1), nn.ReLU())
        self.out = nn.Conv2d(full, c, 3, padding=1)
        assert self.out.bias is not None
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The correction to x."""
        return on_multiples_of_4(x, self._corrected)

    def _corrected(self, x: Tensor) -> Tensor:
        full = self.down_full(x)
        half = self.down_half(full)
        back = self.up_half(self.down_quarter(half))
        half = self.join_half(torch.cat([half, _doubled(back)], dim=1))
        back = self.up_full(half)
        full = self.join_full(torch.cat([full, _doubled(back)], dim=1))
        corrected: Tensor = self.out(full)
        return corrected


def on_multiples_of_4(x: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
    """What ``network`` makes of x with its border repeated to sides that are multiples of 4."""
    H, W = x.shape[-2:]
    top, left = -H % 4 // 2, -W % 4 // 2
    padding = (left, -W % 4 - left, top, -H % 4 - top)
    padded = F.pad(x, padding, mode="replicate") if any(padding) else x
    return network(padded)[..., top : top + H, left : left + W]


def _doubled(x: Tensor) -> Tensor:
    """Every pixel four times: `F.interpolate` in operations that an exported graph keeps open."""
    return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)


def _twice(c_in: int, c_out: int, stride: int = 1) -> nn.Sequential:
    first = nn.Conv2d(c_in, c_out, 3, stride, padding=1)
    return nn.Sequential(first, nn.ReLU(), nn.Conv2d(c_out, c_out, 3, padding=1), nn.ReLU())


def _halve(c_in: int, c_out: int) -> nn.Conv2d:
    return nn.Conv2d(c_in, c_out, kernel_size=4, stride=2, padding=1)


def _double(c_in: int, c_out: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(c_in, c_out, kernel_size=4, stride=2, padding=1)


class DenseAutoencoder(nn.Module):
    """x -> ELU layers -> code (latent,) -> the same layers mirrored -> x, for states of any shape.

    The code is linear: an ELU would bend a code of few numbers at 0. Unlike the convolutional one
    it has no batch normalisation, whose noise in training keeps a code of one or two numbers from
    becoming accurate (about five times the error on two arcs in the plane).
    """

    def __init__(self, shape: Sequence[int], hidden: Sequence[int], latent: int) -> None:
        super().__init__()
        d = prod(shape)
        widths = [d, *hidden]
        self.encoder = nn.Sequential(*_layers(widths), nn.Linear(widths[-1], latent))
        self.decoder = nn.Sequential(*_layers([latent, *hidden[::-1]]), nn.Linear(hidden[0], d))

    def forward(self, x: Tensor) -> Tensor:
        """Decode the code of x."""
        decoded: Tensor = self.decoder(self.encoder(x.flatten(1)))
        return decoded.reshape(x.shape)


def _layers(widths: Sequence[int]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for narrow, wide in pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ELU()]
    return layers


def build(
    shape: tuple[int, ...],
    channels: tuple[int, ...] | None,
    hidden: tuple[int, ...] | None,
    latent: int | None,
    seed: int,
) -> nn.Module:
    """An untrained auto-encoder for states of ``shape``: (c, H, W) convolutional, others dense."""
    with seeded(seed):
        if is_image(shape):
            return ConvAutoencoder(shape[0], *(channels or default_channels(shape[0])))
        d = prod(shape)
        return DenseAutoencoder(shape, hidden or default_hidden(d), latent or default_latent(d))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Random numbers from ``seed``; the caller's stay as they were, other devices draw nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether states of ``shape`` have sides to convolve over."""
    return len(shape) == 3 and shape[1] * shape[2] > 1
