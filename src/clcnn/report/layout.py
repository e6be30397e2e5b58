"""Results in the paper's layout: a block a network, a line an epsilon and defence, attacks across.

What the paper sets in one place as "a / b / c" stands here in lines, each with its interval.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from clcnn.evaluation.plan import NONE, WORST
from clcnn.experiments import paper
from clcnn.experiments.run import PAIRS
from clcnn.report import words
from clcnn.report.against import ATTACK_RULE, RULE, printed_at
from clcnn.report.beyond import beyond
from clcnn.report.blocks import Block, Column, Details, Heading, Paragraph, Row, Span, TableBlock
from clcnn.report.cells import (
    UNPLANNED,
    Footnotes,
    Usual,
    accuracy_spans,
    again,
    difference_spans,
    paper_spans,
    usual_of,
)
from clcnn.report.gather import Experiment, Place
from clcnn.report.pool import REPEATED, Pool, at
from clcnn.statistics import Mean


def tables(experiment: Experiment, pool: Pool) -> list[Block]:
    """The blocks of an experiment's section: its table, and what of the paper's stays open."""
    table = paper.TABLES.get(experiment.name)
    if table is not None and table.differences:
        both = _accuracies(experiment, None, pool)
        blocks: list[Block] = [
            _differences(experiment, table),
            Details("The accuracies behind these differences, and under the worst case", [both]),
        ]
    else:
        blocks = [
            *_averages(experiment),
            *_pairs(experiment),
            _accuracies(experiment, table, pool),
        ]
    networks = [n for n in table.networks if _is_open(table.name, n)] if table else []
    if table is not None and networks:
        why = (
            "CIFAR-100's files are not at hand, so nothing of ours stands beside these figures yet."
        )
        printed = _printed(table, networks)
        blocks.append(
            Details("Open: the paper's CIFAR-100 rows", [Paragraph(why, "muted"), printed])
        )
    return blocks


def unmeasured(table: paper.PaperTable) -> list[Block]:
    """The section of a table of the paper's that no store has."""
    command = f"`clcnn experiment {table.name}`"
    why = f"Nothing of this table is measured yet: {command} does it."
    number = table.name.removeprefix("table")
    return [
        Heading(2, f"Table {number}", table.name),
        Paragraph(why, "warning"),
        Details("The paper's figures", [_printed(table, table.networks)]),
    ]


