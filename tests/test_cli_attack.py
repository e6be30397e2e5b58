"""`clcnn attack`: figures are the library's own, threats are named, examples are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import clcnn
from clcnn import cli
from clcnn.attacks import FGSM, PGD
from clcnn.data import sample
from clcnn.embeddings import LinearEmbedding
from clcnn.models import load

NETWORK = "resnet20-cifar10"


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert cli.run(["attack", NETWORK, *arguments, "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    found: dict[str, object] = json.loads(captured.out)
    return found


def test_a_plain_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "examples.safetensors"
    arguments = ["--attack", "fgsm", "--eps", "2", "--n", "24", "--out", str(out)]
    rows = printed(arguments, capsys)["rows"]
    assert isinstance(rows, list)
    assert [row["threat"] for row in rows] == ["clean", "attacked"]
    kept = load_file(out)
    x, y = kept["x"], kept["y"]
    network = load(NETWORK)
    assert torch.equal(kept["x_oblivious"], FGSM(2 / 255)(network, x, y))
    right = (network(kept["x_oblivious"]).argmax(1) == y).double().mean()
    assert rows[1]["accuracy"] == pytest.approx(float(right))
    assert rows[1]["low"] < rows[1]["accuracy"] < rows[1]["high"]
    every_test_image = {image.numpy().tobytes() for image in sample().test[0]}
    assert all(image.numpy().tobytes() in every_test_image for image in x)


def test_under_control_both_threats_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "robust.safetensors"
    network = load(NETWORK)
    solver = clcnn.PMP(iterations=1, lr=0.01)
    robust = clcnn.control(network, ["input"], embedding=LinearEmbedding(rank=200), solver=solver)
    robust.fit(sample().train[0][:300]).save(file)
    arguments = ["--eps", "1", "--steps", "2", "--n", "12", "--control", str(file)]
    out = tmp_path / "examples.safetensors"
    rows = printed([*arguments, "--out", str(out)], capsys)["rows"]
    assert isinstance(rows, list)
    assert [(row["defence"], row["threat"]) for row in rows] == [
        ("uncontrolled", "clean"),
        ("uncontrolled", "attacked"),
        ("controlled", "clean"),
        ("controlled", "oblivious"),
        ("controlled", "adaptive"),
    ]
    assert rows[4]["accuracy"] <= rows[3]["accuracy"]
    kept = load_file(out)
    assert torch.equal(kept["x_oblivious"], PGD(1 / 255, steps=2)(network, kept["x"], kept["y"]))
    assert cli.run(["attack", NETWORK, *arguments]) == 0
    text = capsys.readouterr().out
    assert "12 images of the shipped sample's test images" in text
    assert "controlled    adaptive" in text


def test_what_cannot_be_attacked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.run(["attack", "resnet21"]) == 1
    assert "neither a network that comes with the package nor a file" in capsys.readouterr().err
    assert cli.run(["attack", NETWORK, "--control", str(tmp_path / "none"), "--n", "2"]) == 1
    assert "none" in capsys.readouterr().err
    assert cli.run(["attack", NETWORK, "--n", "5000"]) == 1
    assert "of which there are 1000" in capsys.readouterr().err
