"""The report itself: what stands where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from clcnn.evaluation.archive import readable
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments import paper
from clcnn.report import tuning, words
from clcnn.report.against import Comparison, shortfalls, unjudged, weaker_attacks
from clcnn.report.attackers import attacker_blocks
from clcnn.report.blocks import (
    Block,
    Bullets,
    Column,
    Details,
    Document,
    Figure,
    Heading,
    Paragraph,
    Pictures,
    Row,
    Span,
    TableBlock,
    Tone,
)
from clcnn.report.breakers import breaker_blocks
from clcnn.report.brief import brief_blocks
from clcnn.report.costs import cost_blocks
from clcnn.report.curves import accuracy_figure
from clcnn.report.defenders import defender_blocks
from clcnn.report.files import file_blocks
from clcnn.report.gains import gain_blocks
from clcnn.report.gather import TUNING, Experiment, Warned, gather, is_twice, name_of, warned
from clcnn.report.glance import glance_blocks
from clcnn.report.layers import residual_blocks
from clcnn.report.layout import tables, title, unmeasured
from clcnn.report.made import made_blocks
from clcnn.report.notes import Note, read_notes
from clcnn.report.pictures import picture_blocks
from clcnn.report.pool import Pool
from clcnn.report.summary import summary_blocks
from clcnn.report.trade import SWEEPS, trade_offs
from clcnn.report.tuning import choice_blocks, in_order, tuning_blocks

TITLE = "Close-loop control of neural networks: what was measured"


def make_report(
    stores: Sequence[str | Path],
    *,
    notes: str | Path | None = None,
    tables_of: Sequence[str | Path] = (),
    choices: Sequence[str | Path] = (),
    pictures: int = 6,
    workshop: Workshop | None = None,
    tell: Callable[[str], None] = lambda sentence: None,
) -> Document:
    """The report of all results in ``stores``; write it by `to_html` or `to_markdown`.

    Stores may be packed (`clcnn.evaluation.archive`). ``notes`` is a file with the reasons of
    shortfalls (`clcnn.report.notes`), ``tables_of`` are CSV files to show beside the stores (in the
    section of the experiment that they are called as, if there is one), ``choices`` files of
    settings chosen by grids that the stores do not hold, ``pictures`` how many images are shown
    under attack and control: ``workshop`` finds the network and the images for them, and ``tell``
    hears of work that takes long.
    """
    given = list(dict.fromkeys(Path(store) for store in stores))
    with readable(given) as paths:
        places = dict(zip(paths, given, strict=True))
        return _document(places, notes, tables_of, choices, pictures, workshop or Workshop(), tell)


def _document(
    stores: Mapping[Path, Path],
    notes: str | Path | None,
    tables_of: Sequence[str | Path],
    choices: Sequence[str | Path],
    pictures: int,
    workshop: Workshop,
    tell: Callable[[str], None],
) -> Document:
    experiments = gather(list(stores), stores)
    measured = [experiment for experiment in experiments if not experiment.is_tuning]
    explained = [] if notes is None else read_notes(Path(notes), experiments)
    pool = Pool(measured)
    blocks = [
        *summary_blocks(experiments, len(tables_of)),
        *_warnings(experiments),
        *_unfinished(experiments),
        *brief_blocks(measured, explained),
        *glance_blocks(measured),
    ]
    files = [(Path(path).stem, file_blocks(Path(path))) for path in tables_of]
    for experiment in measured:
        blocks += _section(experiment, pool, several=is_twice(experiment, measured))
        blocks += [b for name, (_, *rest) in files if name == experiment.plan for b in rest]
    # Whoever repeats the paper's tables in full wants to know which are missing.
    full = {e.name for e in measured if not e.sample and not e.ways}
    if len(full & set(paper.TABLES)) > 1:
        lacking = [table for name, table in paper.TABLES.items() if name not in full]
        blocks += [block for table in lacking for block in unmeasured(table)]
    sections = {experiment.plan for experiment in measured}
    blocks += [
        b for name, whole in files if name not in sections for b in _file(name, whole, files)
    ]
    if any(experiment.name in paper.TABLES for experiment in measured):
        blocks += _shortfalls(shortfalls(measured), unjudged(measured), explained)
        blocks += _weaker(weaker_attacks(measured))
    blocks += _figures(measured)
    if pictures and measured:
        blocks.append(Heading(2, "Pictures", "pictures"))
        blocks += picture_blocks(measured, workshop, pictures, tell)
    if measured:
        compared = [experiment for experiment in measured if experiment.name not in SWEEPS]
        blocks += [Heading(2, "Cost", "cost"), *cost_blocks(compared or measured)]
    tuned = [experiment for experiment in experiments if experiment.is_tuning]
    if tuned or choices:
        blocks += [Heading(2, "How settings were chosen", "tuning"), Paragraph(tuning.ABOUT)]
        blocks += [block for path in choices for block in choice_blocks(Path(path))]
        blocks += [b for one in in_order(tuned) for b in tuning_blocks(one, tuned)]
    return Document(TITLE, _apart([*blocks, *made_blocks(experiments)]))


def _file(
    name: str, whole: Sequence[Block], files: Sequence[tuple[str, list[Block]]]
) -> list[Block]:
    """The section of a file, with the files that belong to it; they have none of their own."""
    if words.PARTS.get(name) in dict(files):
        return []
    parts = [rest for other, (_, *rest) in files if words.PARTS.get(other) == name]
    return [*whole, *(block for rest in parts for block in rest)]


def _apart(blocks: Sequence[Block]) -> list[Block]:
    """The same blocks, with a number after names and anchors that an earlier one has."""
    anchors: set[str] = set()
    names: set[str] = set()

    def free(name: str, taken: set[str]) -> str:
        numbered = (name if k == 1 else f"{name}-{k}" for k in count(1))
        found = next(one for one in numbered if one not in taken)
        taken.add(found)
        return found

    def renamed(block: Block) -> Block:
        match block:
            case Heading():
                return replace(block, anchor=free(block.anchor, anchors))
            case Figure() | Pictures():
                return replace(block, name=free(block.name, names))
            case Details():
                return replace(block, blocks=[renamed(inner) for inner in block.blocks])
        return block

    return [renamed(block) for block in blocks]


def _warnings(experiments: Sequence[Experiment]) -> list[Block]:
    signs = warned(experiments)
    blocks: list[Block] = [Heading(2, "Warnings", "warnings")]
    if not signs:
        return [*blocks, Paragraph("The evaluation found no sign that its figures mislead.")]
    by_check: dict[str, list[Warned]] = {}
    for sign in signs:
        by_check.setdefault(sign.check, []).append(sign)
    places: list[Block] = [
        block
        for sign in signs
        for block in (Paragraph(f"{sign.check}: {sign.sentence}"), Bullets(sign.cells, "muted"))
    ]
    lines = [_line(check, alike) for check, alike in by_check.items()]
    return [*blocks, Bullets(lines, "warning"), Details("All of them, and where", places)]


def _line(check: str, signs: Sequence[Warned]) -> str:
    """What one check found: its sentence, or how many there are and the first of them."""
    cells = words.several(sum(len(sign.cells) for sign in signs), "place")
    if len(signs) == 1:
        return f"{check} ({cells}): {signs[0].sentence}"
    # A search for settings is of less interest than a table.
    first = min(signs, key=lambda sign: all(cell.startswith(TUNING) for cell in sign.cells))
    return f"{check} ({cells}), such as: {first.sentence}"


def _unfinished(experiments: Sequence[Experiment]) -> list[Block]:
    lacking = [(e.plan, r) for e in experiments for r in e.results if not r.is_complete]
    if not lacking:
        return []
    text = (
        f"{words.several(len(lacking), 'cell is', 'cells are')} not complete. The tables have what "
        "is there so far, and set no mark against the paper's figure; repeat the commands that "
        "measure them to go on."
    )
    ahead = Counter(plan for plan, r in lacking if not r.n)
    items = [f"{plan}: {words.several(n, 'cell')} not begun" for plan, n in ahead.items()] + [
        f"{plan}: {name_of(r)}: {words.count(r.n)} of {words.count(r.wanted)}"
        for plan, r in lacking
        if r.n
    ]
    return [Paragraph(text, "warning"), Details("Incomplete cells", [Bullets(items)])]


def _section(experiment: Experiment, pool: Pool, several: bool) -> list[Block]:
    head = title(experiment)
    ways = [*(["quick form"] if experiment.sample else []), *experiment.ways]
    head += f" ({', '.join(ways)})" if ways else ""
    head += f" in {experiment.label}" if several else ""
    label = experiment.label.removesuffix(experiment.store.suffix) if several else ""
    anchor = words.slug(f"{experiment.plan} {label}")
    blocks: list[Block] = [Heading(2, head, anchor)]
    if about := words.ABOUT.get(experiment.name):
        blocks.append(Paragraph(about))
    blocks += tables(experiment, pool)
    blocks += _remeasured(experiment, pool)
    blocks += breaker_blocks(experiment)
    blocks += defender_blocks(experiment)
    blocks += attacker_blocks(experiment)
    blocks += gain_blocks(experiment)
    drawn = () if experiment.name in SWEEPS else experiment.results  # dozens of lines show nothing
    for network in dict.fromkeys(r.network for r in drawn):
        figure = accuracy_figure(experiment, network, pool)
        blocks += [figure] if figure is not None else []
    return blocks


def _remeasured(experiment: Experiment, pool: Pool) -> list[Block]:
    """Why a cell may have two figures on one page."""
    pairs = pool.remeasured(experiment)
    if not pairs:
        return []
    own, first, other = max(pairs, key=lambda p: abs(p[0].accuracy - p[1].accuracy))
    what = words.attack(own.attack) + (f" at ε = {words.level(own.eps)}" if own.eps else "")
    return [
        Paragraph(
            f"Measured apart from `{other.plan}`, by other code or on another kind of processor: "
            f"rounding decides near the border. Without control {what} leaves "
            f"{words.percent(own.accuracy)} here and {words.percent(first.accuracy)} there, of the "
            f"same {words.count(own.n)} images. Compare within a section.",
            "muted",
        )
    ]


def _shortfalls(found: Sequence[Comparison], ahead: int, notes: Sequence[Note]) -> list[Block]:
    blocks: list[Block] = [
        Heading(2, "Where ours falls short of the paper", "shortfalls"),
        Paragraph(
            "Complete cells whose 95 % interval lies below the paper's figure. Attacked networks "
            "without control are left out, as a lower figure there is a stronger attack. 'Without "
            "control' is the same difference before anything defends: what the network and the "
            "attack account for by themselves.",
            "muted",
        ),
    ]
    if ahead:
        waiting = words.several(ahead, "cell is", "cells are")
        blocks.append(Paragraph(f"{waiting} not judged yet, being incomplete.", "warning"))
    if not found:
        tone: Tone = "plain" if ahead else "good"
        return [*blocks, Paragraph("None of the complete cells does.", tone)]
    groups: dict[int | None, list[Comparison]] = {}
    for short in found:
        place = next((k for k, note in enumerate(notes) if note.explains(short)), None)
        groups.setdefault(place, []).append(short)
    # In the order of the tables; what nothing explains last.
    order = {place: (place is None, group[0].cell.table, place) for place, group in groups.items()}
    for place, group in sorted(groups.items(), key=lambda pair: order[pair[0]]):
        about = "Not explained yet" if place is None else _about(group)
        blocks.append(Heading(3, about, f"shortfall-{len(blocks)}"))
        if place is None:
            blocks.append(
                Paragraph("Why these fall short is not measured yet: no note explains them.")
            )
        else:
            note = notes[place]
            blocks += [Paragraph(note.text), Paragraph(f"Measured by `{note.command}`.", "muted")]
        blocks.append(_shortfall_table(group, "below the paper's"))
    unused = [k for k in range(len(notes)) if k not in groups]
    blocks += [Paragraph(f"A note explains no cell: {notes[k].place}.", "warning") for k in unused]
    return blocks


def _about(group: Sequence[Comparison]) -> str:
    """Which cells a reason is about."""
    tables = dict.fromkeys(short.cell.table for short in group)
    networks = dict.fromkeys(short.network for short in group)
    defences = dict.fromkeys(words.defence(short.defence) for short in group)
    attacks = dict.fromkeys(words.attack(short.attack) for short in group)
    names = [f"Table {table.removeprefix('table')}" for table in tables]
    return f"{words.listed(names)}, {words.listed(networks)}: {words.listed(defences)}, " + (
        words.listed(attacks)
    )


def _weaker(found: Sequence[Comparison]) -> list[Block]:
    """Where ours is above only because the attack is weaker."""
    if not found:
        return []
    return [
        Heading(3, "Attacks weaker than the paper's", "weaker"),
        Paragraph(
            "The other way round, these attacks leave more of the uncontrolled network than the "
            "paper's left of its own: the attack is weaker, or the network stands more of it (of "
            "FGSM there is but one). What defends it has it easier than the paper's had.",
        ),
        _shortfall_table(found, "of attacks weaker than the paper's"),
    ]


def _shortfall_table(group: Sequence[Comparison], what: str) -> TableBlock:
    rows = []
    plain = any(short.plain is not None for short in group)
    names = ["ours", "paper", "difference", *(["without control"] if plain else [])]
    for short in group:
        signed = short.cell.table == "table3"
        ours = words.points(short.ours) if signed else f"{short.ours:.1f}"
        interval = words.interval(short.low, short.high, signed)
        attack = words.attack(short.attack)
        attack += f", ε = {short.eps:g}" if short.eps else ""
        spans = [Span(ours), Span(f"{interval}, n = {words.count(short.n)}", "interval")]
        printed = [Span(f"{short.cell.value:+.0f}" if signed else f"{short.cell.value:.0f}")]
        if short.cell.note:
            printed.append(Span(f"⚠ {short.cell.note}", "remark"))
        lacking = Span(words.points(short.ours - short.cell.value), "muted")
        cells = [spans, printed, [lacking]]
        if plain:
            before = "–" if short.plain is None else words.points(short.plain)
            cells.append([Span(before, "muted")])
        heads = (f"{short.experiment}, {short.network}", words.defence(short.defence), attack)
        rows.append(Row(heads, cells))
    return TableBlock(
        caption=f"{words.several(len(rows), 'cell')} {what}",
        corner=("table and network", "defence", "attack"),
        columns=[Column(name) for name in names],
        rows=rows,
    )


def _figures(experiments: Sequence[Experiment]) -> list[Block]:
    blocks: list[Block] = []
    trades = trade_offs(experiments)
    if trades:
        blocks += [Heading(2, "Clean against robust", "trade-off"), *trades]
    residuals = residual_blocks(experiments)
    if residuals:
        blocks += [Heading(2, "Residuals by layer", "residuals"), *residuals]
    return blocks
