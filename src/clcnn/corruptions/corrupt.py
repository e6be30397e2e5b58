"""One function for all corruptions: checks, randomness, and the range of the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from clcnn.checks import require_pixels
from clcnn.corruptions import blur, digital, noise, weather
from clcnn.corruptions.draws import Draws
from clcnn.errors import DataError

_KINDS: dict[str, Callable[[Tensor, int, Draws], Tensor]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": weather.frost,
    "fog": weather.fog,
    "brightness": weather.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
}
NAMES = tuple(_KINDS)
SEVERITIES = (1, 2, 3, 4, 5)

_AT_ONCE = 256
"""Images whose copies are in memory together; it changes nothing in the result."""

_TIE = 0.5 + 1e-6
"""Means of two bytes lie on a tie, whose side must not hang on the last bit of a sum."""


def corrupt(x: Tensor, name: str, severity: int, seed: int = 0) -> Tensor:
    """The images ``x`` in [0,1], (batch, 1 or 3, height, width), under a corruption of CIFAR-10-C.

    ``name`` is one of `NAMES`, ``severity`` 1 to 5, with the constants published for CIFAR-10-C
    (Hendrycks and Dietterich, ICLR 2019). As there the result has 256 levels, to which it is
    rounded; the published program cuts off, half a level darker on average. Frost is made of
    noise here, not of the published photographs. More severe does not always mean farther from x:
    by those constants glass blur smooths more what it displaced as much, an elastic transform
    warps less and crumples more, frost darkens what it covers, and motion blur is the same at 3
    and 4 but for the angle.

    What is random follows from ``seed``, name, severity and the image's own content: the result
    for an image is the same in any batch, at any place in it. All is computed in float64 on the
    CPU, so that it does not hang on a device either.
    """
    _check(x, name, severity, seed)
    images = x.detach().to("cpu", torch.float64).contiguous()
    key = f"{seed} {name} {int(severity)}"
    with torch.no_grad():
        parts = [images[i : i + _AT_ONCE] for i in range(0, len(images), _AT_ONCE)]
        done = [_to_bytes(_KINDS[name](part, int(severity), Draws(part, key))) for part in parts]
    return (torch.cat(done).to(x) if done else x.detach().clone()) / 255


@dataclass(frozen=True)
class Corruption:
    """`corrupt` in the form of an attack: called with a model and labels, it looks at neither.

    It keeps no ball around x and seeks no mistake: all images are corrupted, whatever the model
    makes of them. One who knows of a defence and one who does not give the same images.
    """

    of: str
    severity: int
    seed: int = 0

    def __post_init__(self) -> None:
        _check_settings(self.of, self.severity, self.seed)

    def __call__(self, model: object, x: Tensor, y: Tensor) -> Tensor:
        """The corrupted images."""
        return corrupt(x, self.of, self.severity, self.seed)


def _to_bytes(x: Tensor) -> Tensor:
    return (255 * x.clamp(0, 1) + _TIE).floor()


def _check_settings(name: str, severity: int, seed: int) -> None:
    if name not in _KINDS:
        raise DataError(f"corruption {name!r} is unknown, expected one of {', '.join(NAMES)}")
    numbers: dict[str, Any] = {"severity": severity, "seed": seed}
    for what, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise DataError(f"expected {what} as a whole number, got {value!r}")
    if severity not in SEVERITIES:
        raise DataError(f"expected a severity from 1 (weak) to 5 (strong), got {severity}")


def _check(x: Tensor, name: str, severity: int, seed: int) -> None:
    _check_settings(name, severity, seed)
    if not isinstance(x, Tensor):
        raise DataError(
            f"got images as a {type(x).__name__}, expected a torch.Tensor: use torch.as_tensor"
        )
    if x.ndim != 4 or x.shape[1] not in (1, 3) or not min(x.shape[2:]):
        hint = ": for a single image, x.unsqueeze(0)" if x.ndim == 3 else ""
        raise DataError(
            f"got images of shape {tuple(x.shape)}, expected (batch, channels, height, width) with "
            f"1 or 3 channels{hint}"
        )
    if not x.is_floating_point():
        raise DataError(
            f"got images of {x.dtype}, expected floats in [0, 1]: for bytes, x.float() / 255"
        )
    require_pixels(x, "corrupt images")
