"""Ours beside the paper's: marks, differences, shortfalls, reasons; errors; the command."""

from __future__ import annotations

import json
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from report.made import Page, change, drop, made_up, measured, plan, read, text, workshop

from clcnn import cli
from clcnn.errors import DataError
from clcnn.evaluation import Store, StoreError, run
from clcnn.experiments import figure2, manifold, theorem
from clcnn.report import Document, ReportError, make_report, to_html, write_markdown
from clcnn.report.against import shortfalls, verdict, verdicts
from clcnn.report.blocks import Heading, Paragraph, TableBlock
from clcnn.report.gather import gather
from clcnn.report.layout import title
from clcnn.statistics import Paired


@pytest.mark.parametrize(
    ("low", "high", "printed", "expected"),
    [
        (50.0, 54.0, 52, "within"),
        (52.4, 54.0, 52, "within"),  # 52 may be 52.5
        (52.6, 54.0, 52, "above"),
        (48.0, 51.6, 52, "within"),
        (48.0, 51.4, 52, "below"),
        (0.0, 0.3, 0, "within"),
        (-3.0, -1.0, 25, "below"),
    ],
)
def test_a_difference_is_real_outside_of_interval_and_rounding(
    low: float, high: float, printed: float, expected: str
) -> None:
    assert verdict(low, high, printed) == expected


def test_differences_are_paired(shared: Path, document: Document) -> None:
    rows = read(
        shared,
        "SELECT a.correct, b.correct FROM samples a JOIN samples b ON a.sample = b.sample "
        "JOIN entries e ON e.cell = a.cell JOIN entries f ON f.cell = b.cell "
        "WHERE e.plan = 'table3' AND f.plan = 'table3' AND e.defence = 'linear' "
        "AND f.defence = 'reactive' AND e.attack = 'pgd' AND f.attack = 'pgd'",
    )
    assert len(rows) == 20
    difference = 100 * sum(int(a) - int(b) for a, b in rows) / len(rows)
    page = Page(to_html(document))
    table = next(t for t in page.tables if t[0][:2] == ["ε/255", "Clean"] and len(t) == 5)
    eight = next(row for row in table if row[0] == "8")
    shown = f"{difference:+.1f}".replace("-", "−") if difference else "0.0"
    assert eight[4].startswith(shown)
    assert "paper +25 ⚠" in eight[4]
    assert "it implies an accuracy of the reactive defence of -14" in page.text
    assert next(row for row in table if row[0] == "2")[4].endswith("not measured paper +43")


@pytest.fixture
def short(store: Path) -> Path:
    """A store in which every third answer of the linear defence, and every one at 2, is wrong."""
    wrong = "UPDATE samples SET correct = 0, predicted = (label + 1) % 10 WHERE"
    change(
        store,
        f"{wrong} sample % 3 = 0 AND cell IN (SELECT cell FROM entries WHERE defence = 'linear')",
        f"{wrong} cell IN (SELECT cell FROM entries WHERE eps = 2)",
    )
    return store


def test_shortfalls_are_the_cells_marked_so(short: Path) -> None:
    found = shortfalls([e for e in gather([short]) if e.name == "table1"])
    keys = {(s.defence, s.attack, s.eps) for s in found}
    # Of 20 answers at 2 none is right: at most 16 %, below the paper's 56 and 50. On clean images
    # two thirds are: at most 85 %, below 88. Without control the paper has 21 and 0 at 2, but a
    # lower figure there is a stronger attack.
    assert keys == {("linear", "none", 0.0), ("linear", "fgsm", 2.0), ("linear", "pgd", 2.0)}
    page = Page(to_html(make_report([short], pictures=0)))
    marked, apart = (
        {
            (row[-7], column)
            for row in page.tables[0]
            for column, cell in enumerate(row[-7:])
            if mark in cell
        }
        for mark in ("▼", "▽")
    )
    defence, clean, fgsm, pgd = "CLC-NN, linear", 1, 3, 5
    assert marked >= {(defence, clean), (defence, fgsm), (defence, pgd)}
    assert not any(name == "no control" and column > clean for name, column in marked)
    assert apart == {("no control", fgsm)}
    heads = ["ours", "paper", "difference", "without control"]
    rows = next(t for t in page.tables if t[0][-4:] == heads)
    assert [row[-5] for row in rows[2:5]] == ["Clean", "FGSM, ε = 2", "PGD, ε = 2"]
    # Nor is any right without control, of which the paper has 21.
    assert rows[3][-4:] == ["0.0 0.0–16.1, n = 20", "56", "−56.0", "−21.0"]


