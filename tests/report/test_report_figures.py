"""Figures and numbers behind them, each against a count of its own from the raw store."""

from __future__ import annotations

import io
import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation.tiny import network, pictures
from PIL import Image
from report.made import BASE, change, fill, made_up, measured, read, workshop

from clcnn.evaluation import Grid, Store, Workshop, confirm, tune
from clcnn.evaluation.defence import Defence, Fit
from clcnn.evaluation.plan import Network
from clcnn.evaluation.results import Result
from clcnn.experiments import figure2, manifold, theorem
from clcnn.report import Document, ReportError, make_report
from clcnn.report.blocks import Details, Figure, Key, Panel, Paragraph, Pictures, TableBlock
from clcnn.report.costs import costs
from clcnn.report.curves import accuracy_figure
from clcnn.report.files import file_blocks
from clcnn.report.gather import Experiment, _cuts, gather
from clcnn.report.layout import Pool
from clcnn.report.pictures import choose, replan
from clcnn.report.png import to_png
from clcnn.report.svg import Scale, nice, powers, standalone, tint
from clcnn.report.trade import trade_offs
from clcnn.report.tuning import choice_blocks, tuning_blocks


def figure(document: Document, name: str) -> Figure:
    return next(b for b in document.blocks if isinstance(b, Figure) and b.name == name)


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


def test_the_trade_off_leaves_a_sweep_to_its_own_table() -> None:
    table = attacked("table1", "none a", ("fgsm", 8.0))
    sweep = attacked("strength", "none s1 s2 s3", ("fgsm", 8.0), ("fgsm", 16.0))
    assert trade_offs([sweep]) == []
    assert trade_offs([table, sweep]) == trade_offs([table])


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
    _, drawn, told = file_blocks(path)
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


def test_pictures_are_the_images(shared: Path, document: Document) -> None:
    shown = next(b for b in document.blocks if isinstance(b, Pictures))
    assert shown.heads == ("input", "attacked", "control × 10", "controlled")
    assert len(shown.rows) == 6
    assert "differ from the stored" not in shown.caption
    everything = (pictures(40, 3)[0] * 255).round()
    for row in shown.rows:
        x, x_adv, u, z = (
            torch.from_numpy(np.array(Image.open(io.BytesIO(p.png)))).float() for p in row
        )
        assert (everything[:, 0] == x).flatten(1).all(1).any()
        assert 0 < (x_adv - x).abs().max() <= 8 + 1
        inside = (u > 0) & (u < 255) & (z > 0) & (z < 255)
        assert ((z - x_adv) - (u - 127.5) / 10)[inside].abs().max() <= 1.2


def test_pictures_are_chosen_from_both_sides() -> None:
    # label 1 throughout; control sets 0, 2, 4, 6 and 8 right, and harms 9
    plain = {k: (1, 0 if k % 2 == 0 else 1) for k in range(10)}
    controlled = dict.fromkeys(range(9), (1, 1)) | {9: (1, 0)}
    assert choose(controlled, plain, 6) == ([0, 2, 4, 6, 1, 3], 4)
    assert choose(controlled, plain, 1) == ([0], 1)
    assert choose(controlled, dict.fromkeys(range(10), (1, 1)), 3) == ([0, 1, 2], 0)
    assert choose({0: (1, 1), 2: (1, 1)}, plain, 6) == ([0, 2], 2)
    with pytest.raises(ReportError, match="not measured both with and without"):
        choose(controlled, {}, 3)


def test_a_plan_comes_back_from_its_manifest(shared: Path) -> None:
    from clcnn.evaluation.runner import Bench, Silent

    experiment = next(e for e in gather([shared]) if e.name == "table1")
    result = next(r for r in experiment.results if (r.defence, r.attack) == ("linear", "pgd"))
    bench = Bench(replan(experiment, result), workshop(), shared.parent, Silent())
    stored = read(shared, "SELECT hash FROM cells WHERE id = ?", result.cell)[0][0]
    assert bench.cells()[0].key.hash == stored


