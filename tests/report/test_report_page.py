"""The page: whole, self-contained, the same every time, and true to the store."""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html import unescape
from pathlib import Path

import pytest
from evaluation.tiny import network, pictures, plan
from report.made import BASE, Page, change, drop, fill, made_up, measured, read, text, workshop

from clcnn.evaluation import Workshop, run
from clcnn.evaluation.archive import pack
from clcnn.experiments.run import ORDER
from clcnn.report import (
    Document,
    make_report,
    to_html,
    to_markdown,
    words,
    write_html,
    write_markdown,
)
from clcnn.report.blocks import Details, Figure, Heading, Panel, Paragraph, TableBlock
from clcnn.report.gains import gain_blocks
from clcnn.report.gather import gather
from clcnn.report.page import _remeasured
from clcnn.report.pool import Pool
from clcnn.report.svg import standalone


@pytest.fixture(scope="module")
def page(document: Document) -> Page:
    return Page(to_html(document))


def test_a_packed_store_gives_the_same_page(shared: Path, tmp_path: Path) -> None:
    packed = pack(shared, tmp_path / f"{shared.name}.xz")
    assert to_html(make_report([packed], pictures=0)) == to_html(make_report([shared], pictures=0))


def test_tags_nest_and_nothing_comes_from_elsewhere(page: Page) -> None:
    assert page.open == []
    assert {"script", "link", "iframe", "object"}.isdisjoint(tag for tag, _ in page.tags)
    addresses = [a[k] for _, a in page.tags for k in ("src", "href") if k in a]
    assert addresses
    assert all(str(a).startswith(("#", "data:image/png;base64,")) for a in addresses)
    anchors = {a["id"] for _, a in page.tags if "id" in a}
    links = {str(a)[1:] for a in addresses if str(a).startswith("#")}
    assert links <= anchors
    style = "".join(re.findall("<style>.*?</style>", to_html(Document("empty")), re.S))
    assert "url(" not in style
    assert "@import" not in style


def test_a_cell_that_was_measured_twice_says_so() -> None:
    first = made_up(measured("none"), measured("a", cell=2), plan="table1")
    again = made_up(measured("none", right=9, cell=3), measured("a", cell=4), plan="feedback")
    (said,) = _remeasured(again, Pool([first, again]))
    assert isinstance(said, Paragraph)
    assert said.text.startswith("Measured apart from `table1`")
    assert "Clean leaves 45.0 here and 50.0 there, of the same 20 images" in said.text
    assert _remeasured(first, Pool([first, again])) == []
    fewer = made_up(measured("none", n=10, right=4, cell=3), plan="feedback")
    assert _remeasured(fewer, Pool([first, fewer])) == []


def test_every_section_is_there(page: Page) -> None:
    for anchor in (
        "warnings",
        "table1",
        "table3",
        "adaptive",
        "shortfalls",
        "trade-off",
        "residuals",
        "pictures",
        "cost",
        "manifest",
    ):
        assert anchor in {a.get("id") for _, a in page.tags}, anchor
    assert "No pictures" not in page.text


def test_a_cell_is_what_the_samples_say(shared: Path, page: Page) -> None:
    right, n = read(
        shared,
        "SELECT sum(correct), count(*) FROM samples JOIN entries USING (cell) "
        "WHERE plan = 'table1' AND defence = 'linear' AND attack = 'fgsm' AND eps = 8",
    )[0]
    # Wilson's interval as the roots of (p - share)^2 = z^2 p (1 - p) / n.
    share, z = right / n, 1.959964
    a, b, c = 1 + z * z / n, -(2 * share + z * z / n), share**2
    root = math.sqrt(b * b - 4 * a * c)
    low, high = (-b - root) / (2 * a), (-b + root) / (2 * a)
    heads = page.tables[0][:2]
    assert heads[0][:4] == ["ε/255", "defence", "Clean", "Manifold"]
    assert heads[1] == ["oblivious", "adaptive"]  # FGSM's: the other plan's cell stands beside it
    eight = next(k for k, row in enumerate(page.tables[0]) if row[0] == "8")
    cell = page.tables[0][eight + 1][3]
    assert page.tables[0][eight + 1][0] == "CLC-NN, linear"
    assert cell.startswith(f"{100 * share:.1f}")
    assert f"{100 * low:.1f}–{100 * high:.1f}" in cell
    assert "paper 20" in cell
    assert "n = 20 where a cell says no other" in page.text


