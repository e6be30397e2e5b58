"""`clcnn attack`: figures are the library's own, threats are named, examples are kept."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import clcnn
from clcnn import ControlledModule, cli
from clcnn.attacks import FGSM, PGD, Noise, StraightThrough, Unrolled
from clcnn.data import sample
from clcnn.data.files import StorageError
from clcnn.embeddings import LinearEmbedding
from clcnn.evaluation import once
from clcnn.evaluation.once import measure
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
    assert rows[1]["accuracy"] == pytest.approx(100 * float(right), abs=0.001)
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
    assert cli.run(["attack", "resnet21"]) == 2
    assert "neither a network that comes with the package nor a file" in capsys.readouterr().err
    assert cli.run(["attack", NETWORK, "--control", str(tmp_path / "none"), "--n", "2"]) == 1
    assert "none" in capsys.readouterr().err
    assert cli.run(["attack", NETWORK, "--n", "5000"]) == 2
    assert "of which there are 1000" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused_before_the_attack(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("attacked before the path was looked at")

    monkeypatch.setattr(once, "measure", never)
    (tmp_path / "file").touch()
    assert cli.run(["attack", NETWORK, "--n", "2", "--out", str(tmp_path)]) == 2
    assert "directory" in capsys.readouterr().err
    inside_a_file = tmp_path / "file" / "examples.safetensors"
    assert cli.run(["attack", NETWORK, "--n", "2", "--out", str(inside_a_file)]) == 1
    assert "StorageError: cannot write" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_figures_are_printed_even_if_the_disk_fills_up(
    as_json: list[str],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(sys.modules["clcnn.cli.attack"], "_keep", full)
    arguments = ["--attack", "fgsm", "--n", "2", "--out", str(tmp_path / "examples")]
    assert cli.run(["attack", NETWORK, *arguments, *as_json]) == 1
    captured = capsys.readouterr()
    assert "uncontrolled" in captured.out
    assert "attacked" in captured.out
    assert "written" not in captured.out
    assert "the disk is full" in captured.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seed", str(2**32)], "4294967295"),
        (["--eps", "inf"], "expected a finite --eps"),
    ],
)
def test_options_that_make_no_sense(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["attack", NETWORK, "--n", "2", *arguments]) == 2
    assert message in capsys.readouterr().err


def small() -> tuple[nn.Module, Tensor, Tensor, ControlledModule]:
    """A network of two layers, images that it gets right, and itself under control."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.Tanh(), nn.Linear(16, 4)).eval()
    x = torch.rand(80, 3, 4, 4)
    with torch.no_grad():
        y = layers(x).argmax(1)
    robust = clcnn.control(
        layers, ["input"], embedding=LinearEmbedding(rank=40), solver=clcnn.PMP(iterations=2)
    )
    return layers, x, y, robust.fit(x)


def test_the_adaptive_row_is_of_this_attack_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    layers, x, y, robust = small()
    runs: list[str] = []
    for cls in (FGSM, PGD, Noise):
        run = cls.run

        def counted(self, model, *rest, run=run, name=cls.__name__):  # type: ignore[no-untyped-def]
            runs.append(name)
            return run(self, model, *rest)

        monkeypatch.setattr(cls, "run", counted)
    eps = 0.05
    found = measure(layers, FGSM(eps), x, y, robust)
    assert runs == ["FGSM"] * 3  # on the plain network, straight-through, unrolled
    with torch.no_grad():
        tried = [found.examples["oblivious"]]
        tried += [a(FGSM(eps))(robust, x, y) for a in (StraightThrough, Unrolled)]
        right = torch.stack([robust(images).argmax(1) == y for images in (x, *tried)]).all(0)
    assert found.rows[4]["threat"] == "adaptive"
    assert found.rows[4]["accuracy"] == pytest.approx(float(right.double().mean()))
    assert 0.1 < float(right.double().mean()) < 0.9
    # what was withstood is kept as it was last tried, not as the clean image
    assert torch.allclose(found.examples["adaptive"][right], tried[-1][right], atol=1e-6)
    runs.clear()
    measure(layers, Noise(eps), x, y, robust)
    assert runs == ["Noise"] * 2


def test_signs_of_a_misleading_attack_are_shown() -> None:
    layers, x, y, robust = small()
    sizes: list[int] = []

    def rounded(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return layers((255 * x).round() / 255)

    class Rounded(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return rounded(x)

    found = measure(Rounded().eval(), FGSM(0.05), x, y, None)
    assert found.warnings[0].startswith("uncontrolled, zero gradients: 64 of 64 samples")
    assert max(sizes[:3]) == 64
    assert measure(layers, FGSM(0.05), x, y, robust).warnings == []
    assert measure(layers, PGD(0.5, norm="l2"), x, y, None).warnings == []
    assert measure(layers, FGSM(0.0), x, y, None).warnings == []
