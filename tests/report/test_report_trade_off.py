"""The trade-off of clean and robust accuracy, and what each defence costs."""

from __future__ import annotations

import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from report.made import BASE, figure, fill, made_up, measured, read

from clcnn.report import Document
from clcnn.report.costs import costs
from clcnn.report.curves import accuracy_figure
from clcnn.report.gather import Experiment, gather
from clcnn.report.pool import Pool
from clcnn.report.svg import tint
from clcnn.report.trade import trade_offs


def test_the_trade_off_takes_the_worst_attack(shared: Path, document: Document) -> None:
    drawn = figure(document, "trade-off-resnet20-cifar10")
    rows = read(
        shared,
        "SELECT attack, 100 * avg(correct) FROM samples JOIN entries USING (cell) "
        "WHERE plan = 'table1' AND defence = 'linear' AND eps IN (0, 8) GROUP BY attack",
    )
    accuracy = dict(rows)
    worst = min(accuracy["fgsm"], accuracy["pgd"])
    words = f"CLC-NN, linear: clean {accuracy['none']:.1f}, {worst:.1f} under"
    assert words in drawn.panels[0].alt


def attacked(plan: str, defences: str, *cells: tuple[str, float]) -> Experiment:
    """An experiment of clean cells and oblivious ones."""
    results = [measured(d, *cell) for d in defences.split() for cell in [("none", 0.0), *cells]]
    return made_up(*results, plan=plan, kinds={"fgsm": "fgsm", "cw": "cw", "white": "noise"})


@pytest.mark.parametrize(
    ("experiments", "eps"),
    [
        ([attacked("demo", "none pmp", ("white", 16.0), ("fgsm", 2.0))], "2"),
        ([attacked("feedback", "none f", ("white", 255.0), ("cw", 255.0), ("fgsm", 8.0))], "8"),
        (
            [
                attacked("table1", "none a b", ("fgsm", 2.0), ("fgsm", 8.0)),
                attacked("rivals", "none c", ("fgsm", 2.0)),
            ],
            "8",
        ),
    ],
)
def test_the_trade_off_is_at_the_largest_epsilon_that_most_were_attacked_at(
    experiments: list[Experiment], eps: str
) -> None:
    (drawn,) = trade_offs(experiments)
    assert f"ε = {eps}/255" in drawn.panels[0].alt
    assert "under FGSM" in drawn.panels[0].alt
    assert trade_offs([attacked("chance", "none a", ("white", 8.0))]) == []


def test_where_nothing_is_left_a_smaller_epsilon_tells_more() -> None:
    places = [("a", ("fgsm", 2.0), 9), ("a", ("fgsm", 4.0), 2), ("a", ("fgsm", 8.0), 0)]
    cells = [measured(d, *at, right=right) for d, at, right in places]
    clean = [measured(d) for d in ("none", "a")]
    found = made_up(*clean, *cells, plan="table1", kinds={"fgsm": "fgsm"})
    (drawn,) = trade_offs([found])
    assert "ε = 4/255" in drawn.panels[0].alt


def test_the_trade_off_leaves_a_sweep_to_its_own_table() -> None:
    table = attacked("table1", "none a", ("fgsm", 8.0))
    sweep = attacked("strength", "none s1 s2 s3", ("fgsm", 8.0), ("fgsm", 16.0))
    assert trade_offs([sweep]) == []
    assert trade_offs([table, sweep]) == trade_offs([table])


def test_every_defence_is_drawn_beside_what_met_the_same_attacks() -> None:
    found = [
        attacked("table1", "none a b", ("fgsm", 8.0)),
        attacked("feedback", "none f", ("cw", 8.0)),
        attacked("rivals", "a", ("fgsm", 8.0), ("cw", 8.0)),
    ]
    (drawn,) = trade_offs(found)
    shown = [
        {name for name in ("no control", "a", "b", "f") if f" {name}: clean" in panel.alt}
        for panel in drawn.panels
    ]
    assert shown == [{"no control", "a", "b"}, {"no control", "a", "f"}]
    assert "Oblivious attacks (plans feedback and rivals)" in drawn.panels[1].body
    assert "oblivious, ε = 8: FGSM of plans table1 and rivals" in drawn.caption
    assert [key.label for key in drawn.legend] == ["no control", "a", "b", "f"]


