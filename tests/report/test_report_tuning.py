"""The grid of a tuning and its choice, as the report shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
from report.made import made_up, measured, workshop

from clcnn.evaluation import Grid, Store, confirm, tune
from clcnn.evaluation.defence import Defence, Fit
from clcnn.evaluation.plan import Network
from clcnn.evaluation.results import Result
from clcnn.report import ReportError, make_report
from clcnn.report.blocks import Figure, Paragraph, TableBlock
from clcnn.report.gather import Experiment, gather
from clcnn.report.tuning import choice_blocks, in_order, tuning_blocks


def test_the_grid_of_a_tuning_has_the_same_choice(tmp_path: Path) -> None:
    grid = Grid(iterations=(1, 2), lr=(0.05, 0.1), energy=(0.8,), eps=(8.0,))
    with Store(tmp_path / "t.sqlite") as store:
        choice = tune(
            Network("resnet20-cifar10", "mnist"),
            store,
            defence=Defence(cuts=("input", "head"), fit=Fit(60)),
            grid=grid,
            n=8,
            chunk=8,
            workshop=workshop(),
        )
    experiment = gather([tmp_path / "t.sqlite"])[0]
    assert experiment.is_tuning
    lead, drawn, table = tuning_blocks(experiment)
    assert isinstance(lead, Paragraph)
    assert "4 points of 4" in lead.text
    assert isinstance(drawn, Figure)
    best = choice.chosen
    settings = f"energy 0.8, lr {best.lr:g}, {best.iterations} iterations"
    assert drawn.panels[0].alt.endswith(f"its choice: {settings}.")
    assert isinstance(table, TableBlock)
    marked = [row.heads for row in table.rows if "(chosen)" in row.heads[0]]
    assert marked == [(f"{settings} (chosen)",)]
    assert drawn.caption.endswith("ringed: its choice")
    with Store(tmp_path / "t.sqlite") as store:
        stood = confirm(choice, store, n=20, workshop=workshop())
    grid_again, more = sorted(gather([tmp_path / "t.sqlite"]), key=lambda e: len(e.results))[::-1]
    assert len(tuning_blocks(grid_again)) == 3
    (listed,) = tuning_blocks(more)
    assert isinstance(listed, TableBlock)
    stood.write(tmp_path / "choice.json")
    final = stood.chosen
    settings = f"energy 0.8, lr {final.lr:g}, {final.iterations} iterations"
    for blocks in (
        tuning_blocks(grid_again, [grid_again, more]),
        choice_blocks(tmp_path / "choice.json"),
    ):
        _, drawn, table = blocks
        assert isinstance(drawn, Figure)
        assert drawn.panels[0].alt.endswith(f"its choice: {settings}.")
        assert drawn.caption.endswith("ringed: the choice, by more clean images")
        assert isinstance(table, TableBlock)
        assert [r.heads for r in table.rows if "(chosen)" in r.heads[0]] == [
            (f"{settings} (chosen)",)
        ]

    assert "20 held-out images" in listed.caption
    assert in_order([more, grid_again]) == [grid_again, more]
    assert len(listed.rows) == len(stood.confirmed) > 0
    for row, tried in zip(listed.rows, stood.confirmed, strict=True):
        assert row.heads == (f"energy 0.8, lr {tried.lr:g}, {tried.iterations} iterations",)
        assert row.cells[0][0].text == f"{100 * tried.clean:.1f}"
    opening = make_report([tmp_path / "t.sqlite"]).blocks[1]
    assert isinstance(opening, Paragraph)
    assert " cells of 2 searches for settings, " in opening.text


def test_what_stood_on_more_images_is_the_choice_and_not_the_best_of_the_grid() -> None:
    points = ("lr 0.1, 1 iterations", "lr 0.2, 1 iterations")
    grid = made_up(
        measured("none", right=16),
        measured("none", "fgsm", 8.0, right=2),
        measured(points[0], right=16),
        measured(points[0], "fgsm", 8.0, right=6),
        measured(points[1], right=16),
        measured(points[1], "fgsm", 8.0, right=18),
        plan="tune net linear heldout 123456",
    )
    more = made_up(
        measured("none", right=16),
        measured(points[1], right=12),
        measured(points[0], right=16),
        plan="tune net linear heldout clean abcdef",
    )
    for others, chosen in (((), points[1]), ((grid, more), points[0])):
        *_, table = tuning_blocks(grid, others)
        assert isinstance(table, TableBlock)
        heads = [row.heads[0] for row in table.rows]
        assert [head for head in heads if "(chosen)" in head] == [f"{chosen} (chosen)"]
    with pytest.raises(ReportError, match="expected"):
        choice_blocks(Path("nowhere.json"))


def part_of_grid(*cells: Result) -> Experiment:
    """A tuning of the given cells beside no control."""
    plain = [measured("none", right=18), measured("none", "fgsm", 8.0, right=2)]
    return made_up(*plain, *cells, plan="tune tiny linear heldout 123456")


def at(lr: float, clean: int, attacked: int | None, n: int = 20) -> list[Result]:
    name = f"lr {lr:g}, 5 iterations"
    cells = [measured(name, right=clean)]
    return cells if attacked is None else [*cells, measured(name, "fgsm", 8.0, right=attacked, n=n)]


@pytest.mark.parametrize(
    "cells",
    [
        [*at(0.1, 18, 9), *at(0.2, 18, 0, n=0)],  # not begun
        [*at(0.1, 18, 9), *at(0.2, 18, None)],  # after the clean images of --feasible-only
    ],
)
def test_nothing_is_chosen_from_a_part_of_a_grid(cells: list[Result]) -> None:
    _, warning, drawn, table = tuning_blocks(part_of_grid(*cells))
    assert isinstance(warning, Paragraph)
    assert "nothing is chosen yet" in warning.text
    assert isinstance(drawn, Figure)
    assert "ringed" not in drawn.caption
    assert 'r="9"' not in drawn.panels[0].body
    assert isinstance(table, TableBlock)
    assert not any("(chosen)" in row.heads[0] for row in table.rows)


def test_a_choice_that_keeps_too_little_says_so() -> None:
    _, drawn, table = tuning_blocks(part_of_grid(*at(0.1, 15, 9), *at(0.2, 10, None)))
    assert isinstance(drawn, Figure)
    assert "which loses least" in drawn.caption
    assert "cheapest" not in drawn.caption
    assert isinstance(table, TableBlock)
    assert [row.heads[0] for row in table.rows] == ["lr 0.1, 5 iterations (chosen)"]
