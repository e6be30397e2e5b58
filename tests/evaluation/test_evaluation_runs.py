"""Whole runs: against the library called by hand, and what makes one differ from another."""

from __future__ import annotations

import ast
import copy
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tiny import TEXT, network, pictures, plan, workshop

import clcnn
from clcnn import DataError
from clcnn.attacks import FGSM, Noise, StraightThrough, Transfer, Unrolled, WorstCase
from clcnn.attacks.stealth import trajectory
from clcnn.evaluation import (
    Bench,
    PlanError,
    Store,
    Workshop,
    compare,
    defending,
    hashing,
    pick,
    results,
    run,
    to_csv,
    warnings_of,
)
from clcnn.evaluation.measuring import unpacked
from clcnn.evaluation.results import Result
from clcnn.evaluation.runner import Silent
from clcnn.evaluation.threats import seed_of, smaller_eps
from clcnn.models.weights import header
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


def stored(path: Path, defence: str, attack: str, eps: float, threat: str) -> dict[int, tuple]:
    with Store(path) as store:
        cell = store.read(
            "SELECT cell FROM entries WHERE defence = ? AND attack = ? AND eps = ? AND threat = ?",
            defence,
            attack,
            eps,
            threat,
        )[0][0]
        rows = store.read(
            "SELECT sample, label, predicted, correct, cost, before, after, linf, l2, broken_by "
            "FROM samples WHERE cell = ?",
            cell,
        )
    return {row[0]: row[1:] for row in rows}


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


def keys(text: str, shop: Workshop | None = None) -> dict[tuple[str, str, float, str], str]:
    bench = Bench(plan(text), shop or workshop(), Path("nowhere"), Silent())
    return {
        (c.entry.defence, c.entry.attack, c.entry.eps, c.entry.threat): c.key.hash
        for c in bench.cells()
    }


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("seed = 3", "seed = 4", "nothing"),
        ("chunk = 8", "chunk = 9", "nothing"),
        ("n = 20", "n = 21", "nothing"),
        ("energy = 0.8", "energy = 0.81", "none"),
        ("lr = 0.05", "lr = 0.051", "none"),
        ("iterations = 3", "iterations = 4", "none"),
        ("images = 60", "images = 61", "none"),
        ("images = 60", "images = 60, seed = 1", "none"),
        ("images = 60", "images = 60, correct_only = true", "none"),
        ('"head"]', '"head"]\nweights = "mean"', "none"),
        ('"head"]', '"head"]\nregularization = 0.1', "none"),
        ('"head"]', '"head"]\ncentring = "batch"', "none"),
        ('"head"]', '"head"]\naccelerate = true', "none"),
        ('"input", "middle"', '"input"', "none"),
        ('kind = "noise"', 'kind = "noise"\ntries = 2', "clean and fgsm"),
        ('kind = "noise"', 'kind = "noise"\nnorm = "l2"', "clean and fgsm"),
        ('"linear", energy = 0.8', '"linear", energy = 0.8, seed = 1', "none"),
        ('name = "tiny"', 'name = "other"', "all"),
        ("[defences.linear]", "[defences.linear] # a remark", "all"),
    ],
)
def test_a_changed_setting_never_reuses_a_result_and_others_stay(
    old: str, new: str, same: str
) -> None:
    assert old in TEXT
    before, after = keys(TEXT), keys(TEXT.replace(old, new))
    kept = {key for key in before if after.get(key) == before[key]}
    expected = {
        "nothing": set(),
        "none": {key for key in before if key[0] == "none"},
        "clean and fgsm": {key for key in before if key[1] != "noise"},
        "all": set(before),
    }[same]
    assert kept == expected


def test_weights_images_and_code_are_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(TEXT)
    assert not set(before.values()) & set(keys(TEXT, workshop(seed=1)).values())
    images = {"train": pictures(80, 1), "test": pictures(40, 4)}
    other = Workshop(networks={"tiny": network()}, images={"mnist": images})
    assert not set(before.values()) & set(keys(TEXT, other).values())
    images = {"train": pictures(80, 9), "test": pictures(40, 3)}
    other = Workshop(networks={"tiny": network()}, images={"mnist": images})
    after = keys(TEXT, other)
    assert {key[0] for key in before if before[key] == after[key]} == {"none"}
    real = hashing.room_code
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == "solvers/loop" else real(r))
    after = keys(TEXT)
    assert {key[0] for key in before if before[key] == after[key]} == {"none"}
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == "attacks" else real(r))
    after = keys(TEXT)
    assert {key[1] for key in before if before[key] == after[key]} == {"none"}
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == "models/layers" else real(r))
    assert not set(before.values()) & set(keys(TEXT).values()), "no cell is without a network"