def test_both_threats_stand_side_by_side(shared: Path, page: Page) -> None:
    accuracy = read(
        shared,
        "SELECT 100.0 * avg(correct), count(*) FROM samples JOIN entries USING (cell) "
        "WHERE plan = 'adaptive' AND defence = 'linear'",
    )[0]
    assert accuracy[1] == 10
    eight = next(k for k, row in enumerate(page.tables[0]) if row[0] == "8")
    cell = page.tables[0][eight + 1][4]
    assert cell.startswith(f"{accuracy[0]:.1f}")
    assert cell.endswith("n = 10")
    assert "paper" not in cell


def test_other_settings_are_never_set_side_by_side(tmp_path: Path) -> None:
    store = fill(tmp_path / "s.sqlite", "table1")
    fill(store, "adaptive", base=BASE.replace("lr = 0.05", "lr = 0.06"))
    table1, adaptive = sorted(gather([store]), key=lambda e: e.name == "adaptive")
    pool = Pool([table1, adaptive])
    beside = {
        r.defence: pool.beside(table1, r, "adaptive")
        for r in table1.results
        if (r.attack, r.eps) == ("fgsm", 8.0)
    }
    assert beside["none"] is not None
    assert beside["linear"] is None


WORST = """
[attacks.worst]
kind = "worst"
of = ["fgsm", "pgd"]

[[grid]]
defences = ["none", "linear"]
attacks = ["worst"]
eps = [8]
threats = ["oblivious", "adaptive"]
n = 10
"""


def test_a_table_shows_what_the_worst_case_leaves_of_its_defences(tmp_path: Path) -> None:
    store = fill(tmp_path / "s.sqlite", "table1")
    run(plan(f'name = "adaptive"\n{BASE}{WORST}', tmp_path), store, workshop=workshop())
    html = Page(to_html(make_report([store], pictures=0)))
    _, table, *_ = html.tables  # after the one that opens the page
    assert table[1] == ["oblivious", "adaptive"]
    assert table[0][-1] == "Worst case"
    eight = next(k for k, row in enumerate(table) if row[0] == "8")
    for place, threat in ((-2, "oblivious"), (-1, "adaptive")):
        ((accuracy, n),) = read(
            store,
            "SELECT 100.0 * avg(correct), count(*) FROM samples JOIN entries USING (cell) WHERE "
            "plan = 'adaptive' AND defence = 'linear' AND attack = 'worst' AND threat = ?",
            threat,
        )
        assert n == 10
        assert table[eight + 1][place].startswith(f"{accuracy:.1f}")
        assert table[eight + 1][place].endswith("n = 10")
    assert "Only oblivious attacks" not in html.text.partition("Open: the paper")[0]


def test_the_worst_case_of_other_settings_stands_in_no_table(tmp_path: Path) -> None:
    store = fill(tmp_path / "s.sqlite", "table1")
    other = BASE.replace("lr = 0.05", "lr = 0.06")
    run(plan(f'name = "adaptive"\n{other}{WORST}', tmp_path), store, workshop=workshop())
    table1, adaptive = sorted(gather([store]), key=lambda e: e.name == "adaptive")
    pool = Pool([table1, adaptive])
    network = table1.results[0].network
    assert pool.worst(table1, network, "none", 8.0, "adaptive") is not None
    assert pool.worst(table1, network, "linear", 8.0, "adaptive") is None
    html = Page(to_html(make_report([store], pictures=0)))
    _, table, *_ = html.tables
    assert table[0][-1] == "CW"
    assert "Only oblivious attacks" in html.text.partition("Open: the paper")[0]


def test_paper_rows_that_no_plan_has_are_shown(page: Page) -> None:
    table = page.tables[0]
    assert ["4", "no control"] in [row[:2] for row in table]
    assert any(cell == "not measured paper 82" for row in table for cell in row)
    assert "Open: the paper's CIFAR-100 rows" in page.text
    assert any("open paper 69" in row for row in page.tables[1])


