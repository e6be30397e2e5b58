"""Worst cases in a store: what broke a sample, at this epsilon and at smaller ones."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import plan, stored, workshop

from clcnn.attacks import WorstCase
from clcnn.evaluation import Store, run, seals
from clcnn.evaluation.results import results
from clcnn.evaluation.threats import smaller_eps


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


def test_a_smaller_epsilon_more_makes_another_cell(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    before = run(plan(NESTED.replace("[90, 30, 60]", "[90]")), path, workshop=workshop())
    after = [r for r in run(plan(NESTED), path, workshop=workshop()) if r.eps == 90]
    assert len(before) == len(after) == 4
    assert not {r.cell for r in before} & {r.cell for r in after}


@pytest.mark.parametrize(
    ("of", "warns"),
    [
        ('["hidden", "fgsm", "square"]', True),
        ('["hidden", "square", "fgsm"]', False),
        ('["hidden", "square"]', False),
    ],
)
def test_square_warns_where_it_beats_gradients_tried_before_it(
    of: str, warns: bool, tmp_path: Path
) -> None:
    text = f"""
    name = "worst"
    n = 4
    chunk = 4
    [networks.tiny]
    weights = "tiny"
    data = "mnist"
    [defences.layerwise]
    cuts = ["input", "middle", "head"]
    embedding = {{ kind = "linear", energy = 0.8 }}
    solver = {{ kind = "greedy" }}
    fit = {{ images = 60 }}
    [attacks.fgsm]
    kind = "fgsm"
    [attacks.hidden]
    kind = "stealth"
    steps = 1
    [attacks.square]
    kind = "square"
    queries = 1
    [attacks.worst]
    kind = "worst"
    of = {of}
    [[grid]]
    defences = ["layerwise"]
    attacks = ["worst"]
    eps = 25
    threats = ["adaptive"]
    """
    path = tmp_path / "r.sqlite"
    run(plan(text), path, workshop=workshop())
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("UPDATE samples SET broken_by = 'Square'")
        seals.enable(store)
        seals.seal_all(store)
    with Store(path) as kept:
        (found,) = results(kept, "worst")
    said = [f.sentence for f in found.findings if f.check == "black-box beats white-box"]
    assert [sentence.startswith("Square broke 4 samples") for sentence in said] == [True] * warns
