"""Whole runs against the library called by hand, and the signs that they store."""

from __future__ import annotations

import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import TEXT, network, pictures, plan, stored, workshop

import clcnn
from clcnn import DataError
from clcnn.attacks import FGSM, Noise, StraightThrough, Transfer, Unrolled, WorstCase
from clcnn.attacks.stealth import trajectory
from clcnn.evaluation import (
    Bench,
    Store,
    Workshop,
    compare,
    pick,
    results,
    run,
    to_csv,
    warnings_of,
)
from clcnn.evaluation.measuring import unpacked
from clcnn.evaluation.results import Result
from clcnn.evaluation.threats import seed_of
from clcnn.statistics import wilson

FAST = """
[defences.fast]
cuts = ["input", "middle", "head"]
embedding = { kind = "linear", energy = 0.8 }
solver = { kind = "pmp", iterations = 3, lr = 0.05 }
fit = { images = 60 }
accelerate = true

[defences.auto]
cuts = ["input", "middle", "head"]
embedding = { kind = "auto", energy = 0.9 }
solver = { kind = "pmp", iterations = 2, lr = 0.05 }
fit = { images = 60 }

"""


BOTH = TEXT + '[[grid]]\nattacks = ["fgsm", "noise"]\neps = 20\nthreats = ["adaptive"]\n'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "r.sqlite"
    run(plan(BOTH), path, workshop=workshop())
    return path


def by_hand() -> tuple[torch.nn.Module, clcnn.ControlledModule, torch.Tensor]:
    """The same network, defence and images, without the room under test."""
    model = network()
    order = np.random.RandomState(0).permutation(80)[:60]
    robust = clcnn.control(
        model,
        ["input", "middle", "head"],
        embedding=clcnn.LinearEmbedding(energy=0.8),
        solver=clcnn.PMP(iterations=3, lr=0.05),
    ).fit(pictures(80, 1)[0][order])
    return model, robust, torch.from_numpy(np.random.RandomState(3).permutation(40)[:20])


def test_clean_and_attacked_labels_are_those_of_the_library_by_hand(finished: Path) -> None:
    model, robust, places = by_hand()
    x_all, y_all = pictures(40, 3)
    for number, part in enumerate(places.split(8)):
        x, y = x_all[part], y_all[part]
        seed = seed_of(3, number)
        images = {
            ("none", 0.0, "none"): x,
            ("fgsm", 40.0, "oblivious"): FGSM(40 / 255, batch_size=8)(model, x, y),
            ("noise", 20.0, "oblivious"): Noise(20 / 255, batch_size=8, seed=seed)(model, x, y),
        }
        for condition, x_adv in images.items():
            solution = robust.solve(x_adv)
            residuals = trajectory(robust, x_adv)[1].detach()
            plain = stored(finished, "none", *condition)
            controlled = stored(finished, "linear", *condition)
            for i, place in enumerate(part.tolist()):
                label, predicted, correct, cost, before, after, linf, l2, by = controlled[place]
                assert label == y[i]
                assert predicted == solution.logits[i].argmax()
                assert correct == (predicted == label)
                assert cost == pytest.approx(float(solution.J[i]), rel=1e-5)
                assert unpacked([before])[0] == pytest.approx(residuals[i].numpy(), rel=1e-4)
                assert unpacked([after])[0] == pytest.approx(solution.J_t[i].numpy(), rel=1e-4)
                d = (x_adv - x)[i]
                assert (linf, l2) == pytest.approx((float(d.abs().max()), float(d.norm())))
                assert by is None
                assert plain[place][1] == model(x_adv)[i].argmax()
                assert plain[place][3:6] == (None, None, None)


def test_adaptive_is_the_worst_case_of_the_library(finished: Path) -> None:
    model, robust, places = by_hand()
    x_all, y_all = pictures(40, 3)
    found = stored(finished, "linear", "fgsm", 20.0, "adaptive")
    for number, part in enumerate(places.split(8)):
        x, y = x_all[part], y_all[part]
        attack = FGSM(20 / 255, batch_size=8, seed=seed_of(3, number))
        known = attack(model, x, y)
        cases = [Transfer(attack), StraightThrough(attack), Unrolled(attack)]
        expected = WorstCase(cases).strongest(robust, x, y, [known])
        for place, right, by in zip(
            part.tolist(), expected.robust.tolist(), expected.by, strict=True
        ):
            assert found[place][2] == right
            assert found[place][8] == by


