"""Feedback control of a trained network, fitted, calibrated and measured: a file and its card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from clcnn.control import ControlledModule
from clcnn.data.datasets import HELDOUT_SEED
from clcnn.data.datasets import load as load_images
from clcnn.data.files import replacing, write_text
from clcnn.errors import DataError
from clcnn.hardening import STEPS, fit_filter, is_worth_refining, refined, spectrum_of
from clcnn.models import shelf
from clcnn.models.hardening import Fitted
from clcnn.solvers.feedback import PRESETS, Feedback
from clcnn.training.measure import accuracy

_ALPHA = 0.05
_BATCH = 250


def harden(
    name: str,
    out: Path,
    root: str | Path | None = None,
    seed: int = 0,
    steps: int = STEPS,
    presets: Sequence[str] = PRESETS,
    filter_only: bool = False,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = lambda sentence: None,
) -> list[Path]:
    """Fit the control of a shipped network on its training images and write every preset.

    A network that feedback leaves alone (`SpectralEmbedding.authority`) gets the filter, for its
    detector, and none behind it: that would never act. With ``filter_only`` every network does.

    The detector is calibrated on all held-out images, which no training and no fit has seen.
    """
    unknown = [preset for preset in presets if preset not in PRESETS]
    if unknown:
        raise DataError(
            f"found preset {unknown[0]!r}; expected some of {', '.join(map(repr, PRESETS))}."
        )
    data = shelf.card(name).data  # an unknown name is said before a folder is made
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"found {out}, which is no folder and cannot be made one ({error}); expected a folder "
            "for the files. Choose another with --out."
        ) from error
    x, y = (part.to(device) for part in load_images(data, "train", root).tensors())
    say(f"fitting on {len(x)} training images of {data}")
    network = shelf.load(name).to(device)
    fitted = fit_filter(network, x)
    if not filter_only and is_worth_refining(fitted):
        say("training a network behind the filter")
        fitted = refined(network, (x, y), seed, steps=steps)
    else:
        say(" ".join([*fitted.remarks(), "There is no network behind the filter."]))
    command = f"clcnn harden {name} --seed {seed}"
    if filter_only:
        command += " --filter-only"
    elif steps != STEPS:
        command += f" --steps {steps}"
    return [
        finish(fitted, name, preset, len(x), out, root, seed, command, say) for preset in presets
    ]


def finish(
    fitted: ControlledModule,
    name: str,
    preset: str,
    images: int,
    out: Path,
    root: str | Path | None,
    seed: int,
    command: str,
    say: Callable[[str], None],
) -> Path:
    """Calibrate and measure a control that was fitted on so many ``images``, and write it."""
    facts = shelf.card(name)
    device = fitted.input_like.device
    clean = load_images(facts.data, "heldout", root).tensors()[0].to(device)
    test, labels = (part.to(device) for part in load_images(facts.data, "test", root).tensors())
    robust = fitted.configure(solver=Feedback(preset=preset))  # type: ignore[arg-type]
    robust.calibrate(list(torch.split(clean, _BATCH)), alpha=_ALPHA)
    path = out / f"{name}-{preset}.safetensors"
    with replacing(path) as partial:
        robust.save(partial)
        content = hashlib.sha256(partial.read_bytes()).hexdigest()
    right, flagged = accuracy(robust, test, labels), _flagged(robust, test)
    solver = robust.solver
    assert isinstance(solver, Feedback)
    spectrum = spectrum_of(robust)
    settings = solver.preset_for(spectrum)
    card = Fitted(
        network=name,
        preset=preset,
        embedding=type(spectrum).__name__,
        authority=float(spectrum.authority),
        strength=settings.strength,
        floor=settings.floor,
        command=command,
        seed=seed,
        fitted_on=images,
        calibrated_on=len(clean),
        alpha=_ALPHA,
        heldout_seed=HELDOUT_SEED,
        weights_sha256=facts.sha256,
        sha256=content,
        test_images=len(labels),
        plain_accuracy=facts.test_accuracy,
        controlled_accuracy=right,
        false_alarms=flagged,
    )
    write_text(path.with_suffix(".json"), json.dumps(asdict(card), indent=2) + "\n")
    say(
        f"{preset}: {right:.2f} % of {len(labels)} test images right (plain "
        f"{facts.test_accuracy:.2f} %), {flagged:.2f} % flagged"
    )
    return path


def _flagged(robust: ControlledModule, x: Tensor) -> float:
    """Percent of images that the detector flags."""
    flags = [robust.detect(images).flagged for images in torch.split(x, _BATCH)]
    return 100 * float(torch.cat(flags).double().mean())
