"""Measure trained weights on the test images and write their card."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clcnn.attacks import FGSM, PGD, Attack
from clcnn.data.datasets import HELDOUT_SEED, load
from clcnn.data.files import replacing, write_text
from clcnn.data.sample import sample
from clcnn.errors import DataError
from clcnn.models.cards import Attacked, Card
from clcnn.models.weights import read_weights
from clcnn.training.loop import WEIGHTS

_EPSILONS = (2, 4, 8)
_STEPS = 20
_BATCH = 250


def write_card(
    run: Path,
    out: Path,
    attacked: int,
    root: str | Path | None = None,
    device: str | torch.device = "cpu",
    say: Callable[[str], None] = lambda message: None,
) -> Path:
    """Put the weights of ``run`` and the card that they earn into ``out``; return the card."""
    source = run / WEIGHTS
    network, facts = read_weights(source)
    network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    settings = facts["settings"]
    x, y = (part.to(device) for part in load(settings["data"], "test", root).tensors())
    clean = accuracy(network, x, y)
    say(f"clean: {clean:.2f} % of {len(y)}")
    rows = []
    for eps in _EPSILONS:
        for attack in (FGSM(eps / 255), PGD(eps / 255, steps=_STEPS)):
            row = _attacked(network, attack, x[:attacked], y[:attacked], eps)
            say(f"{row.attack}, {row.steps} steps, eps {eps}: {row.accuracy:.2f} %")
            rows.append(row)
    content = source.read_bytes()
    card = Card(
        name=facts["name"],
        network=facts["network"],
        data=settings["data"],
        method=settings["method"],
        command=facts["command"],
        seed=settings["seed"],
        epochs=settings["epochs"],
        started_from=settings["started_from"],
        heldout_seed=HELDOUT_SEED,
        parameters=sum(p.numel() for p in network.parameters()),
        sha256=hashlib.sha256(content).hexdigest(),
        test_images=len(y),
        test_accuracy=clean,
        sample_correct=_of_sample(network, settings["data"]),
        attacked=tuple(rows),
        notes=_notes(settings, rows),
        training=settings,
        versions={"torch": torch.__version__, "python": platform.python_version()},
    )
    target = out / f"{card.name}.safetensors"
    with replacing(target) as partial:
        shutil.copyfile(source, partial)
    path = out / f"{card.name}.json"
    write_text(path, card.to_json())
    return path


@torch.no_grad()
def accuracy(network: nn.Module, x: Tensor, y: Tensor) -> float:
    """The percentage of images that the network gets right; all are on one device."""
    return 100 * _correct(network, x, y) / len(x)


def _of_sample(network: nn.Module, data: str) -> int | None:
    """How many of the shipped sample's test images are right; None where no sample is shipped."""
    try:
        x, y = sample(data).test
    except DataError:
        return None
    device = next(network.parameters()).device
    return _correct(network, x.to(device), y.to(device))


@torch.no_grad()
def _correct(network: nn.Module, x: Tensor, y: Tensor) -> int:
    batches = zip(torch.split(x, _BATCH), torch.split(y, _BATCH), strict=True)
    return sum(int((network(images).argmax(1) == labels).sum()) for images, labels in batches)


def _attacked(network: nn.Module, attack: Attack, x: Tensor, y: Tensor, eps: float) -> Attacked:
    steps = attack.steps if isinstance(attack, PGD) else 1
    left = accuracy(network, attack(network, x, y), y)
    return Attacked(type(attack).__name__, eps, steps, len(y), left)


def _notes(settings: dict[str, Any], rows: list[Attacked]) -> tuple[str, ...]:
    notes = []
    if settings["started_from"]:
        notes.append(f"Training started from the weights of {settings['started_from']}.")
    if settings.get("eps_start") is not None:  # absent in older weight files
        notes.append(
            f"The radius went from {settings['eps_start']:g}/255 to {settings['eps']:g}/255 in a "
            "straight line over the first half of the epochs."
        )
    if settings.get("sizes"):
        notes.append(
            f"The first epochs saw smaller images ({settings['sizes']}: pixels x epochs), the "
            "last ones whole images."
        )
    if settings["method"] == "fgsm":
        pgd = min((row for row in rows if row.attack == "PGD"), key=lambda row: row.accuracy)
        notes.append(
            "Trained on FGSM without random start, as in the paper: its accuracy under FGSM is "
            f"overfitting to that attack. {pgd.steps}-step PGD at epsilon {pgd.eps:g} leaves "
            f"{pgd.accuracy:.2f} %."
        )
    if settings["method"] == "pgd":
        notes.append(
            f"Trained on {settings['steps']} steps of {settings['step_size']:g}/255 inside a ball "
            f"of {settings['eps']:g}/255."
        )
    return tuple(notes)