def test_a_defence_counts_the_files_that_it_goes_through_and_no_others() -> None:
    rooms = ("control", "embeddings", "solvers")
    found = set(hashing.through(rooms, clcnn.LinearEmbedding, clcnn.PMP))
    assert {"control", "embeddings/linear", "embeddings/principal", "embeddings/streams"} < found
    assert {"embeddings/base", "embeddings/rounded", "solvers/base", "solvers/pmp"} < found
    assert {"solvers/loop", "solvers/problem", "solvers/greedy"} < found
    assert not found & {"embeddings", "solvers", "embeddings/refined", "solvers/feedback"}
    nonlinear = set(hashing.through(rooms, clcnn.AutoencoderEmbedding))
    assert {"embeddings/linear", "embeddings/descent", "solvers"} < nonlinear  # its last cut
    assert hashing.through(rooms) == hashing.through(rooms, dict) == rooms
    one_pass = set(hashing.through(rooms, clcnn.SpectralEmbedding, clcnn.Feedback))
    assert {"solvers/feedback", "embeddings/spectral", "embeddings/spectrum"} < one_pass


def test_imports_that_are_followed_are_the_only_ones_in_the_shared_rooms() -> None:
    for room in ("embeddings", "solvers"):
        for path in (hashing._PACKAGE / room).rglob("*.py"):
            for line in ast.walk(ast.parse(path.read_text())):
                if isinstance(line, ast.Import):
                    assert not any(alias.name.startswith("clcnn") for alias in line.names), path
                if isinstance(line, ast.ImportFrom):
                    assert line.level == 0, path
                    assert line.module != "clcnn", path


@pytest.mark.parametrize(
    ("file", "same"), [("embeddings/refined", "all"), ("embeddings/principal", "none")]
)
def test_another_embeddings_code_leaves_results_as_they_are(
    file: str, same: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = keys(TEXT), hashing.room_code
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == file else real(r))
    after = keys(TEXT)
    kept = {key[0] for key in before if before[key] == after[key]}
    assert kept == ({"none", "linear"} if same == "all" else {"none"})


def test_every_file_that_a_result_goes_through_is_hashed() -> None:
    """What the rooms import of the package counts itself, or is known to change no number."""
    counted = {*hashing.SHIPPED_ROOMS, *hashing.DEFENCE_ROOMS, *hashing.ATTACK_ROOMS}
    harmless = {"_version", "data", "detection", "errors", "progress", "statistics", "types"}
    harmless |= {"export", "models/cards", "models/shelf"}
    for room in counted - {"attacks"}:
        place = hashing._PACKAGE / room
        for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
            lines = ast.walk(ast.parse(path.read_text()))
            for module in {line.module or "" for line in lines if isinstance(line, ast.ImportFrom)}:
                _, _, used = module.partition("clcnn.")
                if not used or used == "models":  # whose modules are imported by their own names
                    continue
                parts = used.split(".")
                names = {parts[0], "/".join(parts[:2])}
                assert names & (counted | harmless), f"{path} uses {used}, which no hash counts"


def test_code_is_hashed_without_comments_docstrings_and_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "_PACKAGE", tmp_path)
    codes = []
    for text in (
        'def f(x):\n    """One."""\n    return x + 1\n',
        'def f(x):\n    """Other words."""\n    return x + 1  # why\n',
        "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x + 1\n",
        'def f(x):\n    """One."""\n    return x + 2\n',
        "def f(x):\n    if x < 0:\n        x = 0\n    return x + 1\n",
        "def f(x):\n    if (x := x + 1) < 0:\n        raise ValueError\n    return x\n",
        "def f(x):\n    if x < 0:\n        raise\n    else:\n        x = 1\n    return x + 1\n",
        "def f(x):\n    if x < 0:\n        raise Signal\n    return x + 1\n",
        "def f(x):\n    try:\n        x = 1\n    except E:\n        x = 2\n    return x\n",
        "def f(x):\n    try:\n        if x:\n            raise AnError('no')\n        x = 1\n"
        "    except E:\n        x = 2\n    return x\n",
    ):
        (tmp_path / "room.py").write_text(text)
        codes.append(hashing.room_code.__wrapped__("room"))
    assert len(set(codes[:3])) == 1
    assert len(set(codes)) == 8


