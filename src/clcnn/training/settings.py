"""Everything that decides the outcome of a training; two equal settings give equal weights."""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, fields
from math import inf
from typing import Any

import torch

from clcnn.errors import DataError
from clcnn.models.layers import SMALLEST

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
"""Those in which weights stay float32, as all else here takes them."""

METHODS = ("standard", "labelsmooth", "fgsm", "pgd")

_POSITIVE_IF_GIVEN = ("eps", "eps_start", "step_size", "steps")

_ATTACK_DEFAULTS: dict[str, dict[str, Any]] = {
    "fgsm": {"eps": 4.0},
    # The paper's "7-step of epsilon = 2": 2 is the step inside a ball of 8.
    "pgd": {"eps": 8.0, "step_size": 2.0, "steps": 7, "random_start": True},
}


@dataclass(frozen=True)
class Settings:
    """One training; epsilon and step size are in units of 1/255, None where the method has none.

    ``clean_weight`` is the paper's lambda: the share of the clean loss in adversarial training.
    ``eps_start`` is another radius to begin with, moved to ``eps`` over the first half.
    ``sizes`` are the edges of smaller images to begin with: "20x3,24x2" is three epochs of
    20 x 20 pixels, two of 24 x 24, the rest at full size (a small image costs less).
    """

    network: str
    data: str
    method: str = "standard"
    epochs: int = 40
    batch_size: int = 128
    lr: float = 0.2
    momentum: float = 0.9
    weight_decay: float = 5e-4
    sizes: str = ""
    seed: int = 0
    clean_weight: float = 0.5
    eps: float | None = None
    eps_start: float | None = None
    step_size: float | None = None
    steps: int | None = None
    random_start: bool | None = None
    started_from: str | None = None
    processes: int = 1
    nodes: int = 1
    precision: str = "32-true"
    channels_last: bool = True
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise DataError(f"method {self.method!r} is unknown, expected one of {METHODS}")
        for name in ("epochs", "batch_size", "lr", "processes", "nodes", *_POSITIVE_IF_GIVEN):
            value = getattr(self, name)
            if value is not None and not 0 < value < inf:
                raise DataError(f"expected {name} > 0, got {value}")
        if not 0 <= self.momentum < 1 or not 0 <= self.weight_decay < inf:
            raise DataError(
                f"expected momentum in [0, 1) and weight_decay >= 0, got {self.momentum} and "
                f"{self.weight_decay}"
            )
        if not 0 <= self.seed < 2**32:
            raise DataError(f"expected a seed from 0 to 2^32 - 1, got {self.seed}")
        if self.precision not in PRECISIONS:
            raise DataError(
                f"precision {self.precision!r} is unknown, expected one of {PRECISIONS}"
            )
        if self.batch_size % (self.processes * self.nodes):
            raise DataError(
                f"batch size {self.batch_size} cannot be shared by {self.processes} processes on "
                f"{self.nodes} nodes: choose a multiple of {self.processes * self.nodes}"
            )
        if not 0 <= self.clean_weight <= 1:
            raise DataError(f"expected clean_weight in [0, 1], got {self.clean_weight}")
        object.__setattr__(self, "sizes", self.sizes.replace(" ", ""))
        small = sum(epochs for _, epochs in _stages(self.sizes))
        if small >= self.epochs:
            raise DataError(
                f"sizes {self.sizes!r} are of {small} epochs of {self.epochs}: the last ones must "
                "be of the full size"
            )
        defaults = _ATTACK_DEFAULTS.get(self.method, {})
        if self.eps_start is not None and not defaults:
            raise DataError(f"eps_start has no meaning for method {self.method!r}: leave it out")
        for name in ("eps", "step_size", "steps", "random_start"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, defaults.get(name))
            elif name not in defaults:
                raise DataError(f"{name} has no meaning for method {self.method!r}: leave it out")

    def radius(self, epoch: int) -> float | None:
        """Epsilon in ``epoch`` (from 0): a straight line from eps_start to eps, then eps."""
        if self.eps is None or self.eps_start is None:
            return self.eps
        progress = min(1.0, epoch / (self.epochs / 2))
        return self.eps_start + (self.eps - self.eps_start) * progress

    def edge(self, epoch: int) -> int | None:
        """The edge in pixels of the images of ``epoch`` (from 0), None for the full size."""
        for edge, epochs in _stages(self.sizes):
            if epoch < epochs:
                return edge
            epoch -= epochs
        return None

    @property
    def name(self) -> str:
        """What the trained network is called: resnet20-cifar10, resnet20-cifar10-pgd ..."""
        suffix = "" if self.method == "standard" else f"-{self.method}"
        return f"{self.network}-{self.data}{suffix}"

    @property
    def command(self) -> str:
        """The command that repeats this training."""
        plain = Settings(self.network, self.data, self.method)
        words = ["clcnn", "train", self.network, "--data", self.data, "--method", self.method]
        words += ["--epochs", str(self.epochs), "--seed", str(self.seed)]
        for field, flag in _FLAGS.items():
            value = getattr(self, field)
            if value == getattr(plain, field):
                continue
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", str(value)]
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    def differences(self, other: dict[str, Any]) -> list[str]:
        """Sentences on what differs from the settings stored in ``other``."""
        mine = self.to_dict()
        defaults = {f.name: f.default for f in fields(self)}
        stored = {name: other.get(name, defaults[name]) for name in mine}
        return [
            f"{name} was {stored[name]!r}, now {mine[name]!r}"
            for name in mine
            if stored[name] != mine[name]
        ]


_FLAGS = {
    "batch_size": "batch-size",
    "lr": "lr",
    "momentum": "momentum",
    "weight_decay": "weight-decay",
    "sizes": "sizes",
    "clean_weight": "clean-weight",
    "eps": "eps",
    "eps_start": "eps-start",
    "step_size": "step-size",
    "steps": "steps",
    "random_start": "random-start",
    "started_from": "from",
    "processes": "processes",
    "nodes": "nodes",
    "precision": "precision",
    "channels_last": "channels-last",
    "compiled": "compile",
}


def _stages(sizes: str) -> list[tuple[int, int]]:
    """Edges and their epochs: "20x3,24x2" is [(20, 3), (24, 2)]."""
    stages = []
    for part in filter(None, sizes.split(",")):
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", part)
        if found is None:
            raise DataError(
                f"sizes {sizes!r} are not understood, expected EDGExEPOCHS with commas: 20x3,24x2"
            )
        stages.append((int(found[1]), int(found[2])))
    if min((edge for edge, _ in stages), default=SMALLEST) < SMALLEST:
        raise DataError(f"sizes {sizes!r}: expected edges of at least {SMALLEST} pixels")
    return stages


def generator(*where: int | str) -> torch.Generator:
    """Random numbers that depend on ``where`` alone (seed, epoch, purpose ...).

    Since no stream runs on from epoch to epoch, a resumed training needs none restored.
    """
    digest = hashlib.sha256(repr(where).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
