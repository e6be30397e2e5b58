"""Saving and loading: identical logits, and clear words for every file that does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from networks import build, inputs
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import clcnn
from clcnn import MSA, PMP, Greedy, LoadError, StagedDynamics


class Clamp(clcnn.Embedding):
    """A third party's embedding: the box that clean states fill."""

    def __init__(self, margin: float = 0.0) -> None:
        super().__init__()
        self.margin = margin

    def fit(self, states: object) -> Clamp:
        rows = torch.cat(list(states))
        self.register_buffer("low", rows.amin(0) - self.margin)
        self.register_buffer("high", rows.amax(0) + self.margin)
        return self

    def project(self, x: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(x, self.high), self.low)


def saved(path: Path, **settings: object) -> tuple[clcnn.ControlledModule, Tensor]:
    model = build("residual", torch.float32)
    settings = {"embedding": clcnn.LinearEmbedding(rank=3)} | settings
    robust = clcnn.control(model, model.cuts, **settings).fit(inputs(model, 40, torch.float32))
    robust.save(path)
    return robust, inputs(model, 4, torch.float32, seed=7)


DIAGONAL = [0.1, torch.rand(4, 8, 8), 0.0, 0.2, torch.rand(6, 4, 4)]
PER_CUT = {n: PMP(iterations=3, lr=0.01 * (t + 1)) for t, n in enumerate(build("residual").cuts)}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"solver": MSA(iterations=2), "weights": "mean", "regularization": 0.3},
        {"solver": Greedy(), "regularization": DIAGONAL},
        {"solver": PER_CUT},
        {"solver": {n: Greedy(c=float(t)) for t, n in enumerate(PER_CUT)}},
        {"embedding": clcnn.AutoencoderEmbedding(epochs=1), "solver": PMP(iterations=2)},
        {"embedding": Clamp(margin=0.01), "solver": PMP(iterations=2)},
    ],
    ids=["default", "msa", "diagonal", "pmp-per-cut", "greedy-per-cut", "autoencoder", "own"],
)
def test_a_round_trip_gives_identical_logits(tmp_path: Path, settings: dict) -> None:
    path = tmp_path / "robust.safetensors"
    robust, x = saved(path, **settings)
    loaded = clcnn.load(path, build("residual", torch.float32), classes=[Clamp])
    assert torch.equal(loaded(x), robust(x))
    assert loaded.cuts == robust.cuts
    assert [path.name for path in tmp_path.iterdir()] == ["robust.safetensors"]
    again = tmp_path / "again.safetensors"
    loaded.save(again)
    assert torch.equal(clcnn.load(again, robust.model, classes=[Clamp])(x), robust(x))


def test_a_staged_network_comes_back(tmp_path: Path) -> None:
    model = build("mlp", torch.float32)
    stages = [model.stem, model.hidden, model.head]
    robust = clcnn.control(StagedDynamics(stages)).fit(inputs(model, 40, torch.float32))
    robust.save(tmp_path / "staged.safetensors")
    loaded = clcnn.load(tmp_path / "staged.safetensors", StagedDynamics(stages))
    x = inputs(model, 3, torch.float32)
    assert torch.equal(loaded(x), robust(x))
    with pytest.raises(LoadError, match=r"made for the cuts input, stage1, stage2; this dynamics"):
        clcnn.load(tmp_path / "staged.safetensors", StagedDynamics(stages, names=["a", "b", "c"]))


def test_grad_can_be_chosen_when_loading(tmp_path: Path) -> None:
    robust, _ = saved(tmp_path / "r", grad="unroll")
    assert clcnn.load(tmp_path / "r", robust.model).grad == "unroll"
    assert clcnn.load(tmp_path / "r", robust.model, grad="none").grad == "none"


def test_the_header_says_what_is_inside(tmp_path: Path) -> None:
    saved(tmp_path / "r")
    from safetensors import safe_open

    with safe_open(tmp_path / "r", "pt") as file:
        header = json.loads(file.metadata()["clcnn"])
    assert header["format"] == 1
    assert header["version"] == clcnn.__version__
    assert header["cuts"] == ["input", "layer1", "act", "layer2", "head"]
    assert header["shapes"][0] == [3, 8, 8]
    assert header["solver"]["class"] == "PMP"


