"""Trained networks with their feedback control, fitted and calibrated: ready to use."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from clcnn.control import ControlledModule
from clcnn.errors import LoadError
from clcnn.gradients import GradMode
from clcnn.loading import load as load_control
from clcnn.models import shelf
from clcnn.persistence import fingerprint
from clcnn.solvers.feedback import PresetName

SHELF = Path(__file__).parent / "hardened"


@dataclass(frozen=True)
class Fitted:
    """The facts of one file of fitted control; accuracies in percent, on all test images."""

    network: str
    preset: str
    embedding: str
    authority: float  # the share of what it sees that feedback acts upon
    strength: float  # the preset's, when this was written
    floor: float
    command: str  # that makes it again
    seed: int  # of the network behind the filter
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

    preset: "default" costs at most a point of clean accuracy, "strong" does most against
        perturbations (docs/feedback.md has the figures). A network that control would harm is left
        nearly alone by both, with a warning; its detector works all the same.
    grad: what a backward pass gives, as in `clcnn.control`.
    """
    file(name, preset)  # what is not there is said before any weights are read
    robust = around(shelf.load(name), name, preset)
    for sentence in robust.remarks():
        warnings.warn(sentence, stacklevel=2)
    return robust if grad is None else robust.configure(grad=grad)


def around(network: torch.nn.Module, name: str, preset: str) -> ControlledModule:
    """The shipped control of the network called ``name``, around that network itself."""
    path, facts = file(name, preset)
    shelf.check_content(path, facts.sha256)
    if fingerprint(network) != fingerprint(shelf.load(name)):
        raise LoadError(
            f"found other weights than those shipped as {name!r}, on which its control was fitted; "
            "expected these. Fit one of your own: clcnn.control(model, ['input'], "
            "embedding=clcnn.SpectralEmbedding(), solver=clcnn.Feedback()).fit(clean data)."
        )
    return load_control(path, network)


def file(name: str, preset: str) -> tuple[Path, Fitted]:
    """Where the shipped control is, and its facts."""
    known = names()
    if name not in known:
        raise LoadError(
            f"no hardened network called {name!r}, expected one of {', '.join(known) or '-'}. Make "
            "your own: clcnn.harden(model, clean data)."
        )
    if preset not in known[name]:
        raise LoadError(
            f"no preset {preset!r} of {name!r}, expected one of {', '.join(known[name])}."
        )
    path = SHELF / f"{name}-{preset}.safetensors"
    return path, Fitted.read(path.with_suffix(".json"))