def test_a_worst_case_and_the_views_of_a_closed_form(tmp_path: Path) -> None:
    text = """
    name = "worst"
    n = 12
    chunk = 12
    [networks.tiny]
    weights = "tiny"
    data = "mnist"
    [defences.layerwise]
    cuts = ["input", "middle", "head"]
    embedding = { kind = "linear", energy = 0.8 }
    solver = { kind = "greedy" }
    fit = { images = 60 }
    [attacks.fgsm]
    kind = "fgsm"
    [attacks.manifold]
    kind = "manifold"
    embedding_of = "layerwise"
    steps = 3
    [attacks.hidden]
    kind = "stealth"
    steps = 3
    [attacks.worst]
    kind = "worst"
    of = ["fgsm", "manifold", "hidden"]
    [[grid]]
    attacks = ["fgsm", "manifold", "worst"]
    eps = 25
    threats = ["oblivious", "adaptive"]
    """
    path = tmp_path / "r.sqlite"
    found = {
        (r.defence, r.attack, r.threat): r.accuracy
        for r in run(plan(text), path, workshop=workshop())
    }
    for defence in ("none", "layerwise"):
        rows = {
            (attack, threat): stored(path, defence, attack, 25.0, threat)
            for attack in ("fgsm", "manifold", "worst")
            for threat in ("oblivious", "adaptive")
        }
        for place in rows["fgsm", "oblivious"]:
            least = min(rows[a, "oblivious"][place][2] for a in ("fgsm", "manifold"))
            assert rows["worst", "oblivious"][place][2] == least
            assert rows["worst", "adaptive"][place][2] <= least
            assert rows["worst", "adaptive"][place][2] <= rows["fgsm", "adaptive"][place][2]
    assert found["none", "fgsm", "adaptive"] == found["none", "fgsm", "oblivious"]
    names = {row[8] for row in rows["worst", "adaptive"].values()}
    assert names <= {None, "clean", "known 0", "known 1"} | {
        "Transfer(FGSM)",
        "ExactGradient(FGSM)",
        "ExactGradient(Manifold)",
        "Stealth",
    }


NESTED = """
name = "nested"
n = 24
chunk = 12
[networks.tiny]
weights = "tiny"
data = "mnist"
[defences.layerwise]
cuts = ["input", "middle", "head"]
embedding = { kind = "linear", energy = 0.8 }
solver = { kind = "greedy" }
fit = { images = 60 }
[attacks.pgd]
kind = "pgd"
steps = 2
[attacks.worst]
kind = "worst"
of = ["pgd"]
[[grid]]
attacks = ["worst"]
eps = [90, 30, 60]
threats = ["oblivious", "adaptive"]
"""


def test_what_broke_a_sample_in_a_smaller_ball_breaks_it_in_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked: list[tuple[float, int]] = []
    first_success = WorstCase.first_success

    def counted(self: WorstCase, model: Any, x: torch.Tensor, *rest: Any, **more: Any) -> Any:
        found = first_success(self, model, x, *rest, **more)
        by = [n for n in found.by if n is None or not n.startswith(("clean", "known", "eps "))]
        attacked.append((round(255 * self.eps), len(by)))
        return found

    monkeypatch.setattr(WorstCase, "first_success", counted)
    path = tmp_path / "r.sqlite"
    run(plan(NESTED), path, workshop=workshop())
    for threat in ("oblivious", "adaptive"):
        rows = [stored(path, "layerwise", "worst", eps, threat) for eps in (30.0, 60.0, 90.0)]
        for place in rows[0]:
            right = [row[place][2] for row in rows]
            assert right == sorted(right, reverse=True)
            if not right[0]:  # and it is told what broke it first
                first = rows[0][place][8]
                assert rows[2][place][8] == (first if first == "clean" else f"eps 30: {first}")
    # Two chunks, 30 before 90 though it stands behind it; ever fewer samples are left to attack.
    assert [eps for eps, _ in attacked] == [30, 60, 90, 30, 60, 90]
    left = [sum(count for at, count in attacked if at == eps) for eps in (30, 60, 90)]
    assert left[0] > left[1] > left[2]


def test_a_worst_case_without_oblivious_examples_has_its_own_at_every_epsilon(
    tmp_path: Path,
) -> None:
    text = NESTED.replace('kind = "pgd"\nsteps = 2', 'kind = "stealth"\nsteps = 2')
    text = text.replace('threats = ["oblivious", "adaptive"]', 'threats = ["adaptive"]')
    text = text.replace("[[grid]]", '[[grid]]\ndefences = ["layerwise"]')
    alone = text.replace("[90, 30, 60]", "[90]")
    (single,) = run(plan(alone), tmp_path / "a.sqlite", workshop=workshop())
    nested = {r.eps: r for r in run(plan(text), tmp_path / "b.sqlite", workshop=workshop())}
    assert nested[90.0].accuracy <= single.accuracy


def test_fewer_images_at_a_smaller_epsilon_are_no_part_of_more(tmp_path: Path) -> None:
    grid = '[[grid]]\nattacks = ["worst"]\nthreats = ["adaptive"]\n'
    text = NESTED[: NESTED.index("[[grid]]")]
    text += f"{grid}eps = 90\nn = 24\n{grid}eps = 30\nn = 6\n{grid}eps = 60\nn = 24\n"
    some = plan(text)
    at = {e.eps: e for e in some.entries if e.defence == "layerwise"}
    assert smaller_eps(some, at[90.0]) == (60.0,)
    assert smaller_eps(some, at[60.0]) == ()