def test_without_data_the_page_says_why_there_are_no_pictures(shared: Path) -> None:
    blocks = make_report([shared]).blocks
    texts = [b.text for b in blocks if isinstance(b, Paragraph)]
    assert any(text.startswith("No pictures: ") for text in texts)


def test_another_network_of_the_same_name_is_not_pictured(shared: Path) -> None:
    images = {"train": pictures(80, 1), "test": pictures(40, 3)}
    for shop, word in (
        (Workshop(networks={"resnet20-cifar10": network(1)}, images={"mnist": images}), "network"),
        (
            Workshop(
                networks={"resnet20-cifar10": network()},
                images={"mnist": {**images, "test": pictures(40, 4)}},
            ),
            "data",
        ),
    ):
        blocks = make_report([shared], workshop=shop).blocks
        texts = [block.text for block in blocks if isinstance(block, Paragraph)]
        assert any(t.startswith(f"No pictures: the {word} that this store") for t in texts)


def test_a_manifest_of_another_kind_costs_the_pictures_only(store: Path) -> None:
    change(store, """UPDATE runs SET manifest = replace(manifest, '"fit"', '"fitted"')""")
    texts = [b.text for b in make_report([store]).blocks if isinstance(b, Paragraph)]
    assert any("is not one that this version can make the plan" in text for text in texts)


@pytest.mark.parametrize("channels", [1, 3])
def test_png(channels: int) -> None:
    image = torch.rand(channels, 5, 7)
    back = torch.from_numpy(np.array(Image.open(io.BytesIO(to_png(image)))))
    back = back[None] if channels == 1 else back.permute(2, 0, 1)
    assert torch.equal(back, (image * 255).round().byte())
    with pytest.raises(ReportError, match="2 channels"):
        to_png(torch.rand(2, 4, 4))


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
    assert "cheapest within one standard error" in drawn.caption
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
        assert "stood on more clean images" in drawn.caption
        assert isinstance(table, TableBlock)
        assert [r.heads for r in table.rows if "(chosen)" in r.heads[0]] == [
            (f"{settings} (chosen)",)
        ]

    assert "20 heldout images" in listed.caption
    assert len(listed.rows) == len(stood.confirmed) > 0
    for row, tried in zip(listed.rows, stood.confirmed, strict=True):
        assert row.heads == (f"energy 0.8, lr {tried.lr:g}, {tried.iterations} iterations",)
        assert row.cells[0][0].text == f"{100 * tried.clean:.1f}"
    opening = make_report([tmp_path / "t.sqlite"]).blocks[0]
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


def test_growth_and_theorem_are_drawn(tmp_path: Path) -> None:
    cell = ("net", "linear", "manifold", 8, "oblivious", 5, 60, 20, 90, 0.1)
    rows = [
        [str(v) for v in (*cell, t, cut, 9, n, n, n, n, n, n, p)]
        for t, (cut, n, p) in enumerate([("input", 0, 0), ("head", 0.5, 0.016)])
    ]
    path = tmp_path / "manifold.csv"
    path.write_text("\n".join(",".join(r) for r in [list(manifold.COLUMNS), *rows]) + "\n")
    _, drawn, table = file_blocks(path)
    assert isinstance(drawn, Figure)
    assert (
        "the paper: 0, 0.016. net, CLC-NN, linear, Manifold, ε = 8: 0, 0.5." in drawn.panels[0].alt
    )
    assert isinstance(table, TableBlock)
    settings = theorem.Settings(depth=3, width=8, rank=2, samples=4)
    lines = [
        list(theorem.COLUMNS),
        *([r[c] for c in theorem.COLUMNS] for r in theorem.run(settings)),
    ]
    path = tmp_path / "theory.csv"
    path.write_text("\n".join(",".join(line) for line in lines) + "\n")
    _, drawn, table = file_blocks(path)
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
