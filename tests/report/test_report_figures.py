"""Figures and numbers behind them, each against a count of its own from the raw store."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report.made import change, figure, read

from clcnn.experiments import figure2, manifold, theorem
from clcnn.report import Document
from clcnn.report.blocks import Details, Figure, Key, Panel, Paragraph, TableBlock
from clcnn.report.files import file_blocks
from clcnn.report.gather import _cuts, gather
from clcnn.report.layers import residual_blocks
from clcnn.report.svg import Plot, Scale, nice, powers, standalone


def test_scales() -> None:
    assert Scale(0, 10, 100, 0)(2.5) == 75
    assert Scale(1, 100, 0, 50, log=True)(10) == pytest.approx(25)
    assert Scale(3, 3, 7, 9)(3) == 7
    assert nice(0, 1) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert nice(0.87, 0.93) == pytest.approx([0.88, 0.9, 0.92])
    assert powers(0.5, 200) == [1, 10, 100]


def test_residuals_are_the_quartiles_of_the_samples(shared: Path) -> None:
    experiment = next(e for e in gather([shared]) if e.name == "table1")
    cell = next(
        r.cell for r in experiment.results if (r.defence, r.attack, r.eps) == ("linear", "pgd", 8.0)
    )
    rows = read(shared, "SELECT before, after FROM samples WHERE cell = ?", cell)
    before, after = (
        np.stack([np.frombuffer(row[k], "<f4") for row in rows]).astype(float) for k in (0, 1)
    )
    found = experiment.residuals[cell]
    assert found.n == 20
    np.testing.assert_allclose(found.before, np.percentile(before, [25, 50, 75], axis=0))
    np.testing.assert_allclose(found.after, np.percentile(after, [25, 50, 75], axis=0))
    uncontrolled = [r.cell for r in experiment.results if r.defence == "none"]
    assert not set(uncontrolled) & set(experiment.residuals)


def test_residuals_are_at_the_largest_eps_of_each_attack(store: Path) -> None:
    change(store, "UPDATE entries SET eps = eps + 8 WHERE plan = 'table1' AND attack = 'fgsm'")
    experiment = next(e for e in gather([store]) if e.name == "table1")
    kept = {(r.attack, r.eps) for r in experiment.results if r.cell in experiment.residuals}
    assert kept == {("none", 0.0), ("fgsm", 16.0), ("pgd", 8.0)}


def test_a_defence_that_met_smaller_eps_alone_has_residuals_there(store: Path) -> None:
    change(
        store,
        "UPDATE entries SET eps = eps + 8 WHERE plan = 'table3' AND eps AND defence = 'linear'",
    )
    experiment = next(e for e in gather([store]) if e.name == "table3")
    kept = {(r.defence, r.eps) for r in experiment.results if r.cell in experiment.residuals}
    assert kept == {("linear", 0.0), ("linear", 16.0), ("reactive", 0.0), ("reactive", 8.0)}


def test_clean_images_alone_make_no_figure_of_residuals(store: Path) -> None:
    change(store, "DELETE FROM entries WHERE plan = 'table1' AND attack != 'none'")
    experiment = next(e for e in gather([store]) if e.name == "table1")
    assert experiment.residuals
    assert residual_blocks([experiment]) == []


def test_residuals_of_the_published_habits_open_when_asked_for(shared: Path) -> None:
    experiment = next(e for e in gather([shared]) if e.name == "table1")
    shown = residual_blocks([experiment])
    (folded,) = residual_blocks([replace(experiment, name="literal")])
    assert isinstance(folded, Details)
    assert folded.blocks == shown
    assert shown


def test_a_long_title_stays_within_its_panel() -> None:
    short, long = (Plot.of(title, (0, 1), (0, 1), width=300) for title in ("PGD", "m" * 36))
    starts = [float(plot.parts[0].split('x="')[1].split('"')[0]) for plot in (short, long)]
    assert starts == [44, 12]


def test_a_shipped_control_is_at_the_input() -> None:
    settings = {"cuts": ["input", "head"]}, {"shipped": "strong"}, {"cuts": None}
    found = _cuts({str(i): {"net": one} for i, one in enumerate(settings)})
    assert found == {("net", "0"): ("input", "head"), ("net", "1"): ("input",)}


def test_the_residual_figure_names_the_cuts(document: Document) -> None:
    drawn = figure(document, "residuals-table1-resnet20-cifar10-linear")
    assert [key.label for key in drawn.legend] == ["clean", "FGSM, ε = 8", "PGD, ε = 8"]
    assert all(cut in drawn.panels[0].body for cut in ("input", "middle", "head"))


def test_accuracy_against_epsilon_says_what_is_stored(shared: Path, document: Document) -> None:
    drawn = figure(document, "table1-resnet20-cifar10-accuracy")
    stored = read(
        shared,
        "SELECT 100 * avg(correct), eps FROM samples JOIN entries USING (cell) "
        "WHERE plan = 'table1' AND defence = 'linear' AND attack IN ('none', 'pgd') "
        "GROUP BY attack, eps ORDER BY eps",
    )
    words = ", ".join(f"{accuracy:.1f} at {eps:g}" for accuracy, eps in stored)
    assert f"CLC-NN, linear, oblivious: {words}." in drawn.panels[1].alt
    assert "dashed" in drawn.panels[0].body  # the adaptive cells of the other plan
    assert "dashed" not in drawn.panels[1].body


def test_the_four_panels_of_the_toy_are_drawn_from_its_states(tmp_path: Path) -> None:
    states = ("clean", "perturbed", "controlled")
    lines = [
        f"{t},{state},{label},{int(state != 'perturbed' or label == 0)},{label + t},{k}"
        for state in states
        for t in (0, 1)
        for label in (0, 1)
        for k in range(150)
    ]
    path = tmp_path / "toy-states.csv"
    path.write_text("\n".join([",".join(figure2.STATES), *lines]) + "\n")
    _, _, drawn, told = file_blocks(path)
    assert isinstance(drawn, Figure)
    assert [panel.alt.split(":")[-1] for panel in drawn.panels] == [
        " 50.0 %.",
        " 50.0 %.",
        " 100.0 %.",
        " 100.0 %.",
    ]
    for panel in drawn.panels:
        assert panel.body.count("h0") == 600  # two classes, clean and not, 150 each
    assert isinstance(told, Paragraph)
    assert "1\u202f800 rows" in told.text


def test_growth_and_theorem_are_drawn(tmp_path: Path) -> None:
    cell = ("net", "linear", "manifold", 8, "oblivious", 5, 60, 20, 90, 0.1)
    rows = [
        [str(v) for v in (*cell, t, cut, 9, 4, n, n, n, n, n, n, p)]
        for t, (cut, n, p) in enumerate([("input", 0, 0), ("head", 0.5, 0.016)])
    ]
    path = tmp_path / "manifold.csv"
    path.write_text("\n".join(",".join(r) for r in [list(manifold.COLUMNS), *rows]) + "\n")
    _, drawn, table = file_blocks(path)
    assert isinstance(drawn, Figure)
    assert (
        "the paper: 0, 0.016. net, CLC-NN, linear, Manifold, ε = 8: 0, 0.5." in drawn.panels[0].alt
    )
    assert "the images that the attack moved (4 of 5)" in drawn.caption
    assert isinstance(table, TableBlock)
    settings = theorem.Settings(depth=3, width=8, rank=2, samples=4)
    lines = [
        list(theorem.COLUMNS),
        *([r[c] for c in theorem.COLUMNS] for r in theorem.run(settings)),
    ]
    path = tmp_path / "theory.csv"
    path.write_text("\n".join(",".join(line) for line in lines) + "\n")
    _, about, drawn, table = file_blocks(path)
    assert isinstance(about, Paragraph)
    assert isinstance(drawn, Figure)
    assert len(drawn.panels) == 6
    by_c = next(panel for panel in drawn.panels if "against c" in panel.alt)
    ticks = re.findall(r'x="([0-9.]+)" y="194" class="tick" text-anchor="middle">', by_c.body)
    steps = np.diff([float(x) for x in ticks])
    np.testing.assert_allclose(steps, steps[0], atol=0.2)
    assert 'middle">0.01<' in by_c.body
    assert isinstance(table, Details)


def test_a_legend_breaks_into_lines() -> None:
    keys = [Key(k, "a name that is rather long") for k in range(5)]
    text = standalone(Figure("x", "x", [Panel(300, 100, "", "nothing")], keys))
    assert text.count("a name that is rather long") == 5
    assert 'height="' + str(10 + 108 + 5 * 20 + 8) in text