def test_the_same_store_gives_the_same_bytes(
    shared: Path, document: Document, tmp_path: Path
) -> None:
    code = (
        "import sys; from report.made import workshop; from clcnn.report import *\n"
        "made = make_report([sys.argv[1]], workshop=workshop())\n"
        "write_html(made, 'r.html'); write_markdown(made, 'r.md')"
    )
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    write_html(document, here / "r.html")
    written = [here / "r.html", *write_markdown(document, here / "r.md")]
    tests = str(Path(__file__).parent.parent)
    subprocess.run(
        [sys.executable, "-c", code, str(shared)],
        check=True,
        cwd=there,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": tests, "OMP_NUM_THREADS": "1"},
    )
    assert len(written) > 10
    assert {p.relative_to(there) for p in there.rglob("*") if p.is_file()} == {
        p.relative_to(here) for p in written
    }
    for path in written:
        assert path.read_bytes() == (there / path.relative_to(here)).read_bytes(), path.name


def test_markdown_has_the_same_figures_and_its_files(document: Document, tmp_path: Path) -> None:
    written = write_markdown(document, tmp_path / "r.md")
    text = (tmp_path / "r.md").read_text()
    named = set(re.findall(r'(?:\(|src=")(r-figures/[^)"]+)', text))
    assert named == {str(p.relative_to(tmp_path)) for p in written[1:]}
    for path in written[1:]:
        if path.suffix == ".svg":
            ElementTree.fromstring(path.read_text())
    rows = [line for line in text.splitlines() if line.startswith("| resnet20-cifar10 | 8 |")]
    values = [re.sub(r"<br>|\*\*", " ", cell).split() for cell in rows[1].strip("|").split("|")]
    page = Page(to_html(document))
    eight = next(k for k, row in enumerate(page.tables[0]) if row[0] == "8")
    assert [" ".join(v) for v in values[3:]] == page.tables[0][eight + 1][1:]


def test_tables_of_markdown_are_even(document: Document) -> None:
    text, _ = to_markdown(document, "figures")
    for block in text.split("\n\n"):
        if block.startswith("|"):
            bars = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(bars) == 1, block


def test_incomplete_cells_are_shown_as_such(store: Path) -> None:
    cell, other = (
        read(
            store,
            "SELECT cell FROM entries WHERE plan = 'table1' AND defence = 'linear' AND attack = ? "
            "AND eps = ?",
            *key,
        )[0][0]
        for key in (("fgsm", 2), ("pgd", 2))
    )
    change(
        store,
        f"DELETE FROM samples WHERE cell = {cell} AND chunk = 2",
        f"UPDATE chunks SET done = 0 WHERE cell = {cell} AND number = 2",
        f"DELETE FROM samples WHERE cell = {other}",
        f"UPDATE chunks SET done = 0 WHERE cell = {other}",
    )
    page = Page(to_html(make_report([store], pictures=0)))
    two = next(k for k, row in enumerate(page.tables[0]) if row[0] == "2")
    linear = page.tables[0][two + 1]
    assert "n = 16 so far, of 20" in linear[3]
    assert "▼" not in linear[3]
    assert linear[5] == "0 of 20 paper 50"
    assert "2 cells are not complete" in page.text
    assert "table1: 1 cell not begun" in page.text
    assert "table1: tiny, linear, fgsm, eps 2, oblivious: 16 of 20" in page.text
    assert "0 of 20" not in page.text.split("Incomplete cells")[1].split("Table 1")[0]
    shortfalls = [row for table in page.tables for row in table if "PGD, ε = 2" in row]
    assert not any("CLC-NN, linear" in row for row in shortfalls)
    assert "2 cells are not judged yet" in page.text


def test_what_control_changes_is_counted_on_the_same_images(tmp_path: Path) -> None:
    store = fill(tmp_path / "s.sqlite", "table1")
    drop(store, "defence = 'linear' AND attack = 'none'", "= 1")  # fewer images than without
    rows = read(
        store,
        "SELECT a.correct - b.correct FROM samples AS a JOIN samples AS b USING (sample) "
        "WHERE a.cell = (SELECT cell FROM entries WHERE defence = 'linear' AND attack = 'none') "
        "AND b.cell = (SELECT cell FROM entries WHERE defence = 'none' AND attack = 'none')",
    )
    changes = [int(str(row[0])) for row in rows]
    assert 0 < len(changes) < 20
    (experiment,) = gather([store])
    (details,) = gain_blocks(experiment)
    assert isinstance(details, Details)
    (table,) = details.blocks
    assert isinstance(table, TableBlock)
    clean = table.rows[0].cells[0]
    points = f"{100 * statistics.fmean(changes):+.1f}".replace("-", "−")
    assert clean[0].text.replace("±", "+") in (points, points.lstrip("+"))
    assert any(span.text == f"n = {len(changes)}" for span in clean)
    assert [row.heads for row in table.rows] == [
        ("resnet20-cifar10", "CLC-NN, linear", "2"),
        ("resnet20-cifar10", "CLC-NN, linear", "8"),
    ]


