"""A trained classifier under one-pass control at its input, in one call."""

from __future__ import annotations

import warnings

from torch import nn

from clcnn.control import ControlledModule, control
from clcnn.detection import check_alpha
from clcnn.dynamics import INPUT
from clcnn.embeddings.architectures import is_image
from clcnn.embeddings.refined import RefinedEmbedding
from clcnn.embeddings.spectral import SpectralEmbedding
from clcnn.embeddings.spectrum import Spectrum
from clcnn.errors import DataError
from clcnn.solvers.feedback import PRESETS, Feedback, PresetName
from clcnn.states import Batches, Loader

_ACTS = 0.5  # the least authority with which a network behind the filter is worth its training

STEPS = 2000
"""Of the training of a network behind the filter, unless told otherwise."""

_FEW = 500  # samples: from fewer a variance is more than 6 % off, and s_95 rests on 25 of them


def harden(
    model: nn.Module,
    clean: Loader,
    *,
    preset: PresetName = "default",
    refine: bool | None = None,
    calibrate_on: Loader | None = None,
    alpha: float = 0.05,
    seed: int = 0,
    steps: int = STEPS,
    progress: bool | None = None,
) -> ControlledModule:
    """x -> f(x + u(x)): `Feedback` control u at the input of a trained f, fitted and ready to use.

    clean: the training data without augmentation, as in `ControlledModule.fit`, that can be
        iterated more than once; with labels where there are any.
    preset: "default" costs little clean accuracy, "strong" does most against perturbations.
    refine: train a small network behind the filter (`RefinedEmbedding`; ``steps`` of 64 samples,
        and about one more forward pass at inference). None: where inputs are images and the control
        acts on them, which on adversarially trained networks it does not
        (`SpectralEmbedding.authority`).
    calibrate_on: clean data that neither the training nor this fit has seen; with it,
        ``robust.detect(x)`` flags on average at most a share ``alpha`` of clean samples.
    seed, steps, progress: of the network behind the filter. Data in another order each time give
        another.

    Measure what it is worth on your network, under both threats, before you rely on it.
    """
    if preset not in PRESETS:
        raise DataError(
            f"found preset {preset!r}; expected one of {', '.join(map(repr, PRESETS))}."
        )
    if refine not in (True, False, None):
        raise DataError(f"found refine={refine!r}; expected True, False or None.")
    if not isinstance(seed, int):
        raise DataError(f"found seed={seed!r}; expected a whole number.")
    if not isinstance(steps, int) or steps < 1:
        raise DataError(f"found steps={steps!r}; expected a whole number of at least 1.")
    check_alpha(alpha)
    if calibrate_on is not None:  # what is wrong with it is said before minutes of training
        _check_alike(calibrate_on, clean, alpha)
    fitted = None if refine else fit_filter(model, clean)
    if fitted is None or (refine is None and is_worth_refining(fitted)):
        fitted = refined(model, clean, seed, progress, steps)
    robust = fitted.configure(solver=Feedback(preset=preset))
    for sentence in [*_on_few(clean), *robust.remarks()]:
        warnings.warn(sentence, stacklevel=2)
    return robust if calibrate_on is None else robust.calibrate(calibrate_on, alpha=alpha)


def _check_alike(calibrate_on: Loader, clean: Loader, alpha: float) -> None:
    """Fail on what is no data, other data or too few; an iterator is not used up for that."""
    batches, fitted = Batches(calibrate_on), Batches(clean)
    if batches.one_shot:
        return
    check_alpha(alpha, sum(len(x) for x, _ in batches))
    if fitted.one_shot:
        return
    found, expected = batches.example(), fitted.example()
    floats = found.is_floating_point() and expected.is_floating_point()
    if found.shape[1:] != expected.shape[1:] or not (floats or found.dtype == expected.dtype):
        raise DataError(
            f"found samples of shape {tuple(found.shape[1:])} and {found.dtype} to calibrate on; "
            f"expected {tuple(expected.shape[1:])} and {expected.dtype}, as those to fit on."
        )


def _on_few(clean: Loader) -> list[str]:
    """That the data are few, where they are; no more of them is read than it takes to know."""
    found = 0
    for x, _ in Batches(clean):
        found += len(x)
        if found >= _FEW:
            return []
    return [
        f"found {found} clean samples; expected at least {_FEW}, better some thousands: the filter "
        "is made of their variances, and takes what it has not seen for a perturbation."
    ]


def fit_filter(model: nn.Module, clean: Loader) -> ControlledModule:
    """The filter alone; what `fit` would warn of is in its ``remarks``."""
    return _quietly(
        control(model, [INPUT], embedding=SpectralEmbedding(), solver=Feedback()), clean
    )


def refined(
    model: nn.Module,
    clean: Loader,
    seed: int,
    progress: bool | None = None,
    steps: int = STEPS,
) -> ControlledModule:
    """The filter with a network behind it."""
    embedding = RefinedEmbedding(steps=steps, seed=seed, progress=progress)
    return _quietly(control(model, [INPUT], embedding=embedding, solver=Feedback()), clean)


def _quietly(robust: ControlledModule, clean: Loader) -> ControlledModule:
    """Fit without `fit`'s own remarks; what others warn of meanwhile is heard."""
    with warnings.catch_warnings(record=True) as heard:
        robust.fit(clean)
    remarks = robust.remarks()
    for warning in heard:
        if str(warning.message) not in remarks:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return robust


def spectrum_of(robust: ControlledModule) -> Spectrum:
    """The embedding of a hardened network's input."""
    embedding = robust.embeddings[0]
    assert isinstance(embedding, Spectrum)
    return embedding


def is_worth_refining(robust: ControlledModule) -> bool:
    """Whether a network behind the filter would ever act."""
    return is_image(robust.input_shape) and float(spectrum_of(robust).authority) >= _ACTS
