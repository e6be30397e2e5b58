"""Feedback control of a trained network, fitted, calibrated and measured: a file and its card."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clcnn.control import ControlledModule, control
from clcnn.data.datasets import HELDOUT_SEED
from clcnn.data.datasets import load as load_images
from clcnn.data.files import replacing, write_text
from clcnn.embeddings.spectral import SpectralEmbedding
from clcnn.models import shelf
from clcnn.models.hardening import Fitted
from clcnn.solvers.feedback import PRESETS, Feedback
from clcnn.training.measure import accuracy

_FITTED = 5000
_ALPHA = 0.05
_BATCH = 250


def harden(
    name: str,
    out: Path,
    root: str | Path | None = None,
    seed: int = 0,
    say: Callable[[str], None] = lambda sentence: None,
) -> list[Path]:
    """Fit the control of a shipped network on 5,000 training images and write every preset.

    The detector is calibrated on all held-out images, which no training and no fit has seen.
    """
    network = shelf.load(name)
    facts = shelf.card(name)
    x = load_images(facts.data, "train", root).tensors()[0]
    order = np.random.RandomState(seed).permutation(len(x))[:_FITTED]
    say(f"fitting on {len(order)} training images of {facts.data}")
    fitted = control(network, ["input"], embedding=SpectralEmbedding(), solver=Feedback())
    fitted.fit(x[torch.from_numpy(order)])
    clean = load_images(facts.data, "heldout", root).tensors()[0]
    test, labels = load_images(facts.data, "test", root).tensors()
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for preset in PRESETS:
        robust = fitted.configure(solver=Feedback(preset=preset))  # type: ignore[arg-type]
        robust.calibrate(torch.split(clean, _BATCH), alpha=_ALPHA)
        path = out / f"{name}-{preset}.safetensors"
        with replacing(path) as partial:
            robust.save(partial)
            content = hashlib.sha256(partial.read_bytes()).hexdigest()
        right, flagged = accuracy(robust, test, labels), _flagged(robust, test)
        card = Fitted(
            network=name,
            preset=preset,
            command=f"clcnn harden {name} --seed {seed}",
            seed=seed,
            fitted_on=len(order),
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
        written.append(path)
    return written


def _flagged(robust: ControlledModule, x: Tensor) -> float:
    """Percent of images that the detector flags."""
    flags = [robust.detect(images).flagged for images in torch.split(x, _BATCH)]
    return 100 * float(torch.cat(flags).double().mean())
