"""The trained networks that come with the package."""

from __future__ import annotations

import builtins
import hashlib
from pathlib import Path

from clcnn.errors import LoadError
from clcnn.models.cards import Card
from clcnn.models.layers import Classifier
from clcnn.models.weights import read_weights

SHELF = Path(__file__).parent / "weights"


def list() -> builtins.list[str]:
    """The names that `load` knows."""
    return sorted(path.stem for path in SHELF.glob("*.safetensors"))


def card(name: str) -> Card:
    """The card of a trained network."""
    if name not in list():
        raise LoadError(f"no weights called {name!r}, expected one of {', '.join(list()) or '-'}")
    return Card.read(SHELF / f"{name}.json")


def load(name: str) -> Classifier:
    """The trained network called ``name``, in eval mode, with its card at ``.card``."""
    facts = card(name)
    path = SHELF / f"{name}.safetensors"
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != facts.sha256:
        raise LoadError(
            f"{path.name} has SHA-256 {found}, but its card says {facts.sha256}: the file is "
            "damaged or not the one that was measured. Install the package again."
        )
    network, _ = read_weights(path)
    network.card = facts
    return network