def _accuracies(experiment: Experiment, table: paper.PaperTable | None, pool: Pool) -> TableBlock:
    found = experiment.results
    met = {r.attack: None for r in found}  # in the plan's order, clean images first
    met = {NONE: None} | met if table or NONE in met else met
    networks = _networks(experiment, table)
    defences = _in_order((r.defence for r in found), table.defences if table else ())
    attacks = _in_order(met, paper.ATTACKS if table else [a for a in paper.ATTACKS if a in met])
    epsilons = sorted({r.eps for r in found if r.eps} | set(paper.EPSILONS if table else ()))
    adaptive = [
        attack
        for attack in attacks
        if any(
            # That no control was attacked so elsewhere is no reason for a column.
            r.threat == "adaptive"
            or (r.defence != NONE and pool.beside(experiment, r, "adaptive") is not None)
            for r in found
            if r.attack == attack != NONE
        )
    ]
    usual, notes = usual_of(r.n for r in found), Footnotes()
    columns: list[Column] = []
    for attack in attacks:
        name = words.attack(attack)
        if attack in adaptive:
            columns += [Column("oblivious", name), Column("adaptive", name)]
        else:
            columns.append(Column(name))
    worst = experiment.name in REPEATED and any(
        pool.worst(experiment, r.network, r.defence, r.eps, "adaptive") is not None
        for r in found
        if r.defence != NONE
    )
    if worst:
        columns += [Column(threat, words.attack(WORST)) for threat in ("oblivious", "adaptive")]
    marked = False

    def cell(network: str, defence: str, attack: str, eps: float, threat: str) -> list[Span]:
        nonlocal marked
        name = next((k for k, v in experiment.weights.items() if v == network), network)
        if worst and attack == WORST:
            result = pool.worst(experiment, name, defence, eps, threat)
            return accuracy_spans(result, None, usual, notes)
        result = at(experiment, name, defence, attack, eps, threat)
        if result is None:
            other = "oblivious" if threat == "adaptive" else "adaptive"
            like = at(experiment, name, defence, attack, eps, other)
            result = like and pool.beside(experiment, like, threat)
        printed = None
        # Beside a plan of ours the paper's figure is for what that plan measures, and no more.
        if threat != "adaptive" and (table is not None or result is not None):
            printed = printed_at(experiment.name, network, defence, attack, eps)
            marked = marked or printed is not None
        return accuracy_spans(result, printed, usual, notes)

    rows = []
    for network in networks:
        for first, eps in _first(epsilons or [0.0]):
            for defence in defences:
                cells: list[Sequence[Span]] = []
                for attack in attacks:
                    if attack == NONE:
                        clean = cell(network, defence, NONE, 0.0, NONE)
                        cells.append(clean if first else again(clean))
                        continue
                    cells.append(cell(network, defence, attack, eps, "oblivious"))
                    if attack in adaptive:
                        cells.append(cell(network, defence, attack, eps, "adaptive"))
                if worst:
                    cells.append(cell(network, defence, WORST, eps, "oblivious"))
                    cells.append(cell(network, defence, WORST, eps, "adaptive"))
                # A line that neither a plan nor the paper has anything in says nothing.
                if any(span.role != "muted" for spans in cells for span in spans):
                    rows.append(Row((network, words.level(eps), words.defence(defence)), cells))
    legend = [RULE] if marked else []
    legend += [ATTACK_RULE] if marked and _has(rows, lambda span: span.role == "apart") else []
    corrupted = any(r.is_corruption for r in found)
    if corrupted:
        legend.append(
            "Corruptions are chance: no one seeks out what the control gets wrong, and no norm "
            "bounds them. In their cells the level is the severity, 1 to 5."
        )
    if worst:
        members = words.listed(words.attack(name) for name in pool.members)
        legend.append(
            f"Worst case: of {members or 'its attacks'} on the same defences, from plan adaptive; "
            "oblivious: what these find on the network without control. The other columns' attacks "
            "do not know of the control, so their figures are no bound on what an attacker can do."
        )
        legend += beyond(experiment, pool)
    elif not adaptive and not experiment.is_of_corruptions and set(attacks) != {NONE}:
        legend.append(
            "Only oblivious attacks are in this table: they do not know of the control, so its "
            "figures are no bound on what an attacker can do."
        )
    if _has(rows, lambda span: span.text == UNPLANNED):
        legend.append(f"{UNPLANNED} not part of this experiment.")
    legend += notes.lines()
    return TableBlock(
        caption=f"{_caption(experiment, table)}. Accuracy in %, 95 % intervals; {usual.words}.",
        corner=("network", _level(experiment), "defence"),
        columns=columns,
        rows=rows,
        legend=legend,
    )


def _has(rows: Sequence[Row], test: Callable[[Span], bool]) -> bool:
    return any(test(span) for row in rows for spans in row.cells for span in spans)


def _level(experiment: Experiment) -> str:
    if not any(r.is_corruption for r in experiment.results):
        return "ε/255"
    return "severity" if experiment.is_of_corruptions else "ε/255 or severity"


def _differences(experiment: Experiment, table: paper.PaperTable) -> TableBlock:
    names = {weights: name for name, weights in experiment.weights.items()}
    usual, notes = usual_of(pair.n for pair in experiment.differences.values()), Footnotes()

    def cell(network: str, attack: str, eps: float) -> list[Span]:
        threat = NONE if attack == NONE else "oblivious"
        name = names.get(network, network)
        place = (name, attack, eps, threat)
        pair = experiment.differences.get(place)
        printed = paper.find(table.name, network, table.defences[0], attack, eps)
        return difference_spans(pair, experiment.is_complete(place), printed, usual, notes)

    rows = []
    for network in _networks(experiment, table):
        clean = cell(network, NONE, 0.0)
        for at_first, eps in _first(paper.EPSILONS):
            attacked = [cell(network, a, eps) for a in paper.ATTACKS if a != NONE]
            cells = [clean if at_first else again(clean), *attacked]
            rows.append(Row((network, f"{eps:g}"), cells))
    return TableBlock(
        caption=f"{_caption(experiment, table)}. Points of accuracy on the same samples, with 95 % "
        f"intervals (Tango); {usual.words}.",
        corner=("network", "ε/255"),
        columns=[Column(words.attack(attack)) for attack in paper.ATTACKS],
        rows=rows,
        legend=[
            RULE.replace("Wilson", "Tango, paired"),
            "The attacks do not know of the control (oblivious): a difference says nothing of what "
            "one who knows would leave of either.",
            *notes.lines(),
        ],
    )


