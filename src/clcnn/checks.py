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


def require_pixels(x: Tensor, advice: str) -> None:
    """Refuse images with nan or values outside [0,1]; ``advice`` says when to normalise."""
    broken = int(x.isnan().flatten(1).any(1).sum())
    if broken:
        raise DataError(
            f"got nan in {broken} of {len(x)} images, expected [0, 1]: leave these images out, or "
            "find what made them"
        )
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise DataError(
            f"got images with values in [{float(x.min()):.6g}, {float(x.max()):.6g}], expected "
            f"[0, 1]: {advice} before any normalisation, and put that inside the model"
        )


def check_input(x: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse an input of another shape, dtype or device than the fitted one."""
    if not isinstance(x, Tensor):
        raise DataError(f"found a {type(x).__name__}; expected a tensor (batch, ...).")
    if x.dim() == 0 or tuple(x.shape[1:]) != shape:
        expected = ", ".join(("batch", *map(str, shape)))
        hint = ""
        if tuple(x.shape) == shape:
            hint = " For a single sample, add the batch axis: x.unsqueeze(0)."
        raise DataError(
            f"found an input of shape {tuple(x.shape)}; expected ({expected}), as fitted.{hint}"
        )
    if x.dtype != like.dtype:
        from_integers = like.is_floating_point() and not x.is_floating_point()
        hint = "x.float() / 255" if from_integers else f"x.to({like.dtype})"
        raise DataError(
            f"found an input of {x.dtype}; expected {like.dtype}, as fitted. "
            f"Convert it ({hint}), or move the module with .to(dtype)."
        )
    if x.device != like.device:
        raise DataError(
            f"found an input on {x.device}; expected {like.device}, where the "
            "module is. Move one of them with .to(device)."
        )