def test_in_brief_how_many_figures_stand_how(short: Path, tmp_path: Path) -> None:
    experiments = gather([short])
    table1 = [e for e in experiments if e.name == "table1"]
    counted = verdicts(table1)
    # Clean images of both, and four attacked cells under control; three are below, see above.
    assert (counted.total(), counted["below"]) == (6, 3)
    assert verdicts([*table1, *table1]) == counted, "what is printed again counts once"
    table3 = [e for e in experiments if e.name == "table3"]
    assert verdicts(experiments) == counted + verdicts(table3)
    below = verdicts(experiments)["below"]
    assert len(shortfalls(experiments)) == below
    path = tmp_path / "notes.toml"
    path.write_text(NOTE)  # explains those of table1
    blocks = make_report([short], notes=path, pictures=0).blocks
    said = next(b.text for b in blocks if isinstance(b, Paragraph) and "Beside" in b.text)
    assert f"of {verdicts(experiments).total()} figures" in said
    paragraph = "of the latter have a paragraph below that says what was measured of the reason"
    assert f"and {below} below. 3 {paragraph}; of 0 a part stays unexplained." in said
    path.write_text(NOTE.replace("command", "open = true\ncommand"))
    blocks = make_report([short], notes=path, pictures=0).blocks
    said = next(b.text for b in blocks if isinstance(b, Paragraph) and "Beside" in b.text)
    assert f"3 {paragraph}; of 3 a part stays unexplained." in said


def test_differences_that_are_not_complete_are_no_shortfalls(short: Path) -> None:
    def places() -> set[tuple[str, float]]:
        return {(s.attack, s.eps) for s in shortfalls(gather([short])) if s.experiment == "table3"}

    assert ("fgsm", 8.0) in places()
    (cell,) = read(
        short,
        "SELECT cell FROM entries WHERE plan = 'table3' AND defence = 'reactive' "
        "AND attack = 'fgsm'",
    )[0]
    change(
        short,
        f"DELETE FROM samples WHERE cell = {cell} AND chunk = 2",
        f"UPDATE chunks SET done = 0 WHERE cell = {cell} AND number = 2",
    )
    assert places()
    assert ("fgsm", 8.0) not in places()


def test_only_differences_without_a_sample_in_common_are_skipped(store: Path) -> None:
    drop(store, "plan = 'table3' AND defence = 'reactive' AND attack = 'fgsm'", "> 0")
    drop(store, "plan = 'table3' AND defence = 'linear' AND attack = 'fgsm'", "= 0")
    table3 = next(e for e in gather([store]) if e.name == "table3")
    assert {place[1] for place in table3.differences} == {"none", "pgd"}
    change(
        store,
        "UPDATE samples SET label = label + 1, predicted = predicted + 1 WHERE cell IN (SELECT "
        "cell FROM entries WHERE plan = 'table3' AND defence = 'reactive' AND attack = 'pgd')",
    )
    with pytest.raises(DataError, match="with other labels"):
        gather([store])


def test_a_form_of_a_table_is_called_so(tmp_path: Path) -> None:
    for name in ("table3", "table3-most-8-seed-5"):
        named = text("table3").replace('name = "table3"', f'name = "{name}"')
        run(plan(named, tmp_path), tmp_path / "r.sqlite", workshop=workshop())
    blocks = make_report([tmp_path / "r.sqlite"], pictures=0).blocks
    heads = [b.text for b in blocks if isinstance(b, Heading) and "Table" in b.text]
    assert all(head.startswith("Table 3, resnet20-cifar10: ") for head in heads[2:])
    assert heads[:2] == ["Table 3", "Table 3 (at most 8 images a cell, seed 5)"]
    said = [b.text for b in blocks if isinstance(b, Paragraph) and b.tone == "warning"]
    assert said[0].startswith("`table3-most-8-seed-5`: at most 8 images a cell and seed 5, which")


NOTE = """
[[why]]
experiment = "table1"
attack = ["pgd", "fgsm", "none"]
command = "clcnn evaluate plan.toml"
text = "Too few pixels: {table1 / tiny / linear / none / 0 / none}."
"""