def test_habits_stand_beside_our_own_settings_on_the_same_images(tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    habits = text("table3").replace('name = "table3"', 'name = "literal"')
    run(plan(habits, tmp_path), store, workshop=workshop())
    (experiment,) = gather([store])
    (details,) = gain_blocks(experiment)
    assert isinstance(details, Details)
    assert details.summary == "What each changes beside CLC-NN, linear, on the same images"
    (table,) = details.blocks
    assert isinstance(table, TableBlock)
    assert [row.heads for row in table.rows] == [("resnet20-cifar10", "reactive", "8")]
    rows = read(
        store,
        "SELECT a.correct - b.correct FROM samples AS a JOIN samples AS b USING (sample) "
        "WHERE a.cell = (SELECT cell FROM entries WHERE defence = 'reactive' AND attack = 'fgsm') "
        "AND b.cell = (SELECT cell FROM entries WHERE defence = 'linear' AND attack = 'fgsm')",
    )
    change_in_points = 100 * statistics.fmean(int(str(row[0])) for row in rows)
    assert table.rows[0].cells[1][0].text == words.points(change_in_points)


def test_a_plan_of_ones_own_stands_beside_no_figure_of_the_papers(tmp_path: Path) -> None:
    mine = plan(text("table1").replace('name = "table1"', 'name = "mine"'), tmp_path)
    run(mine, tmp_path / "s.sqlite", workshop=workshop())
    page = Page(to_html(make_report([tmp_path / "s.sqlite"], pictures=0)))
    assert "CLC-NN, linear" in page.text
    assert not any("paper" in cell for table in page.tables for row in table for cell in row)


def test_an_experiment_about_differences_begins_with_them(tmp_path: Path) -> None:
    base = BASE.replace("[defences.reactive]", "[defences.feedback-strong]")
    base = base.replace('kind = "reactive"', 'kind = "greedy"')
    store = fill(tmp_path / "r.sqlite", "robust", base=base)
    glance, first, second, *_ = Page(to_html(make_report([store], pictures=0))).tables
    assert glance[0][-1] == "plain forwards"
    assert first[:2] == [["ε/255", "Clean", "FGSM"], ["oblivious", "adaptive"]]
    right: dict[tuple[object, object, object], dict[object, int]] = {}
    for defence, eps, threat, sample, correct in read(
        store,
        "SELECT defence, eps, threat, sample, correct FROM entries JOIN samples USING (cell)",
    ):
        right.setdefault((defence, eps, threat), {})[sample] = int(str(correct))
    row = next(row for row in first if row[0] == "8")
    for column, place in enumerate(((0, "none"), (8, "oblivious"), (8, "adaptive")), start=1):
        one, two = right["feedback-strong", *place], right["none", *place]
        points = 100 * statistics.fmean(one[s] - two[s] for s in two)
        cell = row[column]
        assert float(cell.split()[0].replace("−", "-")) == pytest.approx(points, abs=0.051), row
        assert " to " in cell
    assert "feedback, strong" in {head for row in second for head in row}
    attacked = "(SELECT cell FROM entries WHERE eps = 8)"
    change(
        store,
        f"DELETE FROM samples WHERE cell IN {attacked}",
        f"UPDATE chunks SET done = 0 WHERE cell IN {attacked}",
    )
    begun = Page(to_html(make_report([store], pictures=0))).tables[0]
    assert begun[2:] == [["resnet20-cifar10"], ["8", row[1], "not measured", "not measured"]]


def test_networks_that_would_be_called_alike_are_told_apart(tmp_path: Path) -> None:
    text = BASE.replace('weights = "resnet20-cifar10"', 'weights = "net.v1"')
    text = text.replace(
        "[defences.linear]",
        '[networks.other]\nweights = "net.v1"\n'
        'data = "fashion-mnist"\n\n[networks.third]\nweights = "net.v2"\n'
        'data = "mnist"\n\n[defences.linear]',
    )
    text += '[[grid]]\ndefences = ["none"]\nattacks = ["none"]\n'
    images = {"test": pictures(40, 3)}
    shop = Workshop(
        networks={"net.v1": network(), "net.v2": network(1)},
        images={"mnist": images, "fashion-mnist": {"test": pictures(40, 4)}},
    )
    store = tmp_path / "r.sqlite"
    run(plan(f'name = "mine"\n{text}', tmp_path), store, workshop=shop)
    table = Page(to_html(make_report([store], pictures=0))).tables[0]
    heads = [row[0] for row in table if len(row) == 1]
    assert heads == ["net.v1 (tiny)", "net.v1 (other)", "net.v2"]


def test_all_that_a_store_says_is_escaped(store: Path) -> None:
    bad = "<script>alert(1)</script>|a_b*c `x"
    change(
        store,
        f"UPDATE entries SET attack = '{bad}' WHERE attack = 'pgd'",
        f"UPDATE entries SET defence = '{bad}' WHERE plan = 'table3' AND defence = 'reactive'",
        f"INSERT INTO findings SELECT min(cell), '{bad}', '{bad}', NULL FROM entries",
        "UPDATE runs SET manifest = replace(manifest, 'x86_64', '<script>') ",
    )
    document = make_report([store], pictures=0)
    text = to_html(document)
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script" not in text
    assert bad in page.text
    marked, files = to_markdown(document, "figures")
    outside = re.sub(r"```.*?```|(?<!\\)`[^`]*`", "", marked, flags=re.S)
    assert not re.search(r"(?<!\\)<script", outside)
    for name, content in files.items():
        assert b"<script" not in content, name


def test_warnings_stand_on_top(store: Path) -> None:
    sign = "SELECT min(cell), 'zero gradients', 'None.', NULL FROM entries"
    change(store, f"INSERT INTO findings {sign}")
    document = make_report([store], pictures=0)
    text = to_html(document)
    assert 0 < text.index("zero gradients (1 place): None.") < text.index('id="table1"')
    clean = "The evaluation found no sign"
    assert clean not in text


def test_each_figure_can_be_read_by_others(document: Document) -> None:
    figures = [b for b in document.blocks if isinstance(b, Figure)]
    assert len(figures) >= 5
    assert len({figure.name for figure in figures}) == len(figures)
    for figure in figures:
        root = ElementTree.fromstring(standalone(figure))
        assert root.attrib["role"] == "img"
        numbers = re.findall(r"-?\d+\.?\d*", " ".join(e.get("points", "") for e in root.iter()))
        assert all(math.isfinite(float(v)) and abs(float(v)) < 2000 for v in numbers)


def test_the_manifest_is_whole(shared: Path, page: Page) -> None:
    stored = read(shared, "SELECT manifest, started FROM runs")
    for manifest, started in stored:
        fingerprint = re.search(r'"weights": \{"tiny": "([0-9a-f]+)"', str(manifest))
        assert fingerprint is not None
        assert fingerprint[1] in page.text
        assert str(started) in page.text


def test_several_stores_and_the_same_plan_twice(shared: Path, tmp_path: Path) -> None:
    other = fill(tmp_path / "other.sqlite", "table1")
    document = make_report([shared, other, shared], pictures=0)
    page = Page(to_html(document))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    assert {"table1-s", "table1-other"} <= set(ids)
    tables = [b for b in document.blocks if isinstance(b, TableBlock)]
    assert sum("ResNet-20 from standard training" in t.caption for t in tables) == 2


def test_stores_of_one_name_keep_their_figures_apart(shared: Path, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        fill(tmp_path / folder / "s.sqlite", "table3")
    packed = pack(tmp_path / "b" / "s.sqlite", tmp_path / "c" / "s.sqlite.xz")
    document = make_report([tmp_path / "a" / "s.sqlite", packed], pictures=0)
    page = Page(to_html(document))
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    heads = [b.text for b in document.blocks if isinstance(b, Heading) and " in " in b.text]
    assert heads == [f"Table 3 in {tmp_path}/a/s.sqlite", f"Table 3 in {packed}"]
    figures = [b for b in document.blocks if isinstance(b, Figure)]
    drawn = [f for f in figures if f.name.startswith("table3-resnet20-cifar10-accuracy")]
    assert len(drawn) == 2
    _, files = to_markdown(document, "figures")
    assert len(files) == len(figures)


def test_no_control_alone_makes_no_adaptive_column(tmp_path: Path) -> None:
    store = fill(tmp_path / "s.sqlite", "table1")
    change(
        fill(store, "adaptive"),
        "DELETE FROM entries WHERE plan = 'adaptive' AND defence <> 'none'",
    )
    tables = [b for b in make_report([store], pictures=0).blocks if isinstance(b, TableBlock)]
    assert not any(column.group for column in tables[0].columns)
    assert any("Only oblivious attacks" in line for line in tables[0].legend)
    assert [c.group for c in tables[1].columns if c.label == "adaptive"] == ["FGSM"]


def test_open_rows_have_their_footnotes(document: Document) -> None:
    folded = [b for b in document.blocks if isinstance(b, Details) and b.summary.startswith("Open")]
    marked = 0
    for table in (part for block in folded for part in block.blocks):
        if isinstance(table, TableBlock):
            spans = [s.text for row in table.rows for cell in row.cells for s in cell]
            signs = {text for text in spans if text.startswith("⚠")}
            assert {line.split()[0] for line in table.legend} == signs
            marked += len(signs)
    assert marked


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        ("87.5 % of all", "87.5 % of all"),
        ("1. first", "1\\. first"),
        ("12) twelfth", "12\\) twelfth"),
        ("- item", "\\- item"),
    ],
)
def test_only_what_would_begin_a_list_is_escaped(text: str, marked: str) -> None:
    assert to_markdown(Document("t", [Paragraph(text)]), "f")[0] == f"# t\n\n{marked}\n"


