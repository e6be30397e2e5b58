"""A card says what its weights do: every figure is counted again here."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_images import pair, tiny_images

from clcnn import cli
from clcnn.attacks import FGSM, PGD
from clcnn.data import Sample
from clcnn.errors import DataError
from clcnn.models import Card, read_weights
from clcnn.training import Settings, measure, train

TINY = Settings("resnet20", "tiny", epochs=2, batch_size=16, lr=0.05)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    test = tiny_images(60, 7)
    some = tiny_images(30, 8).tensors()
    monkeypatch.setattr(measure, "load", lambda name, split, root: test)
    monkeypatch.setattr(measure, "sample", lambda name: Sample(train=some, test=some))
    monkeypatch.setattr(measure, "_EPSILONS", (8,))


def test_every_figure(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "shelf"
    train(TINY, run, images=pair())
    path = measure.write_card(run, out, attacked=20)
    card = Card.read(path)
    weights = out / "resnet20-tiny.safetensors"
    assert path == out / "resnet20-tiny.json"
    assert card.sha256 == hashlib.sha256(weights.read_bytes()).hexdigest()
    network, _ = read_weights(weights)
    x, y = tiny_images(60, 7).tensors()
    right = int((network(x).argmax(1) == y).sum())
    assert (card.test_images, card.test_accuracy) == (60, pytest.approx(100 * right / 60))
    for row, attack in zip(card.attacked, (FGSM(8 / 255), PGD(8 / 255)), strict=True):
        left = int((network(attack(network, x[:20], y[:20])).argmax(1) == y[:20]).sum())
        assert (row.attack, row.eps, row.images) == (type(attack).__name__, 8, 20)
        assert row.accuracy == pytest.approx(5 * left)
    xs, ys = tiny_images(30, 8).tensors()
    assert card.sample_correct == int((network(xs).argmax(1) == ys).sum())
    assert card.command == TINY.command
    assert card.training == TINY.to_dict()
    assert card.notes == ()


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fgsm", "overfitting to that attack. 20-step PGD"),
        ("pgd", "7 steps of 2/255 inside a ball"),
    ],
)
def test_notes(tmp_path: Path, method: str, words: str) -> None:
    first = train(replace(TINY, epochs=1), tmp_path / "first", images=pair())
    settings = replace(TINY, epochs=2, method=method, eps_start=12, sizes="4x1")
    train(settings, tmp_path / "run", images=pair(), start=first)
    card = Card.read(measure.write_card(tmp_path / "run", tmp_path / "run", attacked=4))
    assert card.started_from == str(first)  # a file of the user's, not a name that we ship
    assert f"started from the weights of {first}" in card.notes[0]
    assert "from 12/255 to" in card.notes[1]
    assert "smaller images (4x1" in card.notes[2]
    assert words in card.notes[3]


def test_a_card_where_no_sample_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(name: str) -> Sample:
        raise DataError(f"no sample of {name!r} comes with the package")

    monkeypatch.setattr(measure, "sample", none)
    train(replace(TINY, epochs=1), tmp_path / "run", images=pair())
    assert cli.run(["card", str(tmp_path / "run"), "--attacked", "4", "--json"]) == 0
    written = tmp_path / "run" / "resnet20-tiny.json"
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(written.read_text())
    assert "clean:" in said.err
    assert Card.read(written).sample_correct is None
