"""Hardened networks: the shipped ones are what their cards say, and what is refused."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import clcnn
from clcnn import cli, hardening, models
from clcnn.data import HELDOUT_SEED, sample
from clcnn.errors import DataError, LoadError
from clcnn.evaluation import PlanError, Store, Workshop
from clcnn.evaluation.defence import from_settings
from clcnn.evaluation.plan import read_plan
from clcnn.evaluation.runner import run
from clcnn.models import hardening as room
from clcnn.models import shelf
from clcnn.solvers.feedback import PRESETS
from clcnn.training import harden as making

SHIPPED = [(name, preset) for name, presets in room.names().items() for preset in presets]


def test_the_first_network_is_there_with_all_presets() -> None:
    assert room.names()["resnet20-cifar10"] == sorted(PRESETS)
    assert set(room.names()) <= set(models.list())


@pytest.mark.parametrize(("name", "preset"), SHIPPED)
def test_a_shipped_control_is_what_its_card_says(name: str, preset: str) -> None:
    path, facts = room.file(name, preset)
    robust = models.hardened(name, preset)
    assert robust.solver == clcnn.Feedback(preset=preset)
    taken = robust.solver.preset_for(robust.embeddings[0])
    assert (taken.strength, taken.floor) == (facts.strength, facts.floor)
    embedding = robust.embeddings[0]
    assert type(embedding).__name__ == facts.embedding
    assert float(embedding.authority) == pytest.approx(facts.authority)
    assert robust.is_fitted
    assert (robust.alpha, facts.heldout_seed) == (facts.alpha, HELDOUT_SEED)
    assert len(robust.clean_scores) == facts.calibrated_on == 5000
    assert facts.weights_sha256 == shelf.card(name).sha256
    assert facts.plain_accuracy == shelf.card(name).test_accuracy
    assert path.stat().st_size < 5e6
    x, y = sample(shelf.card(name).data).test
    x, y = x[:200], y[:200]
    share = facts.controlled_accuracy / 100
    right = int((robust(x).argmax(1) == y).sum())
    assert abs(right - 200 * share) < 4 * (200 * share * (1 - share)) ** 0.5
    flagged = int(robust.detect(x).flagged.sum())
    assert flagged <= 200 * facts.alpha + 4 * (200 * facts.alpha * (1 - facts.alpha)) ** 0.5
    assert abs(facts.false_alarms / 100 - facts.alpha) < 0.015


def test_a_gradient_goes_through_where_it_is_asked_for() -> None:
    robust = models.hardened("resnet20-cifar10", "strong", grad="unroll")
    x = sample("cifar10").test[0][:2].requires_grad_()
    (g,) = torch.autograd.grad(robust(x).sum(), x)
    assert g.isfinite().all()
    assert g.abs().max() > 0


def test_unknown_names_and_damaged_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(LoadError, match=r"no hardened network called 'resnet99'.*resnet20-cifar10"):
        room.file("resnet99", "strong")
    with pytest.raises(LoadError, match=r"no preset 'huge'.*default, strong"):
        models.hardened("resnet20-cifar10", "huge")  # type: ignore[arg-type]
    copy = tmp_path / "shelf"
    shutil.copytree(room.SHELF, copy)
    monkeypatch.setattr(room, "SHELF", copy)
    file = copy / "resnet20-cifar10-strong.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(LoadError, match="SHA-256"):
        models.hardened("resnet20-cifar10", "strong")
    file.with_suffix(".json").write_text("{}")
    with pytest.raises(LoadError, match="clcnn harden"):
        models.hardened("resnet20-cifar10", "strong")


def test_controls_are_fitted_calibrated_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = sample("cifar10")
    parts = {
        "train": tuple(part[:80] for part in shipped.train),
        "heldout": tuple(part[-60:] for part in shipped.train),
        "test": tuple(part[:40] for part in shipped.test),
    }
    monkeypatch.setattr(
        making,
        "load_images",
        lambda data, split, root: SimpleNamespace(tensors=lambda: parts[split]),
    )
    monkeypatch.setattr(
        hardening, "RefinedEmbedding", partial(clcnn.RefinedEmbedding, widths=(2, 3, 4))
    )
    said: list[str] = []
    paths = making.harden("resnet20-cifar10", tmp_path, steps=2, say=said.append)
    assert [path.stem.removeprefix("resnet20-cifar10-") for path in paths] == list(PRESETS)
    monkeypatch.setattr(room, "SHELF", tmp_path)
    for preset in PRESETS:
        _, facts = room.file("resnet20-cifar10", preset)
        assert (facts.fitted_on, facts.calibrated_on, facts.test_images) == (80, 60, 40)
        robust = models.hardened("resnet20-cifar10", preset)  # type: ignore[arg-type]
        right = (robust(parts["test"][0]).argmax(1) == parts["test"][1]).double().mean()
        assert facts.controlled_accuracy == pytest.approx(100 * float(right))
        assert facts.embedding == "RefinedEmbedding"
        assert facts.command == "clcnn harden resnet20-cifar10 --seed 0 --steps 2"
        assert facts.authority == pytest.approx(1, abs=0.01)
    assert sum("fitting on" in sentence for sentence in said) == 1
    monkeypatch.setattr(hardening, "_ACTS", 1.1)  # as for a network that control would harm
    making.harden("resnet20-cifar10", tmp_path, presets=["strong"])
    _, facts = room.file("resnet20-cifar10", "strong")
    assert (facts.embedding, facts.strength) == ("SpectralEmbedding", 128)
    monkeypatch.setattr(hardening, "_ACTS", 0.5)
    words = ["harden", "resnet20-cifar10", "--out", str(tmp_path), "--preset", "strong"]
    capsys.readouterr()
    assert cli.run([*words, "--filter-only", "--json"]) == 0
    told = capsys.readouterr()
    (written,) = json.loads(told.out).items()
    assert written[0] == str(tmp_path / "resnet20-cifar10-strong.safetensors")
    assert "fitting on" in told.err
    _, facts = room.file("resnet20-cifar10", "strong")
    assert facts.embedding == "SpectralEmbedding"
    assert facts.command == "clcnn harden resnet20-cifar10 --seed 0 --filter-only"
    assert written[1]["controlled_accuracy"] == facts.controlled_accuracy
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="no folder"):
        making.harden("resnet20-cifar10", tmp_path / "file")
    with pytest.raises(DataError, match="'default', 'strong'"):
        making.harden("resnet20-cifar10", tmp_path, presets=["weak"])


PLAN = """
name = "shipped"
n = 8
chunk = 8