def test_adaptive_is_never_above_oblivious_for_any_sample(finished: Path) -> None:
    for defence in ("none", "linear"):
        for attack in ("fgsm", "noise"):
            oblivious = stored(finished, defence, attack, 20.0, "oblivious")
            adaptive = stored(finished, defence, attack, 20.0, "adaptive")
            assert len(oblivious) == len(adaptive) == 20
            for place, row in oblivious.items():
                assert adaptive[place][2] <= row[2]


def test_results_count_and_compare_what_is_stored(finished: Path) -> None:
    with Store(finished) as store:
        found = results(store, "tiny")
        one = pick(found, next(e for e in plan(BOTH).entries if e.attack == "fgsm"))
        rows = stored(finished, "none", "fgsm", 20.0, "oblivious")
        right = sum(row[2] for row in rows.values())
        assert (one.n, one.wanted, one.is_complete) == (20, 20, True)
        assert one.accuracy == right / 20
        assert (one.low, one.high) == wilson(right / 20, 20)
        assert one.cost == pytest.approx(1.0)
        controlled = stored(finished, "linear", "fgsm", 20.0, "oblivious")
        other = next(
            r
            for r in found
            if (r.defence, r.attack, r.eps, r.threat) == ("linear", "fgsm", 20.0, "oblivious")
        )
        assert other.cost > 1
        difference = compare(store, other, one)
        wins = sum(controlled[k][2] > rows[k][2] for k in rows)
        losses = sum(controlled[k][2] < rows[k][2] for k in rows)
        assert (difference.only_first, difference.only_second) == (wins, losses)
    lines = to_csv(found).splitlines()
    assert lines[0] == "network,defence,attack,eps,threat,n,accuracy,low,high,seconds"
    assert len(lines) == 1 + len(found)
    assert lines[1].startswith("tiny,none,none,0,none,20,100.00,83.89,100.00,0.0")


def test_a_second_run_measures_nothing_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(Bench, "measure", refuse)
    found = run(plan(BOTH), finished, workshop=workshop())
    assert all(result.is_complete for result in found)


def test_every_defence_meets_the_same_examples_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = FGSM.run
    monkeypatch.setattr(FGSM, "run", lambda *a: calls.append(1) or original(*a))
    text = TEXT.replace('"none", "fgsm", "noise"', '"fgsm"').replace("[20, 40]", "[20]")
    run(plan(text), tmp_path / "r.sqlite", workshop=workshop())
    assert len(calls) == 3  # chunks, not chunks times defences
    none = stored(tmp_path / "r.sqlite", "none", "fgsm", 20.0, "oblivious")
    linear = stored(tmp_path / "r.sqlite", "linear", "fgsm", 20.0, "oblivious")
    assert [none[k][6:8] for k in sorted(none)] == [linear[k][6:8] for k in sorted(linear)]


def test_acceleration_and_other_embeddings_answer_as_by_hand(tmp_path: Path) -> None:
    text = TEXT.replace('"none", "fgsm", "noise"', '"noise"').replace("[20, 40]", "[40]")
    text = text.replace("[attacks.fgsm]", FAST + "[attacks.fgsm]", 1)
    found = {r.defence: r for r in run(plan(text), tmp_path / "r.sqlite", workshop=workshop())}
    assert set(found) == {"none", "linear", "fast", "auto"}
    model, robust, places = by_hand()
    fast = stored(tmp_path / "r.sqlite", "fast", "noise", 40.0, "oblivious")
    x, y = (part[places[:8]] for part in pictures(40, 3))
    x_adv = Noise(40 / 255, batch_size=8, seed=seed_of(3, 0))(model, x, y)
    solution = robust.accelerate().solve(x_adv)
    for place, J, logits in zip(places.tolist(), solution.J, solution.logits, strict=False):
        assert fast[place][1] == logits.argmax()
        assert fast[place][3] == pytest.approx(float(J), rel=1e-5)
    assert all(result.is_complete for result in found.values())