def test_truncated_files(tmp_path: Path) -> None:
    robust, _ = saved(tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for kept in (0, 5, 100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut").write_bytes(whole[:kept])
        with pytest.raises(LoadError, match="not a whole safetensors file"):
            clcnn.load(tmp_path / "cut", robust.model)
    (tmp_path / "text").write_text("hello" * 1000)
    with pytest.raises(LoadError, match="not a whole safetensors file"):
        clcnn.load(tmp_path / "text", robust.model)
    with pytest.raises(LoadError, match="no file"):
        clcnn.load(tmp_path / "nowhere", robust.model)


def test_foreign_and_damaged_files(tmp_path: Path) -> None:
    robust, _ = saved(tmp_path / "r")
    save_file({"weight": torch.rand(3)}, tmp_path / "foreign")
    with pytest.raises(LoadError, match="not made by clcnn"):
        clcnn.load(tmp_path / "foreign", robust.model)
    tensors = load_file(tmp_path / "r")
    for header, message in [
        ("{", "damaged"),
        ("[]", "damaged"),
        ('{"format": 99, "version": "9.0"}', "format 99.*clcnn 9.0"),
        ('{"format": 1}', "damaged"),
    ]:
        save_file(tensors, tmp_path / "other", metadata={"clcnn": header})
        with pytest.raises(LoadError, match=message):
            clcnn.load(tmp_path / "other", robust.model)


@pytest.mark.parametrize(
    ("key", "value"), [("input_dtype", "floot32"), ("input_shape", [-1]), ("input_shape", ["3"])]
)
def test_a_header_with_impossible_values(tmp_path: Path, key: str, value: object) -> None:
    robust, _ = saved(tmp_path / "r")
    with safe_open(tmp_path / "r", framework="pt") as file:
        header = json.loads(file.metadata()["clcnn"])
    changed = {"clcnn": json.dumps({**header, key: value})}
    save_file(load_file(tmp_path / "r"), tmp_path / "other", metadata=changed)
    with pytest.raises(LoadError, match="other' is damaged"):
        clcnn.load(tmp_path / "other", robust.model)


class Standardised(nn.Module):
    """A network without an answer to a blank input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        return self.last(self.first(x).tanh())


def test_a_network_that_divides_by_its_inputs_spread_comes_back(tmp_path: Path) -> None:
    model = Standardised().eval()
    x = torch.rand(40, 6)
    embedding = clcnn.LinearEmbedding(rank=3)
    robust = clcnn.control(model, ["first", "last"], embedding=embedding).fit(x)
    robust.save(tmp_path / "r")
    assert torch.equal(clcnn.load(tmp_path / "r", model)(x), robust(x))


def test_tensors_that_are_missing_or_of_other_shapes(tmp_path: Path) -> None:
    robust, _ = saved(tmp_path / "r")
    from safetensors import safe_open

    with safe_open(tmp_path / "r", "pt") as file:
        metadata = file.metadata()
    tensors = load_file(tmp_path / "r")
    for name, value in (("embeddings.1.V", None), ("embeddings.1.V", torch.rand(3, 3))):
        changed = {k: v for k, v in tensors.items() if k != name}
        if value is not None:
            changed[name] = value
        save_file(changed, tmp_path / "changed", metadata=metadata)
        with pytest.raises(LoadError, match="expected"):
            clcnn.load(tmp_path / "changed", robust.model)


def test_other_networks(tmp_path: Path) -> None:
    saved(tmp_path / "r")
    with pytest.raises(LoadError, match=r"made for the cuts input, layer1.*unknown cut 'layer1'"):
        clcnn.load(tmp_path / "r", build("vit", torch.float32))
    wider = build("residual", torch.float32)
    wider.stem[0], wider.stem[1] = nn.Conv2d(3, 5, 3, 1, 1), nn.BatchNorm2d(5)
    wider.layer1.conv1, wider.layer1.shortcut = nn.Conv2d(5, 4, 3, 1, 1), nn.Conv2d(5, 4, 1)
    with pytest.raises(
        LoadError, match=r"states of shape \(4, 8, 8\) at cut 'layer1'.*\(5, 8, 8\)"
    ):
        clcnn.load(tmp_path / "r", wider.eval())
    grey = build("residual", torch.float32)
    grey.stem[0] = nn.Conv2d(1, 4, 3, 1, 1)
    with pytest.raises(
        LoadError,
        match=r"inputs of shape \(3, 8, 8\) and torch.float32, on which this model fails",
    ):
        clcnn.load(tmp_path / "r", grey.eval())
    with pytest.warns(UserWarning, match="other weights"):
        clcnn.load(tmp_path / "r", build("residual", torch.float32, seed=5))


def test_unknown_classes_are_never_imported_by_name(tmp_path: Path) -> None:
    robust, _ = saved(tmp_path / "r", embedding=Clamp())
    with pytest.raises(LoadError, match=r"'Clamp', which clcnn does not know.*classes=\[Clamp\]"):
        clcnn.load(tmp_path / "r", robust.model)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    robust, _ = saved(tmp_path / "r")
    before = (tmp_path / "r").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("clcnn.persistence.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        robust.save(tmp_path / "r")
    assert (tmp_path / "r").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["r"]
