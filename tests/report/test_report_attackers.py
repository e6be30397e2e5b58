"""What a section says of its attacks, and what the page says of tables that nobody measured."""

from __future__ import annotations

from pathlib import Path

from evaluation.tiny import plan
from report.made import BASE, Page, fill, made_up, measured, text, workshop

from clcnn.evaluation import run
from clcnn.report import make_report, to_html
from clcnn.report.attackers import attacker_blocks, settings
from clcnn.report.blocks import Bullets, Details
from clcnn.report.gather import Experiment, gather

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


def lines(experiment: Experiment) -> list[str]:
    (details,) = attacker_blocks(experiment)
    assert isinstance(details, Details)
    (bullets,) = details.blocks
    assert isinstance(bullets, Bullets)
    return list(bullets.items)


def test_each_attack_with_its_settings_and_members(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    run(plan(f'name = "mine"\n{BASE}{WORST}', tmp_path), store, workshop=workshop())
    found = lines(*gather([store]))
    assert "PGD (of the worst case): steps 2, loss cross-entropy" in found
    assert (
        "slow: pgd, steps 7, random start, loss margin, who knows of the control sees it straight "
        "through" in found
    )
    worst = next(line for line in found if line.startswith("Worst case: "))
    assert "all of PGD and Noise, and what breaks it at a smaller epsilon" in worst
    assert not any("fgsm" in line.lower() for line in found)  # in the plan, but in no cell


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
