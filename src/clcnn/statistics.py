"""How much a measured share is worth."""

from __future__ import annotations

import math


def wilson(share: float, n: int, z: float = 1.959964) -> tuple[float, float]:
    """(p + z^2/2n -+ z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n): the 95 % interval of p."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
