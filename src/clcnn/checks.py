"""Checks of input that several rooms make."""

from __future__ import annotations

from torch import Tensor

from clcnn.errors import DataError


def require_finite(x0: Tensor) -> None:
    """A non-finite input has no controls; name the samples."""
    if not x0.is_floating_point() or x0.isfinite().all():
        return
    broken = (~x0.flatten(1).isfinite().all(1)).nonzero().squeeze(1).tolist()
    shown = ", ".join(map(str, broken[:8])) + (" ..." if len(broken) > 8 else "")
    raise DataError(
        f"found nan or inf in {len(broken)} of {len(x0)} input samples (at {shown}); expected "
        "finite values. Clean or leave out these samples."
    )