[networks.resnet20-cifar10]
weights = "resnet20-cifar10"
data = "cifar10"

[defences.feedback]
fit = { shipped = "strong" }

[[grid]]
defences = ["feedback"]
attacks = ["none"]
"""


def test_a_plan_may_take_the_shipped_control(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLAN)
    plan = read_plan(tmp_path / "plan.toml")
    plan = replace(plan, sample=True)
    with Store(tmp_path / "r.sqlite") as store:
        (found,) = run(plan, store, workshop=Workshop())
    assert found.n == 8
    assert not list((tmp_path).rglob("fits/*.safetensors")), "nothing was fitted"
    assert plan.defences["feedback"].solver.settings["preset"] == "strong"
    again = from_settings(plan.defences["feedback"].settings(), "again")
    assert again == plan.defences["feedback"]


def test_the_shipped_control_is_for_the_shipped_weights_alone() -> None:
    other = models.load("resnet20-cifar10-labelsmooth")
    with pytest.raises(LoadError, match="other weights than those shipped as 'resnet20-cifar10'"):
        room.around(other, "resnet20-cifar10", "strong")


def test_that_a_network_is_left_alone_is_said() -> None:
    with pytest.warns(UserWarning, match="acts on a share of"):
        models.hardened("resnet20-cifar10-pgd")


def test_what_is_said_beside_a_shipped_control(tmp_path: Path) -> None:
    """Its preset stays, and settings that were stored with cuts and images are read again."""
    solver = 'fit = { shipped = "strong" }\nsolver = { kind = "feedback", authority = 0.5 }'
    (tmp_path / "plan.toml").write_text(PLAN.replace('fit = { shipped = "strong" }', solver))
    defence = read_plan(tmp_path / "plan.toml").defences["feedback"]
    assert defence.solver.settings["preset"] == "strong"
    assert defence.solver.settings["authority"] == 0.5
    stored = defence.settings() | {
        "cuts": ["input"],
        "embedding": {"kind": "refined"},
        "allow_bypass": False,
        "correct_only": False,
        "fit": {"images": 5000, "seed": 0},
        "centring": "fitted",
    }
    assert from_settings(stored, "an older store") == defence


@pytest.mark.parametrize(
    ("beside", "complaint"),
    [
        ('paper_literal = true\nfit = { shipped = "strong" }', "paper_literal"),
        ('tuned = "choice.json"\nfit = { shipped = "strong" }', "tuned"),
        ('fit = { shipped = "huge" }', "'huge'.*default, strong"),
        ('cuts = ["input", "head"]\nfit = { shipped = "strong" }', "cuts"),
        ('embedding = { kind = "refined" }\nfit = { shipped = "strong" }', "embedding"),
        ('fit = { shipped = "strong", images = 100 }', "images"),
    ],
)
def test_nothing_is_said_of_fitting_beside_what_is_shipped(
    beside: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "plan.toml").write_text(PLAN.replace('fit = { shipped = "strong" }', beside))
    with pytest.raises(PlanError, match=complaint):
        read_plan(tmp_path / "plan.toml")