def test_the_uncontrolled_network_has_no_adaptive_line_from_elsewhere() -> None:
    own = attacked("table1", "none a", ("fgsm", 8.0))
    other = made_up(
        measured("none", "fgsm", 8.0, "adaptive"),
        measured("a", "fgsm", 8.0, "adaptive"),
        plan="adaptive",
        kinds={"fgsm": "fgsm", "cw": "cw", "white": "noise"},
    )
    drawn = accuracy_figure(own, "tiny", Pool([own, other]))
    assert drawn is not None
    assert "no control, adaptive" not in drawn.panels[0].alt


def test_each_network_has_its_own_trade_off() -> None:
    found = [
        replace(attacked(plan, "none a", ("fgsm", eps)), weights={"tiny": name})
        for plan, name, eps in (("table1", "first", 8.0), ("table4", "second", 4.0))
    ]
    drawn = trade_offs(found)
    assert [figure.name for figure in drawn] == ["trade-off-first", "trade-off-second"]
    assert ["ε = 8/255" in f.panels[0].alt for f in drawn] == [True, False]


def test_costs_stand_by_network() -> None:
    found = [
        replace(attacked(plan, defences, ("fgsm", 8.0)), weights={"tiny": name})
        for plan, name, defences in (
            ("table1", "first", "none a"),
            ("table4", "second", "none a"),
            ("table3", "first", "none b"),
        )
    ]
    assert [(cost.network, cost.defence) for cost in costs(found)] == [
        ("first", "none"),
        ("first", "a"),
        ("first", "b"),
        ("second", "none"),
        ("second", "a"),
    ]


def test_many_defences_stay_in_the_panel_and_none_is_grey() -> None:
    names = [f"d{k}" for k in range(20)]
    experiment = attacked("strength", " ".join(["none", *names]), ("fgsm", 2.0), ("fgsm", 8.0))
    drawn = accuracy_figure(experiment, "tiny", Pool([experiment]))
    assert drawn is not None
    (panel,) = drawn.panels
    across = [float(x) for x in re.findall(r'<circle cx="([0-9.]+)"', panel.body)]
    assert len(across) == 3 * 21
    assert min(across) > 30
    assert max(across) <= panel.width - 4
    classes = [tint(key.series) for key in drawn.legend]
    assert classes[0] == "s0"
    assert len(set(classes)) == 21
    assert not any("s0" in words for words in classes[1:])


def test_costs_are_medians_over_cells(shared: Path) -> None:
    rows = read(
        shared,
        "SELECT DISTINCT cell, number, count, plain_seconds, "
        "(SELECT avg(seconds) FROM samples WHERE samples.cell = chunks.cell "
        "AND samples.chunk = chunks.number) FROM chunks JOIN entries USING (cell) "
        "WHERE defence = 'linear'",
    )
    by_cell: dict[object, list[float]] = {}
    for cell, _, count, plain, seconds in rows:
        by_cell.setdefault(cell, []).append(count * seconds / plain)
    middles = [statistics.median(values) for values in by_cell.values()]
    found = next(c for c in costs(gather([shared])) if c.defence == "linear")
    assert found.middle == pytest.approx(statistics.median(middles))
    assert len(found.multiples) == len(middles)


def test_unlike_defences_of_one_name_have_costs_of_their_own(shared: Path, tmp_path: Path) -> None:
    base = BASE.replace("lr = 0.05", "lr = 0.06")
    other = fill(tmp_path / "o.sqlite", "table3", base=base)
    assert sorted(cost.name for cost in costs(gather([shared, other]))) == [
        "CLC-NN, linear (table1, table3, adaptive)",
        "CLC-NN, linear (table3)",
        "no control",
        "reactive",
    ]
