"""The networks inside `AutoencoderEmbedding`: the paper's convolutional one, and a dense one."""

from __future__ import annotations

from collections.abc import Sequence
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
        H, W = x.shape[-2:]
        top, left = -H % 4 // 2, -W % 4 // 2
        padding = (left, -W % 4 - left, top, -H % 4 - top)
        padded = F.pad(x, padding, mode="replicate") if any(padding) else x
        decoded: Tensor = self.decoder(self.encoder(padded))
        return decoded[..., top : top + H, left : left + W]


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
    # The caller's random numbers stay as they were; other devices draw nothing here.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if is_image(shape):
            return ConvAutoencoder(shape[0], *(channels or default_channels(shape[0])))
        d = prod(shape)
        return DenseAutoencoder(shape, hidden or default_hidden(d), latent or default_latent(d))


def is_image(shape: tuple[int, ...]) -> bool:
    """Whether states of ``shape`` have sides to convolve over."""
    return len(shape) == 3 and shape[1] * shape[2] > 1
