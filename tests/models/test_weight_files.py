"""Weight files: what is refused, and that every shipped one is what its card says."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import clcnn.models as models
from clcnn.data import HELDOUT_SEED, sample
from clcnn.errors import LoadError
from clcnn.models import ResNet20, shelf
from clcnn.models.cards import Attacked, Card
from clcnn.models.weights import header, read_weights
from clcnn.training.measure import accuracy

FACTS = {"kind": "weights", "name": "mine", "network": "resnet20"}
SHAPE = {"in_channels": 3, "num_classes": 10}

FLOORS = {
    "resnet20-cifar10": 90.5,
    "resnet20-cifar10-labelsmooth": 90.5,
    "resnet20-cifar10-longer": 90.5,
    "resnet20-cifar10-fgsm": 87.0,
    "resnet20-cifar10-pgd": 76.0,
    "densenet40-cifar10": 88.0,
    "resnet20-fashion-mnist": 92.0,
}
"""The least clean accuracy, in percent of all test images, that a shipped network must have."""

ROUNDING = 3
"""Of a thousand images, how many may change sides on another processor."""


def write(path: Path, network: torch.nn.Module, facts: dict[str, object]) -> Path:
    save_file(network.state_dict(), path, metadata=header(facts))
    return path


def card(**changes: object) -> Card:
    plain = Card(
        name="mine",
        network="resnet20",
        data="cifar10",
        method="standard",
        command="clcnn train resnet20",
        seed=0,
        epochs=1,
        started_from=None,
        heldout_seed=1,
        parameters=2,
        sha256="0",
        test_images=10_000,
        test_accuracy=50.0,
        sample_correct=500,
        attacked=(Attacked("PGD", 4, 20, 100, 1.5),),
        notes=("one",),
    )
    return replace(plain, **changes)


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    network = ResNet20(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)).eval()
    path = write(tmp_path / "w.safetensors", network, FACTS | SHAPE)
    again, facts = read_weights(path)
    assert facts["name"] == "mine"
    assert not again.training
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(again(x), network(x))


def test_corrupt_foreign_and_other_files(tmp_path: Path) -> None:
    path = write(tmp_path / "w.safetensors", ResNet20(), FACTS | SHAPE)
    content = path.read_bytes()
    path.write_bytes(content[:-1000])
    with pytest.raises(LoadError, match="truncated"):
        read_weights(path)
    path.write_bytes(b"\x80\x04\x95 a pickle")
    with pytest.raises(LoadError, match="not a readable safetensors file"):
        read_weights(path)
    with pytest.raises(LoadError, match="missing"):
        read_weights(tmp_path / "nothing")
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(LoadError, match="not written by clcnn"):
        read_weights(path)
    with pytest.raises(LoadError, match="another network than DenseNet40"):
        read_weights(write(path, ResNet20(), FACTS | SHAPE | {"network": "densenet40"}))
    with pytest.raises(LoadError, match="another network"):
        read_weights(write(path, ResNet20(), FACTS | SHAPE | {"num_classes": 100}))
    with pytest.raises(LoadError, match="expected a weight file"):
        read_weights(write(path, ResNet20(), {"kind": "checkpoint"}))


def test_cards_come_back(tmp_path: Path) -> None:
    path = tmp_path / "card.json"
    path.write_text(card().to_json())
    assert Card.read(path) == card()
    path.write_text('{"name": "half"}')
    with pytest.raises(LoadError, match="not a card"):
        Card.read(path)


@pytest.fixture
def own_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write(tmp_path / "mine.safetensors", ResNet20(), FACTS | SHAPE)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "mine.json").write_text(card(sha256=digest).to_json())
    monkeypatch.setattr(shelf, "SHELF", tmp_path)
    return tmp_path


def test_load_by_name(own_shelf: Path) -> None:
    assert models.list() == ["mine"]
    network = models.load("mine")
    assert network.card is not None
    assert network.card.epochs == 1
    assert not network.training
    with pytest.raises(LoadError, match="'other', expected one of mine"):
        models.load("other")


def test_weights_that_are_not_the_measured_ones(own_shelf: Path) -> None:
    write(own_shelf / "mine.safetensors", ResNet20(), FACTS | SHAPE)
    with pytest.raises(LoadError, match="card says"):
        models.load("mine")


def disagreement(name: str) -> str:
    """What a shipped weight file and its card disagree on; empty if nothing."""
    network = models.load(name)
    card = network.card
    assert card is not None
    x, y = sample(card.data).test
    correct = round(accuracy(network, x, y) * len(y) / 100)
    if abs(correct - card.sample_correct) > ROUNDING:
        return f"{correct} of the sample are right, the card says {card.sample_correct}"
    if sum(p.numel() for p in network.parameters()) != card.parameters:
        return "the number of parameters"
    # The sample is a part of the test images, so the two accuracies are close: 5 sigma.
    sigma = (card.test_accuracy * (100 - card.test_accuracy) / len(y)) ** 0.5
    if abs(100 * correct / len(y) - card.test_accuracy) > 5 * sigma + 0.5:
        return "sample and test accuracy are far apart"
    return ""


SHIPPED = models.list()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_are_what_their_card_says(name: str) -> None:
    assert disagreement(name) == ""
    facts = shelf.card(name)
    assert facts.name == name
    assert facts.test_images == 10_000
    assert facts.heldout_seed == HELDOUT_SEED
    assert facts.command.startswith(f"clcnn train {facts.network} --data {facts.data}")
    assert facts.test_accuracy >= FLOORS[name]
    if facts.started_from is not None:
        assert facts.started_from in facts.command
        assert any(facts.started_from in note for note in facts.notes)


@pytest.mark.parametrize("name", SHIPPED[:1])
def test_a_card_of_other_weights_is_noticed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(shelf.SHELF / f"{name}.safetensors", tmp_path)
    wrong = replace(shelf.card(name), sample_correct=shelf.card(name).sample_correct - 20)
    (tmp_path / f"{name}.json").write_text(wrong.to_json())
    monkeypatch.setattr(shelf, "SHELF", tmp_path)
    assert "the card says" in disagreement(name)


def withstood(name: str, attack: str, eps: float) -> float:
    rows = shelf.card(name).attacked
    row = next(row for row in rows if row.attack == attack and row.eps == eps)
    assert row.images == 10_000
    return row.accuracy


@pytest.mark.skipif("resnet20-cifar10-fgsm" not in SHIPPED, reason="weights not shipped yet")
def test_fgsm_training_overfits_to_its_attack_and_says_so() -> None:
    name = "resnet20-cifar10-fgsm"
    assert withstood(name, "FGSM", 4) > 80
    assert any("overfitting" in note and "PGD" in note for note in shelf.card(name).notes)


@pytest.mark.skipif("resnet20-cifar10-pgd" not in SHIPPED, reason="weights not shipped yet")
def test_pgd_training_withstands_pgd() -> None:
    assert withstood("resnet20-cifar10-pgd", "PGD", 4) >= 52
    assert withstood("resnet20-cifar10-pgd", "PGD", 8) >= 30


def test_all_shipped_files_have_a_card_and_are_small() -> None:
    files = list(shelf.SHELF.glob("*")) if shelf.SHELF.exists() else []
    assert {f.stem for f in files if f.suffix == ".json"} == set(SHIPPED)
    assert sum(f.stat().st_size for f in files) <= 20e6
