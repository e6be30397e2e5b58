"""Trained networks with their feedback control, fitted and calibrated: ready to use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clcnn.control import ControlledModule, control
from clcnn.data.datasets import HELDOUT_SEED
from clcnn.data.datasets import load as load_images
from clcnn.data.files import replacing, write_text
from clcnn.embeddings.spectral import SpectralEmbedding
from clcnn.errors import LoadError
from clcnn.gradients import GradMode
from clcnn.loading import load as load_control
from clcnn.models import shelf
from clcnn.solvers.feedback import PRESETS, Feedback, PresetName

SHELF = Path(__file__).parent / "hardened"
_FITTED = 5000
_ALPHA = 0.05
_BATCH = 250


@dataclass(frozen=True)
class Fitted:
    """The facts of one file of fitted control; accuracies in percent, on all test images."""

    network: str
    preset: str
    command: str  # that makes it again
    seed: int  # of the training images fitted on
    fitted_on: int
    calibrated_on: int  # held-out images, of which alpha may be flagged
    alpha: float
    heldout_seed: int
    weights_sha256: str  # of the network's weights
    sha256: str  # of this file
    test_images: int
    plain_accuracy: float
    controlled_accuracy: float
    false_alarms: float  # percent of test images that the detector flags

    @classmethod
    def read(cls, path: Path) -> Fitted:
        """The facts stored at ``path``."""
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            names = ", ".join(f.name for f in fields(cls))
            raise LoadError(
                f"{path} is not the card of a hardened network ({error}), expected a JSON object "
                f"with {names}. Write it again with `clcnn harden`."
            ) from error


def names() -> dict[str, list[str]]:
    """The networks that `hardened` knows, and the presets of each."""
    found: dict[str, list[str]] = {}
    for path in sorted(SHELF.glob("*.safetensors")):
        network, _, preset = path.stem.rpartition("-")
        found.setdefault(network, []).append(preset)
    return found


def hardened(
    name: str, preset: PresetName = "default", *, grad: GradMode | None = None
) -> ControlledModule:
    """The trained network called ``name`` under `Feedback` control, with a calibrated detector.

    preset: "default" costs least on clean images, "strong" does most against perturbations that
        show, "steady" against those too small to show (docs/feedback.md has the figures).
    grad: what a backward pass gives, as in `clcnn.control`.
    """
    file(name, preset)  # what is not there is said before any weights are read
    robust = around(shelf.load(name), name, preset)
    return robust if grad is None else robust.configure(grad=grad)


def around(network: torch.nn.Module, name: str, preset: str) -> ControlledModule:
    """The shipped control of the network called ``name``, around that network itself."""
    path, facts = file(name, preset)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != facts.sha256:
        raise LoadError(
            f"{path.name} has SHA-256 {found}, but its card says {facts.sha256}: the file is "
            "damaged or not the one that was measured. Install the package again."
        )
    return load_control(path, network)


def file(name: str, preset: str) -> tuple[Path, Fitted]:
    """Where the shipped control is, and its facts."""
    known = names()
    if name not in known:
        raise LoadError(
            f"no hardened network called {name!r}, expected one of {', '.join(known) or '-'}. Make "
            "your own: clcnn.control(model, ['input'], embedding=clcnn.SpectralEmbedding(), "
            "solver=clcnn.Feedback()).fit(clean data)."
        )
    if preset not in known[name]:
        raise LoadError(
            f"no preset {preset!r} of {name!r}, expected one of {', '.join(known[name])}."
        )
    path = SHELF / f"{name}-{preset}.safetensors"
    return path, Fitted.read(path.with_suffix(".json"))


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
        right, flagged = _measure(robust, test, labels)
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


def _measure(robust: ControlledModule, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Percent of images right, and flagged."""
    right = flagged = 0
    for images, labels in zip(torch.split(x, _BATCH), torch.split(y, _BATCH), strict=True):
        right += int((robust(images).argmax(1) == labels).sum())
        flagged += int(robust.detect(images).flagged.sum())
    return 100 * right / len(y), 100 * flagged / len(y)