def test_notes_explain_shortfalls_with_stored_figures(short: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    path.write_text(NOTE)
    page = Page(to_html(make_report([short], notes=path, pictures=0)))
    right, n = read(
        short,
        "SELECT sum(correct), count(*) FROM samples JOIN entries USING (cell) "
        "WHERE plan = 'table1' AND defence = 'linear' AND attack = 'none'",
    )[0]
    text = page.text.replace("\u202f", " ")
    assert f"Too few pixels: {100 * right / n:.1f} % (" in text
    assert "Measured by clcnn evaluate plan.toml." in text
    theirs = "Theirs: {paper / table1 / resnet20-cifar10 / linear / pgd / 8}, "
    theirs += "{paper / table3 / resnet20-cifar10 / linear-reactive / none / 0}. 1\u202f000  in"
    path.write_text(NOTE.replace("Too few pixels: ", f"Too few pixels: {theirs} "))
    told = Page(to_html(make_report([short], notes=path, pictures=0))).text
    assert "Theirs: 11\u202f%, −3.0 points. 1\u202f000 in" in told, "gaps that no line breaks at"
    path.write_text(NOTE)
    drop(short, "plan = 'table1' AND defence = 'linear' AND attack = 'none'", "= 2")
    part = make_report([short], notes=path, pictures=0)
    assert any("n = 16 of 20 so far)" in b.text for b in part.blocks if isinstance(b, Paragraph))
    path.write_text(NOTE.replace('"table1"', '"table4"'))
    page = Page(to_html(make_report([short], notes=path, pictures=0)))
    assert "Too few pixels" not in page.text
    assert "not measured yet: no note explains them" in page.text
    assert "A note explains no cell: experiment = table4, attack = pgd or fgsm or none" in page.text


def test_without_control_is_of_the_same_images() -> None:
    controlled = replace(measured("linear", "fgsm", 4.0, right=2), cell=7)
    pair = Paired(20, 2, 1, 0.05, -0.1, 0.2, 1.0)
    table1 = replace(
        made_up(controlled),
        name="table1",
        weights={"tiny": "resnet20-cifar10"},
        gains={7: pair},
    )
    (short,) = shortfalls([table1])
    assert short.plain == pytest.approx(10 - 5 - 11)  # the paper has 11 without control
    other = replace(table1, gains={7: replace(pair, n=10)})  # of some of them alone
    assert shortfalls([other])[0].plain is None
    # Table 5 has the same cell and no row without control: what table 1 measured on these images
    # stands there too, and not what more images gave.
    more = measured("none", "fgsm", 4.0, right=19)
    table5 = replace(table1, name="table5", gains={})
    alone = replace(table1, name="table5", gains={}, results=(more,))
    assert [one.plain for one in shortfalls([table5, table1, alone])] == [short.plain] * 2


def test_notes_name_distances(short: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    cell = "table1 / resnet20-cifar10 / linear / pgd / 8 / oblivious / distance"
    path.write_text(NOTE.replace("table1 / tiny / linear / none / 0 / none", cell))
    lengths = [
        length
        for (length,) in read(
            short,
            "SELECT l2 FROM samples JOIN entries USING (cell) WHERE plan = 'table1' AND l2 > 0 "
            "AND defence = 'linear' AND attack = 'pgd' AND eps = 8",
        )
    ]
    told = Page(to_html(make_report([short], notes=path, pictures=0))).text
    assert f"Too few pixels: {statistics.median(lengths):.3f} (l_2, median of" in told
    path.write_text(NOTE.replace("none / 0 / none}", "none / 0 / none / distance}"))
    with pytest.raises(ReportError, match="expected a cell of attacked images"):
        make_report([short], notes=path, pictures=0)


def test_a_line_may_end_within_a_name(short: Path, tmp_path: Path) -> None:
    grid = "tune tiny linear heldout 0c7b68"
    change(
        short,
        f"INSERT INTO entries SELECT '{grid}', place, network, 'lr 0.1, 5 iterations', attack, "
        "eps, threat, cell, NULL FROM entries WHERE plan = 'table1' AND defence = 'linear'",
    )
    cell = "{tune tiny\n  linear heldout 0c7b68 / tiny / lr 0.1,\n5 iterations / none / 0 / none}"
    path = tmp_path / "notes.toml"
    path.write_text(NOTE.replace('"Too few', '"""Too few').replace('}."', f'}} or {cell}."""'))
    text = Page(to_html(make_report([short], notes=path, pictures=0))).text
    one, other = text.partition("Too few pixels: ")[2].split(" or ")[:2]
    assert other.startswith(one)
    assert "\u202f% (" in one


def test_notes_name_differences_on_the_same_images(short: Path, tmp_path: Path) -> None:
    path = tmp_path / "notes.toml"
    path.write_text(NOTE.replace("/ linear /", "/ linear minus none /"))
    told = Page(to_html(make_report([short], notes=path, pictures=0))).text
    ((n, gained),) = read(
        short,
        "SELECT count(*), sum(a.correct - b.correct) FROM samples a JOIN samples b USING (sample) "
        "JOIN entries ours ON ours.cell = a.cell JOIN entries theirs ON theirs.cell = b.cell "
        "WHERE ours.plan = 'table1' AND ours.defence = 'linear' AND ours.attack = 'none' "
        "AND theirs.plan = 'table1' AND theirs.defence = 'none' AND theirs.attack = 'none'",
    )
    points = f"{100 * gained / n:+.1f}".replace("-", "−")
    assert f"Too few pixels: {points} points (" in told
    assert f"n = {n})" in told.partition("Too few pixels")[2][:90].replace("\u202f", " ")


@pytest.mark.parametrize(
    ("swapped", "words"),
    [
        (("/ linear /", "/ linear minus reactive /"), "a difference that the page has"),
        (("table1 / tiny", "table9 / tiny"), "expected a measured cell of one of the stores"),
        (("{table1 / tiny / linear", "{linear"), "expected a cell: {plan / network"),
        (("{table1 / tiny", "{paper / table1"), "expected a figure that the paper prints"),
        (('command = "clcnn evaluate plan.toml"', ""), "command: found nothing"),
        (("attack =", "atack ="), "Did you mean 'attack'"),
        (
            ("command =", "eps = [[1]]\ncommand ="),
            "eps: found .* expected a name, or",
        ),
        (("command =", "eps = nan\ncommand ="), "eps: found nan"),
        (("command =", "eps = [true]\ncommand ="), "eps: found True"),
        (("[[why]]", "[[wy]]"), "Did you mean 'why'"),
        (("[[why]]", "[why"), "is no TOML file"),
    ],
)
def test_wrong_notes_are_refused(
    shared: Path, tmp_path: Path, swapped: tuple[str, str], words: str
) -> None:
    path = tmp_path / "notes.toml"
    path.write_text(NOTE.replace(*swapped))
    with pytest.raises(ReportError, match=words.replace("{", r"\{")):
        make_report([shared], notes=path, pictures=0)


def test_stores_that_cannot_be_used(tmp_path: Path, shared: Path) -> None:
    with pytest.raises(ReportError, match="found no store; expected at least one"):
        make_report([])
    with pytest.raises(StoreError, match=r"there is no store .*gone.sqlite. Run `clcnn evaluate"):
        make_report([tmp_path / "gone.sqlite"])
    assert not (tmp_path / "gone.sqlite").exists()
    (tmp_path / "text").write_text("hello, hello, hello")
    with pytest.raises(StoreError, match="is no SQLite file; expected a store"):
        make_report([tmp_path / "text"])
    (tmp_path / "empty").touch()
    with pytest.raises(ReportError, match="is empty; expected a store"):
        make_report([tmp_path / "empty"])
    assert (tmp_path / "empty").stat().st_size == 0
    Store(tmp_path / "fresh.sqlite").close()
    with pytest.raises(ReportError, match="a store with no results; expected at least one cell"):
        make_report([shared, tmp_path / "fresh.sqlite"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "there is no file"),
        ("", "has no rows"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2\n3\n", "line 3: found 1 values; expected 2"),
        ("a,b\n\xff\n", "is no CSV file"),
    ],
)
def test_csv_files_that_cannot_be_used(
    shared: Path, tmp_path: Path, content: str | None, words: str
) -> None:
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ReportError, match=words):
        make_report([shared], tables_of=[path], pictures=0)


@pytest.mark.parametrize(
    ("columns", "values"),
    [
        (manifold.COLUMNS, {"moved": "many"}),
        (theorem.COLUMNS, {"varied": "x"}),
        (figure2.STATES, {"x": "left"}),
        (figure2.STATES, {"x": "nan"}),
    ],
)
def test_csv_files_that_cannot_be_drawn(
    shared: Path, tmp_path: Path, columns: tuple[str, ...], values: dict[str, str]
) -> None:
    path = tmp_path / "t.csv"
    row = [values.get(name, "0") for name in columns]
    path.write_text(f"{','.join(columns)}\n{','.join(row)}\n")
    with pytest.raises(ReportError, match=r"cannot be drawn .* expected what `clcnn experiment`"):
        make_report([shared], tables_of=[path], pictures=0)


def test_stores_with_plans_of_one_name_are_told_apart(shared: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    shutil.copy(shared, other)
    plan_name = gather([shared])[0].plan
    opening = make_report([shared, other], pictures=0).blocks[1]
    assert isinstance(opening, Paragraph)
    assert f"`{plan_name}` in other.sqlite" in opening.text
    alone = make_report([shared], pictures=0).blocks[1]
    assert isinstance(alone, Paragraph)
    assert f"`{plan_name}` in " not in alone.text


def test_a_plan_that_went_back_to_an_earlier_form(tmp_path: Path) -> None:
    first = text("table3")
    second = first.replace("defences.reactive", "defences.other").replace('"reactive"]', '"other"]')
    for one in (first, second, first):
        run(plan(one, tmp_path), tmp_path / "r.sqlite", workshop=workshop())
    (experiment,) = gather([tmp_path / "r.sqlite"])
    assert set(experiment.made[-1].manifest["plan"]["defences"]) == {"linear", "reactive"}
    assert [len(made.started) for made in experiment.made] == [1, 2]
    make_report([tmp_path / "r.sqlite"], workshop=workshop())


def test_attacks_of_one_name_are_the_same_only_with_the_same_settings(tmp_path: Path) -> None:
    worst = '[attacks.worst]\nkind = "worst"\nof = ["pgd"]\n[[grid]]'
    base = text("table1").replace("[[grid]]", worst).replace('"fgsm", "pgd"]', '"worst"]')
    forms = [base, base.replace("steps = 2", "steps = 3"), base.replace("seed = 3", "seed = 4")]
    for number, form in enumerate(
        [*forms, base.replace("seed = 3", 'seed = 3\nsplit = "heldout"')]
    ):
        named = form.replace('name = "table1"', f'name = "mine{number}"')
        run(plan(named, tmp_path), tmp_path / "r.sqlite", workshop=workshop())
    found = gather([tmp_path / "r.sqlite"])
    subjects = {e.subject("tiny", "linear", "worst") for e in found}
    assert len(subjects) == len(found) == 4
    assert len({e.attacker("worst", knows=True) for e in found}) == 2
    assert [e.split for e in found] == ["test", "test", "test", "heldout"]


def test_a_file_stands_in_the_section_of_its_name(shared: Path, tmp_path: Path) -> None:
    measured = next(e for e in gather([shared]) if not e.is_tuning)
    for name in (measured.plan, "another"):
        (tmp_path / f"{name}.csv").write_text("network,blank,value\nn,,7.25\n")
    files = [tmp_path / f"{measured.plan}.csv", tmp_path / "another.csv"]
    blocks = make_report([shared], tables_of=files, pictures=0).blocks
    under, heading = {}, ""
    for block in blocks:
        if isinstance(block, Heading) and block.level == 2:
            heading = block.text
        if isinstance(block, TableBlock) and "csv" in block.caption:
            under[block.caption.split(".csv")[0]] = heading
            assert [column.label for column in block.columns] == ["value"], "no empty column"
    assert list(under) == [measured.plan, "another"]
    assert under[measured.plan].startswith(title(measured))
    assert under["another"] == "another"


def test_the_panels_of_the_toy_stand_below_it(shared: Path, tmp_path: Path) -> None:
    for name in ("toy", "theory", "toy-states"):
        (tmp_path / f"{name}.csv").write_text("network,value\nn,7.25\n")

    def order(*names: str) -> list[str]:
        files = [tmp_path / f"{name}.csv" for name in names]
        blocks = make_report([shared], tables_of=files, pictures=0).blocks
        heads = [b.text for b in blocks if isinstance(b, Heading) and b.level == 2]
        tables = [b.caption for b in blocks if isinstance(b, TableBlock)]
        return [t for t in (*heads, *tables) if "toy" in t or "Theorem" in t or ".csv" in t]

    captions = [f"{name}.csv, 1 row" for name in ("toy", "toy-states", "theory")]
    assert order("toy", "theory", "toy-states") == ["The toy of Figure 2", "Theorem 1", *captions]
    alone = ["The toy of Figure 2: its four panels", "toy-states.csv, 1 row"]
    assert order("toy-states") == alone


def test_markdown_needs_a_plain_name(document: Document, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="expected letters, digits"):
        write_markdown(document, tmp_path / "a (b).md")


def test_the_command(
    shared: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["report", "--help"]) == 0
    assert "Example: clcnn report " in " ".join(capsys.readouterr().out.split())
    (tmp_path / "toy.csv").write_text("network,accuracy\ntoy,97\n")
    command = ["report", str(shared), "--pictures", "0", "--csv", "toy.csv"]
    assert cli.run([*command, "--out", "p.html", "--markdown", "p.md"]) == 0
    assert capsys.readouterr().out == "written: p.html\nwritten: p.md\n"
    assert "The toy of Figure 2" in (tmp_path / "p.html").read_text()
    assert cli.run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"written": ["report.html"]}
    assert cli.run(["report"]) == 2
    capsys.readouterr()
    assert cli.run(["report", "nothing.sqlite"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("StoreError: there is no store nothing.sqlite.")
    assert error.count("\n") == 1