def test_broken_stays_broken_even_where_an_answer_depends_on_its_neighbours(
    tmp_path: Path,
) -> None:
    text = NESTED.replace("[90, 30, 60]", f"{list(range(16, 60, 4))}")
    text = text.replace(
        'solver = { kind = "greedy" }', 'solver = { kind = "greedy" }\ncentring = "batch"'
    )
    found = run(plan(text), tmp_path / "r.sqlite", workshop=workshop())
    shares = [r.accuracy for r in found if (r.defence, r.threat) == ("layerwise", "adaptive")]
    assert shares == sorted(shares, reverse=True)


def test_whether_products_are_rounded_is_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.replace('"head"]', '"head"]\naccelerate = "bfloat16"')
    found = []
    for can in (True, False):
        monkeypatch.setattr(defending, "multiplies_bfloat16", lambda device, can=can: can)
        found.append(keys(text))
    assert {key[0] for key in found[0] if found[0][key] == found[1][key]} == {"none"}


def test_a_smaller_epsilon_more_makes_another_cell(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    before = run(plan(NESTED.replace("[90, 30, 60]", "[90]")), path, workshop=workshop())
    after = [r for r in run(plan(NESTED), path, workshop=workshop()) if r.eps == 90]
    assert len(before) == len(after) == 4
    assert not {r.cell for r in before} & {r.cell for r in after}


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


def test_what_a_plan_asks_for_and_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"n = 41 .* of which there are 40"):
        run(plan(TEXT.replace("n = 20", "n = 41")), tmp_path / "r.sqlite", workshop=workshop())
    with pytest.raises(PlanError, match="neither a network that comes with the package nor a file"):
        run(plan(), tmp_path / "r.sqlite", workshop=Workshop())


def test_a_smaller_count_is_the_start_of_a_larger(finished: Path) -> None:
    shop = workshop()
    few = shop.images(plan(), "tiny", "test", 5, 3).places
    many = shop.images(plan(), "tiny", "test", 20, 3).places
    assert torch.equal(few, many[:5])
    other = shop.images(plan(), "tiny", "test", 20, 4).places
    assert not torch.equal(other, many)


def test_images_and_a_network_of_ones_own(tmp_path: Path) -> None:
    images = {"train": pictures(80, 1), "test": pictures(40, 3)}
    mine = plan(TEXT.replace('data = "mnist"', 'data = "quarters"'))
    shop = Workshop(networks={"tiny": network()}, images={"quarters": images})
    own = run(mine, tmp_path / "own.sqlite", workshop=shop)
    known = run(plan(), tmp_path / "known.sqlite", workshop=workshop())
    assert [r.accuracy for r in own] == [r.accuracy for r in known]


class Bent(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module, shift: float = 0.0) -> None:
        super().__init__()
        self.inner, self.shift = inner, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + self.shift)


class BentOtherwise(Bent):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x - self.shift)


def test_code_and_constants_of_ones_own_network_are_part_of_the_hash() -> None:
    def keys_of(module: torch.nn.Module) -> set[str]:
        images = {"train": pictures(80, 1), "test": pictures(40, 3)}
        shop = Workshop(networks={"tiny": module.eval()}, images={"mnist": images})
        return set(keys(TEXT, shop).values())

    tanh, relu = Bent(network()), Bent(network())
    tanh.act, relu.act = torch.tanh, torch.relu  # type: ignore[assignment]
    shifted = [Bent(network()) for _ in range(6)]
    for place, bent in enumerate(shifted[:2]):
        bent.register_buffer("mean", torch.full((3,), float(place)), persistent=False)
    shifted[2].plain = torch.ones(2)  # type: ignore[assignment]
    shifted[3]._hidden = {"mean": [torch.ones(2)]}  # type: ignore[assignment]
    shifted[4].config = SimpleNamespace(mean=1)  # type: ignore[assignment]
    shifted[5].register_forward_hook(lambda module, given, answer: answer + 1)
    others = [
        *shifted,
        Bent(network()),
        Bent(network(), 0.5),
        BentOtherwise(network()),
        tanh,
        relu,
        network(),
    ]
    found = [keys_of(module) for module in others]
    for place, one in enumerate(found):
        assert not any(one & other for other in found[:place]), place
    assert keys_of(Bent(network())) == found[6]
    again = Bent(network())
    again.config = SimpleNamespace(mean=1)  # type: ignore[assignment]
    assert keys_of(again) == found[4], "where an object lies in memory decides nothing"


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
