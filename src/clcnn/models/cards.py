"""A card says where a weight file comes from and what it was measured to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from clcnn.errors import LoadError


@dataclass(frozen=True)
class Attacked:
    """Accuracy in percent on the first ``images`` test images under an l_inf attack."""

    attack: str
    eps: float
    steps: int
    images: int
    accuracy: float


@dataclass(frozen=True)
class Card:
    """The facts of one weight file; accuracies in percent, epsilons in units of 1/255."""

    name: str
    network: str
    data: str
    method: str
    command: str  # that trains it again
    seed: int
    epochs: int
    started_from: str | None  # name (of ours) or file of the weights that training started from
    heldout_seed: int  # of the training images that no training saw
    parameters: int
    sha256: str  # of the weight file
    test_images: int
    test_accuracy: float
    sample_correct: int | None  # of the test images in the shipped sample of the same data
    attacked: tuple[Attacked, ...] = ()
    notes: tuple[str, ...] = ()
    training: dict[str, Any] = field(default_factory=dict)  # every setting of the run
    versions: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The card as it is stored."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Card:
        """The card stored at ``path``."""
        try:
            content = json.loads(path.read_text())
            content["notes"] = tuple(content.get("notes", ()))
            content["attacked"] = tuple(Attacked(**row) for row in content.get("attacked", ()))
            return cls(**content)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            names = ", ".join(f.name for f in fields(cls))
            raise LoadError(
                f"{path} is not a card ({error}), expected a JSON object with {names}. Write it "
                "again with `clcnn card`."
            ) from error