def test_a_summary_is_html() -> None:
    block = Details("`a_b` of <b>it</b>_", [Paragraph("inside")])
    text, _ = to_markdown(Document("t", [block]), "f")
    assert "<summary><code>a_b</code> of &lt;b&gt;it&lt;/b&gt;_</summary>" in text


def test_a_wide_drawing_scrolls_in_its_box() -> None:
    panels = [Panel(300, 100, "", "narrow"), Panel(700, 100, "", "wide")]
    page = Page(to_html(Document("t", [Figure("f", "c", panels)])))
    boxes = [a for tag, a in page.tags if tag == "div" and str(a["class"]).startswith("panel ")]
    assert [(a["class"], a["tabindex"]) for a in boxes] == [("panel wide", "0")]


def test_figures_that_are_no_store_s_are_said(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("network,value\nn,7\n")
    with_, without = (
        make_report([shared], tables_of=files, pictures=0).blocks[1]
        for files in ([tmp_path / "t.csv"], [])
    )
    assert isinstance(with_, Paragraph)
    assert isinstance(without, Paragraph)
    assert with_.text.endswith("named at the end or, where that is said, from a CSV file.")
    assert without.text.endswith("named at the end.")


def test_an_interval_behind_its_figure_is_small() -> None:
    text = "keeps 8.1 % (6.0–9.2, n = 20) and +3.2 points (+0.4 to +6.2) of 5 (not 4.5–6) & more"
    (said,) = re.findall(r'<p class="plain">.*</p>', to_html(Document("t", [Paragraph(text)])))
    assert re.findall("<small>([^<]*)</small>", said) == ["(6.0–9.2, n = 20)", "(+0.4 to +6.2)"]
    shown = re.sub("<[^>]*>", "", said).replace("\u202f", " ")
    assert unescape(shown) == text


def test_folders_are_made(document: Document, tmp_path: Path) -> None:
    write_html(document, tmp_path / "deep" / "r.html")
    assert (tmp_path / "deep" / "r.html").read_text() == to_html(document)


def test_rows_that_their_names_do_not_explain_are_explained(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(words.ABOUT) <= {*ORDER, "demo", "toy-states"}
    monkeypatch.setitem(words.ABOUT, "table1", "What the rows mean.")
    page = Page(to_html(make_report([shared], pictures=0, workshop=workshop())))
    assert page.text.count("What the rows mean.") == 1
    assert page.text.index("What the rows mean.") < page.text.index("no control")
