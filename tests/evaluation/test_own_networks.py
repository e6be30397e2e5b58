"""Networks and images of one's own, and what a plan asks for that is not there."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tiny import TEXT, network, pictures, plan, workshop
from torch import nn

import clcnn
from clcnn.evaluation import (
    PlanError,
    Workshop,
    run,
)
from clcnn.models.weights import header


def test_what_a_plan_asks_for_and_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"n = 41 .* of which there are 40"):
        run(plan(TEXT.replace("n = 20", "n = 41")), tmp_path / "r.sqlite", workshop=workshop())
    with pytest.raises(PlanError, match="neither a network that comes with the package nor a file"):
        run(plan(), tmp_path / "r.sqlite", workshop=Workshop())


def test_images_and_a_network_of_ones_own(tmp_path: Path) -> None:
    images = {"train": pictures(80, 1), "test": pictures(40, 3)}
    mine = plan(TEXT.replace('data = "mnist"', 'data = "quarters"'))
    shop = Workshop(networks={"tiny": network()}, images={"quarters": images})
    own = run(mine, tmp_path / "own.sqlite", workshop=shop)
    known = run(plan(), tmp_path / "known.sqlite", workshop=workshop())
    assert [r.accuracy for r in own] == [r.accuracy for r in known]


def test_networks_of_two_folders_are_told_apart(tmp_path: Path) -> None:
    shop = Workshop(images={"mnist": {"train": pictures(80, 1), "test": pictures(40, 3)}})
    found = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = clcnn.models.ResNet20(in_channels=1, num_classes=4).eval()
        folder = tmp_path / str(seed)
        folder.mkdir()
        facts = {"network": "resnet20", "in_channels": 1, "num_classes": 4}
        save_file(model.state_dict(), folder / "net.safetensors", metadata=header(facts))
        mine = plan(TEXT.replace('weights = "tiny"', 'weights = "net.safetensors"'), folder)
        found.append(shop.network(mine, "tiny").fingerprint)
        given = Workshop(networks={"net.safetensors": model})
        assert given.network(mine, "tiny").fingerprint == found[-1], "handed over or read alike"
    assert found[0] != found[1]


def test_a_network_of_ones_own_that_is_none(tmp_path: Path) -> None:
    robust = clcnn.control(network(), ["input"]).fit(pictures(80, 1)[0])
    for given, words in (
        (network, "a _lru_cache_wrapper as the network 'tiny'"),
        (copy.deepcopy(network()).train(), "training mode"),
        (robust, "a controlled network"),
    ):
        shop = Workshop(networks={"tiny": given})  # type: ignore[dict-item]
        with pytest.raises(PlanError, match=words):
            run(plan(), tmp_path / "r.sqlite", workshop=shop)


class Twice(nn.Module):
    """Answers as many networks of detectors do: with more than logits."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return network()(x), x


class Broken(nn.Module):
    """Weights that a training ruined."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return network()(x) * torch.nan


def few(classes: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, classes)).eval()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Twice().eval(), "with <class 'tuple'>; expected logits, a tensor of shape"),
        (nn.Identity().eval(), r"with shape \(1, 1, .*; expected logits"),
        (Broken().eval(), "4 of the 4 logits of network .* are nan or infinite"),
        (few(3), "tells 3 classes apart, and 'mnist' has the label 3; expected the data set"),
        (clcnn.models.ResNet20().eval(), "cannot take the images of 'mnist'.*--data here"),
    ],
)
def test_a_network_that_does_not_fit_its_images_leaves_no_store(
    given: nn.Module, words: str, tmp_path: Path
) -> None:
    images = {"mnist": {"train": pictures(80, 1), "test": pictures(40, 3)}}
    with pytest.raises(PlanError, match=words):
        run(
            plan(),
            tmp_path / "r.sqlite",
            workshop=Workshop(networks={"tiny": given}, images=images),
        )
    assert not (tmp_path / "r.sqlite").exists()


def test_a_reactive_defence_that_has_no_input_leaves_no_store(tmp_path: Path) -> None:
    text = TEXT.replace('"input", "middle"', '"middle"').replace(
        '{ kind = "pmp", iterations = 3, lr = 0.05 }', '{ kind = "reactive" }'
    )
    with pytest.raises(PlanError, match=r"\[defences.linear\], cuts: found 'middle' as the first"):
        run(plan(text), tmp_path / "r.sqlite", workshop=workshop())
    assert not (tmp_path / "r.sqlite").exists()


@pytest.mark.parametrize("change", [("n = 20", "n = 41"), ("images = 60", "images = 81")])
def test_more_images_than_there_are_leave_no_store(change: tuple[str, str], tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"of which there are"):
        run(plan(TEXT.replace(*change)), tmp_path / "r.sqlite", workshop=workshop())
    assert not (tmp_path / "r.sqlite").exists()


X, Y = pictures(40, 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (X, ["found a Tensor", "a pair (x, y)"]),
        ((X, Y, Y), ["found a tuple", "a pair (x, y)"]),
        ((X.numpy(), Y), ["a ndarray and a Tensor"]),
        ((X > 0.5, Y), ["torch.bool", "as bytes"]),
        ((X[:, 0, 0, 0], Y), ["shape (40,)"]),
        ((X, Y[:30]), ["40 images and labels of shape (30,)"]),
        ((X, torch.nn.functional.one_hot(Y)), ["labels of shape (40, 4)", "one class a sample"]),
        ((X, Y.double()), ["labels of torch.float64", "from 0 on"]),
        ((X, Y - 1), ["from 0 on"]),
        ((255 * X, Y), ["pixels from", "[0, 1]"]),
        ((2 * X - 1, Y), ["pixels from -", "[0, 1]"]),
        ((X + torch.tensor(torch.nan), Y), ["nan", "finite"]),
    ],
)
def test_images_of_ones_own_that_are_none(given: Any, words: list[str], tmp_path: Path) -> None:
    shop = Workshop(networks={"tiny": network()}, images={"mnist": {"test": given}})
    with pytest.raises(PlanError) as error:
        run(plan(), tmp_path / "r.sqlite", workshop=shop)
    for word in ["'mnist', 'test'", *words]:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("data", "images", "words"),
    [
        ("minst", {}, ["found data = 'minst'", "fashion-mnist", "Did you mean 'mnist'?"]),
        ("quarter", {"quarters": {}}, ["Workshop(images={'quarter'", "Did you mean 'quarters'?"]),
        ("quarters", {"quarters": {"train": pictures(80, 1)}}, ["no 'test'", "(train)"]),
    ],
)
def test_images_that_are_not_there(
    data: str, images: Any, words: list[str], tmp_path: Path
) -> None:
    lost = plan(TEXT.replace('data = "mnist"', f'data = "{data}"'))
    shop = Workshop(networks={"tiny": network()}, images=images)
    with pytest.raises(PlanError) as error:
        run(lost, tmp_path / "r.sqlite", workshop=shop)
    for word in words:
        assert word in str(error.value)


def test_a_fit_on_fewer_images_than_asked_for_is_said() -> None:
    small, shop = replace(plan(), sample=True), workshop()
    with pytest.warns(UserWarning, match="the shipped sample has 80: the fit is on these"):
        assert shop.images(small, "tiny", "train", 200, 0).count == 80
    with pytest.raises(PlanError, match="of which there are 80"):
        shop.images(plan(), "tiny", "train", 200, 0)
