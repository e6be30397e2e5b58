"""A network that learns in a second, its images, and a plan over it."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from clcnn.evaluation import Plan, Store, Workshop
from clcnn.evaluation.plan import parse
from clcnn.evaluation.tables import Table

TEXT = """
name = "tiny"
seed = 3
n = 20
chunk = 8

[networks.tiny]
weights = "tiny"
data = "mnist"

[defences.linear]
cuts = ["input", "middle", "head"]
embedding = { kind = "linear", energy = 0.8 }
solver = { kind = "pmp", iterations = 3, lr = 0.05 }
fit = { images = 60 }

[attacks.fgsm]
kind = "fgsm"

[attacks.noise]
kind = "noise"

[[grid]]
attacks = ["none", "fgsm", "noise"]
eps = [20, 40]
"""


class Tiny(nn.Sequential):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 3, 3, 2, 1), nn.Tanh())
        self.middle = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """8 x 8 noise with one bright quarter, which is the class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 4, (count,), generator=generator)
    x = 0.6 * torch.rand(count, 1, 8, 8, generator=generator)
    for image, label in zip(x, y.tolist(), strict=True):
        image[:, 4 * (label // 2) :, 4 * (label % 2) :][:, :4, :4] += 0.25
    return x.clamp(0, 1), y


@cache
def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.enable_grad():  # whoever is the first to ask
        torch.manual_seed(seed)
        model = Tiny()
        x, y = pictures(200, 10)
        optimiser = torch.optim.Adam(model.parameters(), 0.02)
        for _ in range(30):
            optimiser.zero_grad()
            cross_entropy(model(x), y).backward()
            optimiser.step()
    return model.eval()


def workshop(seed: int = 0) -> Workshop:
    images = {"train": pictures(80, 1), "heldout": pictures(40, 2), "test": pictures(40, 3)}
    return Workshop(networks={"tiny": network(seed)}, images={"mnist": images})


def plan(text: str = TEXT, folder: Path | None = None) -> Plan:
    return parse(Table("plan.toml", "", tomllib.loads(text)), folder or Path())


def stored(path: Path, defence: str, attack: str, eps: float, threat: str) -> dict[int, tuple]:
    """What a store holds of a cell, by the sample's place."""
    with Store(path) as store:
        cell = store.read(
            "SELECT cell FROM entries WHERE defence = ? AND attack = ? AND eps = ? AND threat = ?",
            defence,
            attack,
            eps,
            threat,
        )[0][0]
        rows = store.read(
            "SELECT sample, label, predicted, correct, cost, before, after, linf, l2, broken_by "
            "FROM samples WHERE cell = ?",
            cell,
        )
    return {row[0]: row[1:] for row in rows}
