"""The paper's figures as data, and the plans that measure ours beside them."""

from __future__ import annotations

import pytest

from clcnn.experiments import paper
from clcnn.experiments.blueprints import Blueprint, blueprint

TABLES = list(paper.TABLES)


def places(drawn: Blueprint) -> list[tuple[str, str, str, float]]:
    """(network, defence, attack, eps) of every cell, with all repetitions."""
    return [
        (network, defence, attack, eps)
        for grid in drawn.values["grid"]
        for network in grid["networks"]
        for defence in grid["defences"]
        for attack in grid["attacks"]
        for eps in ([0.0] if attack == "none" else map(float, grid["eps"]))
    ]


def test_counts_and_some_cells_read_from_the_printed_page() -> None:
    counts = {name: sum(key[0] == name for key in paper.CELLS) for name in TABLES}
    assert counts == {"table1": 78, "table2": 156, "table3": 26, "table4": 52, "table5": 52}
    read = {
        ("table1", "resnet20-cifar10", "linear", "pgd", 4.0): 31,
        ("table1", "resnet20-cifar100", "nonlinear", "none", 0.0): 58,
        ("table2", "resnet20-cifar10-pgd", "linear", "cw", 8.0): 64,
        ("table2", "resnet20-cifar10-labelsmooth", "none", "manifold", 2.0): 42,
        ("table3", "resnet20-cifar10", "linear-reactive", "none", 0.0): -3,
        ("table4", "densenet40-cifar10", "nonlinear", "manifold", 8.0): 59,
        ("table5", "resnet20-cifar10", "layerwise", "cw", 4.0): 50,
    }
    assert {key: paper.CELLS[key].value for key in read} == read
    assert paper.find("table1", "resnet20-cifar10", "none", "none", 4) is not None
    assert paper.find("table1", "resnet20-cifar10", "reactive", "none", 0) is None


def test_table_5_repeats_the_linear_column_of_table_1() -> None:
    linear = [cell for cell in paper.CELLS.values() if cell.table == "table5"]
    linear = [cell for cell in linear if cell.defence == "linear"]
    assert len(linear) == 26
    for cell in linear:
        assert paper.CELLS["table1", *cell.key[1:]].value == cell.value


def test_what_contradicts_table_1_is_marked() -> None:
    marked = {
        (cell.attack, cell.eps)
        for cell in paper.CELLS.values()
        if cell.note and cell.table == "table3" and not cell.open
    }
    assert marked == {("pgd", 4.0), ("pgd", 8.0), ("cw", 4.0), ("cw", 8.0)}
    note = paper.CELLS["table3", "resnet20-cifar10", "linear-reactive", "pgd", 8.0].note
    assert note is not None
    assert "-14 %" in note
    assert all(cell.open == ("cifar100" in cell.network) for cell in paper.CELLS.values())


@pytest.mark.parametrize("table", TABLES)
def test_every_cell_of_the_paper_has_its_cell_in_the_plan_and_the_reverse(table: str) -> None:
    planned = places(blueprint(table))
    assert len(planned) == len(set(planned)), "two cells in one place of a table"
    printed = {c.key[1:] for c in paper.CELLS.values() if c.table == table and not c.open}
    if table == "table3":  # a difference needs both of its sides
        printed = {(n, side, a, e) for n, _, a, e in printed for side in ("linear", "reactive")}
    assert printed == set(planned)
