"""The learning rate as a function of the step, so that there is no state to restore."""

from __future__ import annotations

import math

_WARM_UP = 0.2
_START = 1 / 25


def one_cycle(step: int, total: int, peak: float) -> float:
    """Straight up from peak/25 to peak in the first fifth, then a half cosine down to 0."""
    progress = (step + 1) / total
    if progress < _WARM_UP:
        return peak * (_START + (1 - _START) * progress / _WARM_UP)
    return peak * 0.5 * (1 + math.cos(math.pi * (progress - _WARM_UP) / (1 - _WARM_UP)))
