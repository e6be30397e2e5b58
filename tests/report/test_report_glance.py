"""The table that opens a report: cost, clean accuracy and both threats of each defence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from report.made import made_up, measured

from clcnn.evaluation.results import Result
from clcnn.report.blocks import Bullets, Figure, Heading, Paragraph, TableBlock
from clcnn.report.brief import brief_blocks
from clcnn.report.gather import Experiment
from clcnn.report.glance import glance_blocks
from clcnn.report.lines import lines_of
from clcnn.report.threats import threat_figure

KINDS = {"fgsm": "fgsm", "pgd": "pgd", "white": "noise"}


def both(
    defence: str, attack: str, eps: float, right: tuple[int, int], n: int = 20
) -> list[Result]:
    """The oblivious and the adaptive cell of one attack."""
    return [
        measured(defence, attack, eps, threat, right=count, n=n)
        for threat, count in zip(("oblivious", "adaptive"), right, strict=True)
    ]


def experiment(*cells: Result, plan: str = "mine") -> Experiment:
    return made_up(*cells, plan=plan, kinds=KINDS)


def table(*experiments: Experiment) -> TableBlock:
    heading, drawn, block = glance_blocks(experiments)
    assert isinstance(heading, Heading)
    assert isinstance(drawn, Figure)
    assert isinstance(block, TableBlock)
    return block


def values(block: TableBlock) -> dict[str, list[str]]:
    """The first words of each cell, by defence."""
    return {row.heads[1]: [spans[0].text for spans in row.cells] for row in block.rows}


CLEAN = [measured("none", right=19), measured("pmp", right=18)]


def test_the_least_under_either_threat() -> None:
    cells = [*both("pmp", "fgsm", 2.0, (9, 7)), *both("pmp", "pgd", 2.0, (12, 4))]
    block = table(experiment(*CLEAN, *both("none", "pgd", 2.0, (1, 1)), *cells))
    assert values(block) == {
        "no control": ["95.0", "5.0", "5.0", "2 ×"],
        "PMP": ["90.0", "45.0", "20.0", "2 ×"],  # FGSM's oblivious, PGD's adaptive cell
    }
    assert [column.label for column in block.columns[1:3]] == ["oblivious", "adaptive"]
    assert "; PGD, and n = 20 where a cell says no other" in block.caption
    assert block.rows[1].cells[1][-1].text == "FGSM"
    alone = table(experiment(*CLEAN, *both("pmp", "pgd", 2.0, (12, 4))))
    assert "; PGD; n = 20 where" in alone.caption  # said once, where all figures are of one attack
    mixed = table(experiment(*CLEAN, *both("none", "fgsm", 2.0, (1, 1)), *cells))
    assert "; FGSM, and n = 20 where a cell says no other" in mixed.caption
    assert [mixed.rows[k].cells[2][-1].text for k in (0, 1)] == ["0.9–23.6", "PGD"]


def test_a_defence_that_no_informed_attacker_met_is_left_out() -> None:
    oblivious = measured("pmp", "pgd", 2.0, right=12)
    assert glance_blocks([experiment(*CLEAN, oblivious)]) == []
    other = both("feedback", "pgd", 2.0, (8, 6))
    clean = measured("feedback", right=17)
    block = table(experiment(*CLEAN, oblivious, clean, *other))
    assert list(values(block)) == ["feedback"]


def test_only_pairs_of_the_same_images_that_are_complete_and_sought() -> None:
    for cells in (
        [both("pmp", "pgd", 2.0, (8, 6))[0], *both("pmp", "pgd", 2.0, (4, 3), n=10)[1:]],
        both("pmp", "pgd", 2.0, (4, 3), n=10),  # of the 20 that are wanted
        both("pmp", "white", 2.0, (8, 6)),
    ):
        assert glance_blocks([experiment(*CLEAN, *cells)]) == []


def test_sweeps_and_the_published_code_are_no_defences_to_choose_among() -> None:
    cells = [*CLEAN, *both("pmp", "pgd", 2.0, (8, 6))]
    assert glance_blocks([experiment(*cells, plan="strength")]) == []
    assert glance_blocks([experiment(*cells, plan="literal")]) == []
    assert glance_blocks([experiment(*cells)])


def test_only_defences_of_one_experiment_stand_together() -> None:
    first = experiment(*CLEAN, *both("none", "pgd", 2.0, (1, 1)), *both("pmp", "pgd", 2.0, (8, 6)))
    second = experiment(
        *both("none", "pgd", 2.0, (3, 3)), *both("pmp", "pgd", 2.0, (4, 2)), plan="b"
    )
    rows = table(first, second).rows
    assert [row.heads for row in rows] == [
        ("tiny: mine", "no control"),
        ("tiny: mine", "PMP"),
        ("tiny: b", "no control"),
        ("tiny: b", "PMP"),
    ]
    assert [row.cells[2][0].text for row in rows] == ["5.0", "30.0", "15.0", "10.0"]
    assert [row.cells[0][0].text for row in rows] == ["95.0", "90.0", "–", "–"]  # b has no clean


def test_of_many_epsilons_those_that_most_defences_met() -> None:
    cells = [
        cell
        for name in ("a", "b")
        for cell in (
            measured(name),
            *(c for e in (1.0, 2.0, 4.0, 8.0) for c in both(name, "pgd", e, (8, 6))),
        )
    ]
    assert len(table(experiment(*cells)).columns) == 10
    block = table(experiment(*cells, *both("a", "pgd", 3.0, (3, 0))))
    assert [c.group for c in block.columns[1:-1:2]] == ["ε = 1", "ε = 2", "ε = 4", "ε = 8"]
    assert block.legend[-1] == "Also measured, not shown: ε = 3."


def test_of_two_clean_cells_the_larger_counts() -> None:
    small = replace(measured("pmp", right=5, n=10), wanted=10)
    pairs = both("pmp", "pgd", 2.0, (8, 6))
    for cells in ([small, *CLEAN], [*CLEAN, small]):
        assert values(table(experiment(*cells, *pairs)))["PMP"][0] == "90.0"


def test_the_figure_has_the_epsilon_that_most_met_and_every_line_of_it() -> None:
    cells = [*CLEAN, *both("none", "pgd", 2.0, (1, 1)), *both("pmp", "pgd", 2.0, (8, 6))]
    rare = [measured("feedback"), *both("feedback", "pgd", 4.0, (5, 4))]
    second = [*both("pmp", "pgd", 2.0, (4, 2))]
    lines = lines_of([experiment(*cells, *rare), experiment(*second, plan="b")])
    drawn = threat_figure(lines)
    assert "at ε = 2" in drawn.caption
    assert (
        " ".join(panel.alt for panel in drawn.panels)
        .split("/255. ", 1)[1]
        .startswith(
            "tiny: mine: no control, clean 95.0, oblivious 5.0, adaptive 5.0; "
            "PMP, clean 90.0, oblivious 40.0, adaptive 30.0."
        )
    )
    assert len(drawn.panels) == 2  # a column each
    assert "tiny: b: PMP, oblivious 20.0, adaptive 10.0." in drawn.panels[1].alt
    # Where a mark stands is the share that it says.
    mark = 'class="mark hollow s1"'
    (across,) = {
        float(part.split('cx="')[1].split('"')[0])
        for part in drawn.panels[0].body.split("<circle")
        if mark in part
    }
    left, right = 158, drawn.panels[0].width - 12
    assert (across - left) / (right - left) == pytest.approx(0.30, abs=1e-3)


def test_columns_are_as_alike_in_height_as_groups_allow() -> None:
    many = [
        experiment(
            *(c for k in range(size) for c in both(f"d{k}", "pgd", 2.0, (8, 6))), plan=f"p{size}"
        )
        for size in (5, 1, 2, 3)  # 8 or 6 lines beside 3 or 5
    ]
    first, second = threat_figure(lines_of(many)).panels
    assert [first.body.count("tiny: p"), second.body.count("tiny: p")] == [2, 2]


def test_in_brief_the_best_against_who_knows_of_each_network() -> None:
    cells = [*CLEAN, *both("none", "pgd", 2.0, (1, 1)), *both("pmp", "pgd", 2.0, (18, 6))]
    better = [measured("feedback"), *both("feedback", "pgd", 2.0, (9, 7))]
    heading, about, bullets = brief_blocks([experiment(*cells, *better)], [])
    assert isinstance(heading, Heading)
    assert isinstance(about, Paragraph)
    assert "At ε = 2/255" in about.text
    assert isinstance(bullets, Bullets)
    assert bullets.items == [
        "tiny: 35.0 % (18.1–56.7; n = 20) by feedback (plan mine: PGD), which keeps 45.0 % if "
        "the attacker does not know; without control 5.0 %, and the intervals overlap."
    ]
    # Another experiment has other attacks: what is best there is not set beside the first one's.
    another = experiment(measured("strong"), *both("strong", "pgd", 2.0, (19, 18)), plan="b")
    *_, both_plans = brief_blocks([experiment(*cells, *better), another], [])
    assert both_plans == bullets
    assert brief_blocks([experiment(*CLEAN)], []) == []


def test_in_brief_what_is_no_better_than_no_control_and_what_larger_radii_leave() -> None:
    plain = [*both("none", "pgd", 2.0, (9, 9)), *both("none", "pgd", 4.0, (8, 8))]
    controlled = [*both("pmp", "pgd", 2.0, (12, 10)), *both("pmp", "pgd", 4.0, (6, 3))]
    _, _, bullets = brief_blocks([experiment(*CLEAN, *plain, *controlled)], [])
    assert isinstance(bullets, Bullets)
    assert bullets.items[0].endswith(
        "without control 45.0 %, and the intervals overlap. "
        "The most at larger radii: 15.0 % (5.2–36.0) at 4/255."
    )
    nothing = [*both("none", "pgd", 2.0, (0, 0)), *both("pmp", "pgd", 2.0, (12, 1))]
    _, _, bullets = brief_blocks([experiment(*CLEAN, *nothing)], [])
    assert isinstance(bullets, Bullets)
    assert bullets.items[0].endswith("without control 0.0 %, and the intervals overlap.")
    clear = [*both("none", "pgd", 2.0, (0, 0)), *both("pmp", "pgd", 2.0, (12, 12))]
    _, _, bullets = brief_blocks([experiment(*CLEAN, *clear)], [])
    assert isinstance(bullets, Bullets)
    assert bullets.items[0].endswith("without control 0.0 %.")
