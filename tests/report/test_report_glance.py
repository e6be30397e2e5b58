"""The table that opens a report: cost, clean accuracy and both threats of each defence."""

from __future__ import annotations

from dataclasses import replace

from report.made import made_up, measured

from clcnn.evaluation.results import Result
from clcnn.report.blocks import Heading, TableBlock
from clcnn.report.gather import Experiment
from clcnn.report.glance import glance_blocks

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
    heading, block = glance_blocks(experiments)
    assert isinstance(heading, Heading)
    assert isinstance(block, TableBlock)
    return block


def values(block: TableBlock) -> dict[str, list[str]]:
    """The first words of each cell, by defence."""
    return {row.heads[1]: [spans[0].text for spans in row.cells] for row in block.rows}


CLEAN = [measured("none", right=19), measured("pmp", right=18)]


def test_both_threats_of_the_attack_that_leaves_least_to_who_knows() -> None:
    cells = [*both("pmp", "fgsm", 2.0, (9, 7)), *both("pmp", "pgd", 2.0, (12, 4))]
    block = table(experiment(*CLEAN, *both("none", "pgd", 2.0, (1, 1)), *cells))
    assert values(block) == {
        "no control": ["95.0", "5.0", "5.0", "2 ×"],
        "PMP": ["90.0", "60.0", "20.0", "2 ×"],  # PGD's own oblivious cell, not the lower of FGSM
    }
    assert [column.label for column in block.columns[1:3]] == ["oblivious", "adaptive"]
    assert "keeps (PGD)," in block.caption  # said once, where all pairs are of one attack
    mixed = table(experiment(*CLEAN, *both("none", "fgsm", 2.0, (1, 1)), *cells))
    assert [mixed.rows[k].cells[2][-1].text for k in (0, 1)] == ["FGSM", "PGD"]


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