def _pairs(experiment: Experiment) -> list[Block]:
    """What an experiment that no table of the paper's is like says first: its differences."""
    if not experiment.differences:
        return []
    first, second = PAIRS[experiment.name]
    usual = usual_of(pair.n for pair in experiment.differences.values())
    planned = [r for r in experiment.results if r.defence == first]
    across = list(dict.fromkeys((r.attack, r.threat) for r in planned if r.eps))
    rows = []
    for network in dict.fromkeys(r.network for r in planned):
        epsilons = sorted({r.eps for r in planned if r.network == network and r.eps})
        for at_first, eps in _first(epsilons or [0.0]):
            clean = _pair(experiment, (network, NONE, 0.0, NONE), usual)
            cells = [clean if at_first else again(clean)]
            cells += [_pair(experiment, (network, a, eps, threat), usual) for a, threat in across]
            level = words.level(eps) if eps else UNPLANNED
            rows.append(Row((experiment.weights.get(network, network), level), cells))
    return [
        TableBlock(
            caption=f"{words.defence(first)} minus {words.defence(second)}: points of accuracy on "
            f"the same samples, with 95 % intervals (Tango); {usual.words}.",
            corner=("network", _level(experiment)),
            columns=[
                Column(words.attack(NONE)),
                *(Column(threat, words.attack(attack)) for attack, threat in across),
            ],
            rows=rows,
        )
    ]


def _pair(experiment: Experiment, place: Place, usual: Usual) -> list[Span]:
    network, attack, eps, threat = place
    parts = [at(experiment, network, d, attack, eps, threat) for d in PAIRS[experiment.name]]
    if None in parts:
        return [Span(UNPLANNED, "muted")]
    pair, complete = experiment.differences.get(place), experiment.is_complete(place)
    return difference_spans(pair, complete, None, usual, Footnotes())


def _averages(experiment: Experiment) -> list[Block]:
    """Means over all corruptions and severities, of the defences that have met all of them."""
    found = experiment.averages
    if not found:
        return []
    plain = {(a.network, a.defence): a.mean for a in found if a.minus is None}
    more = {(a.network, a.defence): a.mean for a in found if a.minus is not None}
    usual = usual_of(mean.n for mean in plain.values())

    def spans(mean: Mean | None, signed: bool) -> list[Span]:
        if mean is None:
            return [Span(UNPLANNED, "muted")]
        value, low, high = (100 * part for part in (mean.value, mean.low, mean.high))
        text = words.points(value) if signed else f"{value:.1f}"
        return [Span(text), Span(words.interval(low, high, signed), "interval")]

    return [
        TableBlock(
            caption="Mean over all corruptions and severities: accuracy in %, and points more than "
            f"without control on the same images; 95 % intervals over images; {usual.words}.",
            corner=("network", "defence"),
            columns=[Column("mean"), Column("difference")],
            rows=[
                Row(
                    (experiment.weights.get(network, network), words.defence(defence)),
                    [
                        [*spans(mean, signed=False), *usual.other(mean.n)],
                        spans(more.get((network, defence)), signed=True),
                    ],
                )
                for (network, defence), mean in plain.items()
            ],
        )
    ]


def _printed(table: paper.PaperTable, networks: Sequence[str]) -> TableBlock:
    """The paper's rows that nothing of ours stands beside."""
    notes = Footnotes()
    rows = [
        Row(
            (network, f"{eps:g}", words.defence(defence)),
            [
                [Span("open", "state"), *paper_spans(cell, notes, table.differences)]
                for attack in paper.ATTACKS
                for cell in [paper.find(table.name, network, defence, attack, eps)]
            ],
        )
        for network in networks
        for eps in paper.EPSILONS
        for defence in table.defences
    ]
    columns = [Column(words.attack(attack)) for attack in paper.ATTACKS]
    corner = ("network", "ε/255", "defence")
    return TableBlock(table.caption, corner, columns, rows, notes.lines())


def _networks(experiment: Experiment, table: paper.PaperTable | None) -> list[str]:
    wanted = [n for n in (table.networks if table else ()) if not _is_open(experiment.name, n)]
    return _in_order((experiment.network(r) for r in experiment.results), wanted)


def _is_open(table: str, network: str) -> bool:
    return all(c.open for c in paper.CELLS.values() if (c.table, c.network) == (table, network))


def _in_order(found: Iterable[str], first: Sequence[str]) -> list[str]:
    """The names in ``first``, then the others as they are found."""
    return list(dict.fromkeys([*first, *found]))


def _first(values: Sequence[float]) -> list[tuple[bool, float]]:
    return [(place == 0, value) for place, value in enumerate(values)]


def title(experiment: Experiment) -> str:
    """The name of an experiment for people."""
    if experiment.name in paper.TABLES:
        return f"Table {experiment.name.removeprefix('table')}"
    return words.EXPERIMENTS.get(experiment.name, f"Plan {experiment.plan}")


def _caption(experiment: Experiment, table: paper.PaperTable | None) -> str:
    return f"Plan {experiment.plan}" if table is None else table.caption
