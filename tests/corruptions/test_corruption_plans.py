"""Corruptions in plans: what they meet, what they are not, their means, and how they are shown."""

from __future__ import annotations

import shutil
import sqlite3
import statistics
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from evaluation.tiny import TEXT, network, pictures, plan, workshop
from experiments import small

from clcnn.corruptions import NAMES, corrupt
from clcnn.evaluation import PlanError, Store, run
from clcnn.evaluation.results import Result, results, warnings_of
from clcnn.experiments.averages import means
from clcnn.experiments.blueprints import blueprint
from clcnn.experiments.run import Request
from clcnn.experiments.run import run as run_experiment
from clcnn.report.curves import accuracy_figure
from clcnn.report.gather import gather, name_of
from clcnn.report.layout import tables
from clcnn.report.pictures import picture_blocks
from clcnn.report.pool import Pool
from clcnn.report.trade import trade_offs

PLAN = (
    TEXT.split("[[grid]]")[0].replace('name = "tiny"', 'name = "corruptions"')
    + """
[attacks.misty]
kind = "corruption"
of = "fog"

[attacks.grainy]
kind = "corruption"
of = "gaussian_noise"

[[grid]]
attacks = ["none", "misty", "grainy"]
eps = [1, 5]
threats = ["oblivious", "adaptive"]
"""
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corrupted") / "r.sqlite"
    run(plan(PLAN), path, workshop=workshop())
    return path


@pytest.fixture(scope="module")
def found(store: Path) -> list[Result]:
    with Store(store) as opened:
        return results(opened, "corruptions")


def test_no_one_who_knows_of_the_control_corrupts() -> None:
    entries = plan(PLAN).entries
    assert {(e.attack, e.threat) for e in entries} == {
        ("none", "none"),
        ("misty", "oblivious"),
        ("grainy", "oblivious"),
    }
    assert {e.eps for e in entries if e.attack == "misty"} == {1.0, 5.0}
    assert plan(PLAN).attacks["misty"].norm == "none"


def test_a_worst_case_is_not_over_corruptions() -> None:
    text = PLAN + '[attacks.worst]\nkind = "worst"\nof = ["fgsm", "misty"]\n'
    with pytest.raises(PlanError, match="simple attacks of the same norm"):
        plan(text)


def test_every_image_is_corrupted_whatever_the_network_makes_of_it(
    store: Path, found: list[Result]
) -> None:
    x, y = pictures(40, 3)  # the tiny workshop's test images
    names = {"misty": "fog", "grainy": "gaussian_noise"}
    plain = [r for r in found if r.is_corruption and r.defence == "none"]
    assert len(plain) == 4
    for result in plain:
        z = corrupt(x, names[result.attack], int(result.eps), seed=3)
        right = network()(z).argmax(1) == y
        with Store(store) as opened:
            rows = opened.read(
                "SELECT sample, correct, linf FROM samples WHERE cell = ?", result.cell
            )
        assert len(rows) == result.n == 20
        for sample, correct, linf in rows:
            assert correct == right[sample]
            assert linf == pytest.approx(float((z - x)[sample].abs().max()))


def test_chunks_do_not_change_the_images(found: list[Result], tmp_path: Path) -> None:
    other = run(plan(PLAN.replace("chunk = 8", "chunk = 5")), tmp_path / "r", workshop=workshop())
    assert [r.accuracy for r in other] == [r.accuracy for r in found]


def test_signs_of_weak_attacks_are_not_looked_for(found: list[Result]) -> None:
    assert {r.attack for r in found if r.is_corruption} == {"misty", "grainy"}
    assert not [r for r in found if r.is_corruption and r.findings]
    rising = [
        replace(r, accuracy=r.eps / 10, low=r.eps / 10, high=r.eps / 10)  # far apart
        for r in found
        if r.is_corruption and r.defence == "none"
    ]
    assert not warnings_of(rising)
    assert warnings_of([replace(r, is_corruption=False) for r in rising])


def test_means_are_over_images_that_count_once(store: Path, found: list[Result]) -> None:
    with Store(store) as opened:
        rows = means(opened, found)
        by = {}
        for defence in ("none", "linear"):
            cells = [r.cell for r in found if r.is_corruption and r.defence == defence]
            assert len(cells) == 4
            right: dict[int, list[int]] = {}
            for cell in cells:
                for sample, correct in opened.read(
                    "SELECT sample, correct FROM samples WHERE cell = ?", cell
                ):
                    right.setdefault(sample, []).append(correct)
            by[defence] = {s: 100 * statistics.fmean(c) for s, c in right.items()}
    assert [row["defence"] for row in rows] == ["none", "linear", "linear-none"]
    assert {(row["attack"], row["eps"], row["n"]) for row in rows} == {("mean", "", "20")}
    differences = [by["linear"][s] - by["none"][s] for s in by["none"]]
    expected = [list(by["none"].values()), list(by["linear"].values()), differences]
    for row, values in zip(rows, expected, strict=True):
        half = 1.96 * statistics.stdev(values) / 20**0.5
        assert float(row["accuracy"]) == pytest.approx(statistics.fmean(values), abs=0.01)
        assert float(row["high"]) - float(row["accuracy"]) == pytest.approx(half, abs=0.02)
        assert float(row["accuracy"]) - float(row["low"]) == pytest.approx(half, abs=0.02)


def test_a_report_speaks_of_severity_and_of_no_radius(store: Path) -> None:
    (experiment,) = gather([store])
    pool = Pool([experiment])
    averaged, table = tables(experiment, pool)
    assert "Mean over all corruptions" in averaged.caption  # type: ignore[union-attr]
    assert table.corner == ("network", "severity", "defence")  # type: ignore[union-attr]
    figure = accuracy_figure(experiment, "tiny", pool)
    assert figure is not None
    assert "against severity" in figure.caption
    for text in (repr(table), repr(figure), *map(name_of, experiment.results)):
        assert "ε" not in text
        assert "eps" not in text
    assert "severity 5" in name_of(experiment.results[-1])
    assert trade_offs([experiment]) == []
    (sentence,) = picture_blocks([experiment], workshop(), 3, lambda text: None)
    assert "No pictures" in repr(sentence)


def test_a_report_begins_with_the_means_of_complete_defences(store: Path, tmp_path: Path) -> None:
    (experiment,) = gather([store])
    with Store(store) as opened:
        lines = means(opened, list(experiment.results))
    table, _ = tables(experiment, Pool([experiment]))
    cells = [[span.text for span in spans] for row in table.rows for spans in row.cells]  # type: ignore[union-attr]
    plain, none_more, linear, more = cells
    assert none_more == ["–"]
    for found, line in zip((plain, linear, more), lines, strict=True):
        value = float(found[0].replace("−", "-"))
        assert value == pytest.approx(float(line["accuracy"]), abs=0.051)
    part = tmp_path / "part.sqlite"
    shutil.copy(store, part)
    (cell,) = {r.cell for r in experiment.results if (r.defence, r.eps) == ("linear", 5)} & {
        r.cell for r in experiment.results if r.attack == "misty"
    }
    with closing(sqlite3.connect(part)) as connection, connection:
        connection.execute("DELETE FROM samples WHERE cell = ? AND chunk = 1", (cell,))
        connection.execute("UPDATE chunks SET done = 0 WHERE cell = ? AND number = 1", (cell,))
    (lacking,) = gather([part])
    assert [(a.defence, a.minus) for a in lacking.averages] == [("none", None)]


def test_means_are_of_defences_that_met_the_same(tmp_path: Path) -> None:
    first, second = PLAN.split("[[grid]]")[0], '\n[[grid]]\nattacks = ["misty"]\neps = [1]\n'
    other = '\n[[grid]]\ndefences = ["linear"]\nattacks = ["grainy"]\neps = [5]\n'
    for more, expected in (
        ('defences = ["none"]' + other, []),  # no cell in common
        ('defences = ["none"]\nn = 8' + second + 'defences = ["linear"]\nn = 16', []),
        ("n = 1", []),  # no interval of one image
        ("", [("none", None), ("linear", None), ("linear", "none")]),
    ):
        path = tmp_path / f"{len(more)}.sqlite"
        run(plan(first + second + more), path, workshop=workshop())
        (experiment,) = gather([path])
        assert [(a.defence, a.minus) for a in experiment.averages] == expected, more
        assert all(0 <= a.mean.low <= a.mean.high <= 1 for a in experiment.averages if not a.minus)


def test_the_plan_has_all_fifteen_at_five_severities() -> None:
    drawn = blueprint("corruptions")
    (grid,) = drawn.values["grid"]
    assert grid["attacks"] == ["none", *NAMES]
    assert grid["eps"] == [1, 2, 3, 4, 5]
    assert {drawn.attacks[name]["of"] for name in NAMES} == set(NAMES)
    feedback = blueprint("feedback")
    for defence in ("feedback", "feedback-strong"):
        assert drawn.defences[defence] == feedback.defences[defence]


def test_the_experiment_ends_in_its_means(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.shrink(monkeypatch)
    with torch.random.fork_rng(devices=[]), Store(tmp_path / "r.sqlite") as opened:
        made = run_experiment("corruptions", opened, Request(quick=True), workshop=small.workshop())
    defences = ["none", "feedback", "feedback-strong", "filter", "filter-strong"]
    differences = [f"{name}-none" for name in defences[1:]]
    assert len(made.rows) == 5 * (1 + 15 * 2) + 9
    assert [row["defence"] for row in made.rows[-9:]] == defences + differences
    plain = [float(r["accuracy"]) for r in made.rows if r["defence"] == "none" and r["eps"] > "0"]
    assert len(plain) == 30
    assert float(made.rows[-9]["accuracy"]) == pytest.approx(statistics.fmean(plain), abs=0.01)
