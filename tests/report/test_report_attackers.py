"""What a section says of its attacks, and what the page says of tables that nobody measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from evaluation.tiny import plan
from report.made import BASE, Page, change, fill, made_up, measured, read, text, workshop

from clcnn.attacks import PGD, Stealth, StraightThrough, Unrolled
from clcnn.attacks.worst import _numbered
from clcnn.evaluation import run
from clcnn.report import make_report, to_html
from clcnn.report.attackers import attacker_blocks, settings
from clcnn.report.beyond import beyond
from clcnn.report.blocks import Block, Bullets, Details, TableBlock
from clcnn.report.breakers import breaker_blocks
from clcnn.report.defenders import defender_blocks
from clcnn.report.gather import gather
from clcnn.report.pool import Pool
from clcnn.report.tried import Attempt, attempts

WORST = """
[attacks.worst]
kind = "worst"
of = ["pgd", "noise"]

[attacks.slow]
kind = "pgd"
steps = 7
loss = "margin"
random_start = true
through = ["straight_through"]

[[grid]]
defences = ["none", "linear"]
attacks = ["worst", "slow"]
eps = [8]
threats = ["oblivious", "adaptive"]
"""


def listed(blocks: list[Block]) -> list[str]:
    (details,) = blocks
    assert isinstance(details, Details)
    (bullets,) = details.blocks
    assert isinstance(bullets, Bullets)
    return list(bullets.items)


def test_each_attack_with_its_settings_and_members(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    run(plan(f'name = "mine"\n{BASE}{WORST}', tmp_path), store, workshop=workshop())
    found = listed(attacker_blocks(*gather([store])))
    step = "step size epsilon / 4"  # PGD's own, which the plan does not set
    assert f"PGD (of the worst case): steps 2, {step}, loss cross-entropy" in found
    assert (
        f"slow: pgd, steps 7, {step}, random start, loss margin, who knows of the control sees it "
        "straight through" in found
    )
    worst = next(line for line in found if line.startswith("Worst case: "))
    assert "all of PGD and Noise, and what breaks it at a smaller epsilon" in worst
    assert not any("fgsm" in line.lower() for line in found)  # in the plan, but in no cell


def test_what_breaks_the_images_is_counted_on_those_that_were_left(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    run(plan(f'name = "mine"\n{BASE}{WORST}', tmp_path), store, workshop=workshop())
    # As if another attack of the set had been the first to break some of them.
    where = "attack = 'worst' AND threat = 'adaptive' AND defence != 'none'"
    adaptive = f"(SELECT cell FROM entries WHERE {where})"
    at_all = f"cell IN {adaptive} AND sample"
    change(
        store,
        f"UPDATE samples SET broken_by = NULL WHERE cell IN {adaptive}",
        f"UPDATE samples SET broken_by = 'clean' WHERE {at_all} % 8 = 0",
        f"UPDATE samples SET broken_by = 'eps 2: known 0' WHERE {at_all} % 8 = 1",
        f"UPDATE samples SET broken_by = 'known 1' WHERE {at_all} % 8 = 2",
        f"UPDATE samples SET broken_by = 'Unrolled(PGD)' WHERE {at_all} % 8 = 3",
        f"UPDATE samples SET broken_by = 'StraightThrough(PGD)' WHERE {at_all} % 8 = 4",
    )
    (table,) = breaker_blocks(*gather([store]))
    assert isinstance(table, TableBlock)
    rests = [i % 8 for (i,) in read(store, f"SELECT sample FROM samples WHERE cell IN {adaptive}")]
    n = [rests.count(k) for k in range(8)]
    tried = len(rests) - n[0] - n[1]  # the others were not
    left = [tried, tried - n[2], tried - n[2] - n[4], tried - n[2] - n[4] - n[3]]
    names = ["made without control", "PGD, straight through", "PGD, unrolled", "Noise", "left"]
    assert [column.label for column in table.columns] == names
    (row,) = table.rows
    assert [[span.text for span in cell] for cell in row.cells] == [
        [str(n[2]), f"of {left[0]}"],
        [str(n[4]), f"of {left[1]}"],
        [str(n[3]), f"of {left[2]}"],
        ["0", f"of {left[3]}"],  # tried, and broke nothing
        [str(left[3])],
    ]


def test_attempts_are_called_as_the_store_calls_what_broke_an_image() -> None:
    kinds = ["pgd", "pgd", "stealth"]
    ways = [["straight_through", "unrolled"], ["unrolled"], ["itself"]]
    told = {"attacks": [{"kind": kind} for kind in kinds], "through": ways}
    pgd = PGD(0.1)
    wrapped = [StraightThrough(pgd), Unrolled(pgd), Unrolled(pgd), Stealth(0.1)]
    found = attempts(told)
    assert [one.label for one in found] == _numbered(wrapped)
    assert [one.place for one in found] == [0, 0, 1, 2]


def test_what_is_not_tried_on_a_control_is_no_zero() -> None:
    cells = [
        measured(defence, "worst", 8.0, "adaptive", right=5, cell=cell)
        for cell, defence in enumerate(("pmp", "feedback"))
    ]
    first, second = (
        Attempt(0, "straight_through", "StraightThrough(PGD)"),
        Attempt(1, "itself", "Square"),
    )
    experiment = made_up(*cells)
    experiment.made[-1].manifest["plan"]["attacks"] = {"worst": {"of": ["pgd", "square"]}}
    experiment = replace(
        experiment,
        broken={0: {"StraightThrough(PGD)": 3, "": 5}, 1: {"known 0": 2, "": 5}},
        tried={0: [first, second], 1: [second]},
    )
    (table,) = breaker_blocks(experiment)
    assert isinstance(table, TableBlock)
    found = [[span.text for cell in row.cells for span in cell] for row in table.rows]
    assert found == [
        ["0", "of 8", "3", "of 8", "0", "of 5", "5"],
        ["2", "of 7", "–", "0", "of 5", "5"],
    ]
    # What is stored under a name that the settings do not give is not taken for what is left.
    other = replace(experiment, broken={0: {"Unheard": 1, "": 5}, 1: {"": 5}})
    (table,) = breaker_blocks(other)
    assert isinstance(table, TableBlock)
    assert [column.label for column in table.columns][-2:] == ["Unheard", "left"]
    assert [row.cells[-1][0].text for row in table.rows] == ["5", "5"]


def test_an_attack_outside_of_the_worst_case_that_leaves_less_is_named() -> None:
    worst = [measured("pmp", "worst", eps, right=18) for eps in (4.0, 8.0)]
    others = [
        measured("pmp", "manifold", 4.0, right=12),  # may be chance
        measured("pmp", "manifold", 8.0, right=2),
        measured("none", "manifold", 8.0, right=1),
        measured("pmp", "pgd", 8.0, right=19),
    ]
    adaptive, table = made_up(*worst, plan="adaptive"), made_up(*others)
    (said,) = beyond(table, Pool([adaptive, table]))
    assert said.endswith("leaves really less (Manifold of PMP at ε = 8).")
    assert beyond(made_up(*others[:1]), Pool([adaptive])) == []


def test_another_search_that_leaves_less_to_who_knows_is_named() -> None:
    worst = measured("pmp", "worst", 2.0, "adaptive", right=10)
    table = made_up(measured("pmp", "fgsm", 2.0, right=12))
    for right, told in ((8, 1), (11, 0)):
        longer = measured("pmp", "persistent", 2.0, "adaptive", right=right)
        said = beyond(table, Pool([made_up(worst, longer, plan="adaptive"), table]))
        assert len(said) == told
        assert all("Longer search, tiny, PMP, ε = 2: 40.0 (21.9–61.3)" in s for s in said)


def test_auto_encoders_say_where_principal_components_stand_in_for_them() -> None:
    kinds = {"solver": {"kind": "pmp"}, "cuts": ["input", "head"]}
    nonlinear = {**kinds, "embedding": {"kind": "autoencoder", "linear_last": True}}
    known = {
        "nonlinear": {"tiny": nonlinear},
        "single": {"tiny": {**nonlinear, "cuts": ["input"]}},
        "linear": {"tiny": {**kinds, "embedding": {"kind": "linear"}}},
    }
    experiment = made_up(*(measured(name) for name in known))
    experiment.made[-1].manifest["plan"]["defences"].update(known)
    assert ["principal components" in item for item in listed(defender_blocks(experiment))] == [
        True,
        False,
        False,
    ]


def test_what_takes_a_choice_over_and_changes_it_says_so() -> None:
    chosen = {
        "chosen": {"file": "net-linear.json", "split": "heldout", "n": 200},
        "cuts": ["input"],
    }
    kinds = {"embedding": {"kind": "linear"}, "solver": {"kind": "pmp", "iterations": 5}}
    longer = {**kinds, "solver": {"kind": "pmp", "iterations": 20}}
    known = {
        "linear": {"tiny": {**chosen, **kinds}},
        "same": {"tiny": {**chosen, **kinds}},
        "mine": {"tiny": {**chosen, **longer}},
    }
    experiment = made_up(*(measured(name) for name in known))
    experiment.made[-1].manifest["plan"]["defences"].update(known)
    ends = [item.rsplit("; ", 1)[1] for item in listed(defender_blocks(experiment))]
    own = "chosen on 200 held-out images"
    assert ends == [own, own, f"otherwise as CLC-NN, linear, {own}"]


def test_what_is_not_set_or_goes_without_saying_is_not_said() -> None:
    given = {"steps": 3, "step_size": None, "restarts": 1, "random_start": False, "std": 0.25}
    assert settings(given) == ["steps 3", "std 0.25"]
    assert settings({"restarts": 2, "slack": 0.0}) == ["restarts 2", "slack 0"]


def test_a_store_that_does_not_say_has_no_list() -> None:
    assert attacker_blocks(made_up(measured("pmp", "pgd", 2.0))) == []


def test_tables_that_nobody_measured_are_named_beside_others(tmp_path: Path) -> None:
    alone = Page(to_html(make_report([fill(tmp_path / "a.sqlite", "table1")], pictures=0)))
    assert "Nothing of this table is measured yet" not in alone.text
    both = fill(tmp_path / "b.sqlite", "table1", "table3")
    page = Page(to_html(make_report([both], pictures=0)))
    for number in (2, 4, 5):
        assert f"clcnn experiment table{number}" in page.text
    assert "clcnn experiment table3 does it" not in page.text


def test_our_own_experiments_stand_beside_the_paper_only_where_they_measure(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    grid = text("table1").replace('name = "table1"', 'name = "literal"')
    grid = grid.replace('["none", "fgsm", "pgd"]', '["none", "fgsm"]')
    grid += '\n[[grid]]\ndefences = ["linear"]\nattacks = ["pgd"]\neps = [2]\n'
    run(plan(grid, tmp_path), store, workshop=workshop())
    rows = [r for t in Page(to_html(make_report([store], pictures=0))).tables for r in t]
    assert any("paper" in cell for row in rows for cell in row)
    assert not any("not measured" in cell for row in rows for cell in row)
