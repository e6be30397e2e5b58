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
    check_content(path, facts.sha256)
    network, _ = read_weights(path)
    network.card = facts
    return network


def check_content(path: Path, sha256: str) -> None:
    """Raise where a file is not the one that its card was written for."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != sha256:
        raise LoadError(
            f"{path.name} has SHA-256 {found}, but its card says {sha256}: the file is damaged or "
            "not the one that was measured. Install the package again."
        )