def test_square_that_breaks_what_gradients_left_is_a_sign(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "r.sqlite"
    with Store(finished) as store, sqlite3.connect(copy) as target:
        store.connection.backup(target)
    with Store(copy) as store:
        adaptive = next(
            r
            for r in results(store, "tiny")
            if (r.defence, r.attack, r.threat) == ("linear", "fgsm", "adaptive")
        )
        assert "black-box beats white-box" not in {f.check for f in adaptive.findings}
        store.connection.execute(
            "UPDATE samples SET broken_by = 'Square' WHERE cell = ? AND broken_by IS NULL",
            (adaptive.cell,),
        )
        signs = warnings_of(results(store, "tiny"))
    assert "black-box beats white-box" in {sign.check for sign in signs}


def test_signs_are_stored_with_the_cell_and_returned(tmp_path: Path) -> None:
    class Flat(torch.nn.Module):
        """No gradient at all: the answer is decided by a threshold."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            quarters = x.view(-1, 2, 4, 2, 4).mean((2, 4)).flatten(1)
            return (quarters == quarters.amax(1, keepdim=True)).to(x) + 0 * quarters

    text = TEXT.replace('"none", "fgsm", "noise"', '"fgsm"') + 'defences = ["none"]\n'
    images = {"train": pictures(80, 1), "test": pictures(40, 3)}
    shop = Workshop(networks={"tiny": Flat().eval()}, images={"mnist": images})
    found = run(plan(text), tmp_path / "r.sqlite", workshop=shop)
    assert {f.check for f in found[0].findings} >= {"zero gradients", "loss does not rise"}
    assert {f.check for f in warnings_of(found)} >= {"zero gradients"}


def test_a_smaller_count_is_the_start_of_a_larger(finished: Path) -> None:
    shop = workshop()
    few = shop.images(plan(), "tiny", "test", 5, 3).places
    many = shop.images(plan(), "tiny", "test", 20, 3).places
    assert torch.equal(few, many[:5])
    other = shop.images(plan(), "tiny", "test", 20, 4).places
    assert not torch.equal(other, many)


def test_a_run_returns_its_own_cells_whatever_else_is_called_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = plan(TEXT.replace("n = 20", "n = 8"))
    module = sys.modules["clcnn.evaluation.runner"]
    real = module.work  # type: ignore[attr-defined]

    def meanwhile(store: Store, *rest: Any) -> None:
        real(store, *rest)
        monkeypatch.setattr(module, "work", real)
        run(other, tmp_path / "r.sqlite", workshop=workshop())

    monkeypatch.setattr(module, "work", meanwhile)
    assert {r.n for r in run(plan(), tmp_path / "r.sqlite", workshop=workshop())} == {20}


def test_stealth_is_not_run_without_a_control() -> None:
    text = TEXT.replace('kind = "noise"', 'kind = "stealth"')
    text = text.replace("eps = [20, 40]", 'eps = [20, 40]\nthreats = ["oblivious", "adaptive"]')
    met = {(e.defence, e.threat) for e in plan(text).entries if e.attack == "noise"}
    assert met == {("linear", "adaptive")}


def test_a_larger_ball_that_helps_is_a_sign_only_where_it_should_hold_the_smaller() -> None:
    def cell(defence: str, threat: str, eps: float, right: int, n: int, wanted: int) -> Result:
        share = right / n
        low, high = wilson(share, n)
        numbers = (n, wanted, share, low, high, 0.1, 1.0)
        return Result("net", defence, "pgd", eps, threat, *numbers, (), 0)

    def signs(defence: str, threat: str, right: int, n: int = 100, wanted: int = 100) -> int:
        small = cell(defence, threat, 2, 40, 100, 100)
        return len(warnings_of([cell(defence, threat, 4, right, n, wanted), small]))

    assert signs("none", "oblivious", 70) == signs("linear", "adaptive", 70) == 1
    assert signs("linear", "oblivious", 70) == 0, "it was made for another network"
    assert signs("linear", "adaptive", 45) == 0, "chance"
    assert signs("linear", "adaptive", 18, 25, 100) == 0, "a part of the images"
    pair = [cell("none", "oblivious", eps, right, 100, 100) for eps, right in ((2, 40), (4, 70))]
    (by_steps,) = warnings_of(pair)
    (at_once,) = warnings_of([replace(one, attack="fgsm") for one in pair])
    assert "Use more steps or restarts" in by_steps.sentence
    assert at_once.sentence.endswith(
        "from 40 at epsilon 2 to 70 at 4: its one step leads too far. Go by PGD."
    )


def test_only_the_same_images_are_compared(tmp_path: Path) -> None:
    shops = [
        Workshop(
            networks={"tiny": network()},
            images={"mnist": {"train": pictures(80, 1), "test": pictures(40, seed)}},
        )
        for seed in (3, 4)
    ]
    path = tmp_path / "r.sqlite"
    mine, other = (
        run(plan(TEXT.replace('name = "tiny"', f'name = "{k}"')), path, workshop=shop)
        for k, shop in enumerate(shops)
    )
    with Store(path) as store, pytest.raises(DataError, match="other labels in the second"):
        compare(store, mine[0], other[0])
