"""What `clcnn bench` compares must be comparable, and what it computes must be right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from networks import build, inputs

import clcnn
from clcnn import cli
from clcnn.benchmarks import speed
from clcnn.benchmarks.literal import Literal, dense_projection
from clcnn.benchmarks.run import SECTIONS, Settings, prepare
from clcnn.benchmarks.speed import Bench
from clcnn.benchmarks.timing import compare, exponent, quartiles
from clcnn.errors import DataError
from clcnn.models import ResNet20
from clcnn.training.checkpoint import write_tensors


def test_ratios_are_taken_within_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    slowness = iter([1.0, 1.0, 5.0, 5.0, 2.0, 2.0])  # a machine that others use, too

    def works(seconds: float) -> None:
        now[0] += seconds * next(slowness)

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    unit, other = compare({"unit": lambda: works(1), "other": lambda: works(3)}, "unit", 2)
    assert (unit.ratio, unit.low, unit.high) == (1, 1, 1)
    assert (other.ratio, other.low, other.high) == (3, 3, 3)
    assert (unit.seconds, other.seconds) == (3.5, 10.5)


def test_exponent_and_quartiles() -> None:
    assert exponent([1, 2, 4, 8], [3, 12, 48, 192]) == pytest.approx(2)
    assert quartiles([1, 2, 3, 4, 5]) == (2, 4)
    assert quartiles([7.0]) == (7, 7)


@pytest.mark.parametrize("lr", [0.01, 30.0], ids=["improving", "mostly no control"])
def test_algorithm_1_to_the_letter_gives_the_same_controls(lr: float) -> None:
    model = build("residual")
    x = inputs(model, 6)
    solver = clcnn.PMP(iterations=4, lr=lr)
    robust = clcnn.control(
        model, model.cuts, embedding=clcnn.LinearEmbedding(rank=5), solver=solver
    ).fit(inputs(model, 40, seed=3))
    u, logits = Literal(model, model.cuts, speed.linear_of(robust)).solve(x, 4, lr)
    expected = robust.solve(x)
    for found, wanted in zip(u, expected.u, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(logits, expected.logits, rtol=1e-6, atol=1e-8)
    moved = expected.u[0].abs().amax((1, 2, 3)) > 0
    assert moved.any() if lr == 0.01 else not moved.all()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("kind", [clcnn.LinearEmbedding, clcnn.SeparableEmbedding])
def test_dense_projection(kind: type[clcnn.Embedding]) -> None:
    x = torch.randn(30, 2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    E = kind(rank=7).fit(x)
    P = dense_projection(E)
    assert float(P.trace()) == pytest.approx(7)
    torch.testing.assert_close(P, P.T)
    torch.testing.assert_close(P @ P, P)
    torch.testing.assert_close((x.flatten(1) - E.mean) @ P + E.mean, E.project(x).flatten(1))


def small_bench() -> Bench:
    model = build("residual", dtype=torch.float32)
    x, y = inputs(model, 40, torch.float32, seed=1), torch.arange(40) % 4
    fit, heldout = (inputs(model, n, torch.float32, seed=s) for n, s in ((60, 2), (50, 3)))
    return Bench(model, model.cuts, fit, heldout, x, y, iterations=2, batch=8, rounds=1)


def test_every_section_on_a_small_network() -> None:
    bench = small_bench()
    robust = bench.controlled(clcnn.LinearEmbedding(rank=6))
    states = speed.states_of(robust, bench.heldout)
    table = speed.embeddings_table(robust, states)
    assert [row["cut"] for row in table] == list(bench.cuts)
    assert all(0 < row["kept_heldout"] < row["kept_fitted"] <= 1 for row in table)
    rows = speed.costs(bench, robust, literal=True)
    assert rows[0]["name"] == speed.PLAIN
    assert rows[0]["ratio"] == 1
    assert all(row["ratio"] > 0 for row in rows)
    assert {row["with"] for row in speed.growth(bench, robust)} == {
        "batch",
        "iterations",
        "cuts",
        "rank",
        "d",
    }


def test_clean_batches_leave_before_attacked_ones() -> None:
    bench = small_bench()
    robust = bench.controlled(clcnn.LinearEmbedding(rank=6))
    found = speed.leaving(bench, robust)
    J = robust.configure(solver=clcnn.PMP(iterations=0)).solve(bench.heldout).J
    assert found["tolerance"] == pytest.approx(float(J.double().quantile(0.95)))
    assert [row["name"] for row in found["times"][1:]] == [
        "clean batches",
        "PGD, epsilon 2/255",
        "PGD, epsilon 8/255",
    ]


def test_accuracies_pair_the_samples() -> None:
    bench = small_bench()
    robust = bench.controlled(clcnn.LinearEmbedding(rank=6))
    idle = robust.configure(solver=clcnn.PMP(iterations=0))
    rows = speed.accuracies(bench, {"a": robust, "b": idle}, "b", say=lambda words: None)
    with torch.no_grad():
        right = bench.model(bench.x).argmax(1) == bench.y
        controlled = robust(bench.x).argmax(1) == bench.y
    by_name = {(row["attack"], row["defence"]): row for row in rows}
    assert by_name["none", "b"]["accuracy"] == by_name["none", "no control"]["accuracy"]
    assert by_name["none", "b"]["accuracy"] == pytest.approx(float(right.double().mean()))
    gap = float(controlled.double().mean() - right.double().mean())
    assert by_name["none", "a"]["difference"] == pytest.approx(gap)


def test_settings_are_checked() -> None:
    with pytest.raises(clcnn.DataError, match=r"'speed'.*costs"):
        Settings(sections=("speed",))
    with pytest.raises(clcnn.DataError, match="n=0"):
        Settings(n=0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    weights, out = tmp_path / "net.safetensors", tmp_path / "found"
    facts = {"kind": "weights", "network": "resnet20", "in_channels": 3, "num_classes": 10}
    write_tensors(weights, ResNet20().state_dict(), facts)
    words = ["bench", "--network", str(weights), "--quick", "--out", str(out)]
    few = ["--fit", "60", "--n", "8", "--batch", "4", "--rounds", "1", "--iterations", "1"]
    assert cli.run([*words, *few, "--section", "costs", "--section", "leaving"]) == 0
    found = json.loads(out.with_suffix(".json").read_text())
    assert set(SECTIONS) & set(found) == {"costs", "leaving"}
    assert out.with_suffix(".png").stat().st_size > 10_000
    assert "Cost in plain forward passes" in capsys.readouterr().out
    assert cli.run([*words, "--section", "nonsense"]) == 2


def test_settings_that_cannot_be_are_refused_before_any_work() -> None:
    for wrong in ({"energy": 1.5}, {"lr": 0.0}, {"threads": 0}):
        with pytest.raises(DataError, match="expected a share"):
            Settings(**wrong)
    with pytest.raises(DataError, match="cannot be used"):
        prepare(Settings(quick=True, device="nonsense"), None)


def test_growth_needs_two_sizes() -> None:
    bench = replace(small_bench(), batch=2)
    robust = bench.controlled(clcnn.LinearEmbedding(rank=6))
    found = speed.growth(bench, robust)
    assert "batch" not in {row["with"] for row in found}
    assert all(row["exponent"] == row["exponent"] for row in found)
