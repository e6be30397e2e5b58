"""Untrained networks with the plans' names and cuts, small images for them, and tiny runs."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

from clcnn.evaluation import Workshop
from clcnn.experiments import blueprints
from clcnn.models import shelf

NETWORKS = tuple(blueprints.blueprint("table1").networks)


class Small(nn.Sequential):
    """3 x 8 x 8 images, cut as the ResNet is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.Tanh())
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3, 1, 1), nn.Tanh())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.Tanh())
        self.layer3 = nn.Sequential(nn.Conv2d(6, 6, 3, 1, 1), nn.Tanh())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(96, 5))


@cache
def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Small().eval()


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth noise, labelled by the untrained network itself: right on clean images."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(count, 3, 4, 4, generator=generator)
    x = nn.functional.interpolate(rough, size=8, mode="bilinear")
    with torch.no_grad():
        return x, network()(x).argmax(1)


def workshop(*names: str) -> Workshop:
    images = {"train": pictures(60, 1), "heldout": pictures(24, 2), "test": pictures(16, 3)}
    given = {name: network() for name in names or NETWORKS}
    return Workshop(networks=given, images=dict.fromkeys(("cifar10", "fashion-mnist"), images))


def shrink(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few images, one epsilon and short attacks, in the plans themselves; no shipped network."""
    read = blueprints._read
    monkeypatch.setattr(shelf, "list", list)

    def shrunk(name: str) -> blueprints.Values:
        values = read(name)
        for grid in values.get("grid", ()):
            grid["n"], grid["eps"] = 4, [2, 5] if name == "corruptions" else [8]
        values.pop("quick", None)
        for defence in values.get("defences", {}).values():
            preset = defence.pop("fit", {}).get("shipped")
            if preset:  # what is shipped is for larger images
                defence["cuts"] = ["input"]
                small = {"kind": "refined", "steps": 2, "widths": [4, 4, 4], "progress": False}
                defence["embedding"] = small
                defence.setdefault("solver", {"kind": "feedback", "preset": preset})
        if name == "adaptive":
            values["attacks"]["unrolled"]["steps"] = 2
        if name != "common":
            values["quick"] = {"n": 4, "fit": 40}
            return values
        values["defences"]["nonlinear"]["embedding"].update(epochs=1, channels=[4, 4])
        for defence in values["defences"].values():
            defence.setdefault("fit", {})["images"] = 40
        values["attacks"]["cw"].update(max_iter=2, largest_const=1e-4)
        values["attacks"]["cw-literal"].update(max_iter=2)
        values["attacks"]["manifold-literal"].update(max_iter=2)
        values["attacks"]["stealth"]["steps"] = 2
        values["attacks"]["square"]["queries"] = 4
        values["attacks"]["pgd"]["steps"] = values["attacks"]["margin"]["steps"] = 2
        values["attacks"]["manifold"]["steps"] = 2
        values["tuning"].update(images=4, chunk=4, iterations=[1, 2], confirm=6)
        for choice in values["tuning"]["choices"].values():
            choice["lr"] = [0.01]
        return values

    monkeypatch.setattr(blueprints, "_read", shrunk)
