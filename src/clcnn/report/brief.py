"""The page in a few sentences: ours beside the paper, and what either attacker leaves."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import NONE
from clcnn.report import words
from clcnn.report.against import shortfalls, verdicts
from clcnn.report.blocks import Block, Bullets, Heading, Paragraph
from clcnn.report.gather import Experiment
from clcnn.report.lines import Line, epsilons_of, lines_of
from clcnn.report.notes import Note


def brief_blocks(experiments: Sequence[Experiment], notes: Sequence[Note]) -> list[Block]:
    """What a reader without time should know; nothing if nothing of the kind was measured."""
    blocks = [*_paper(experiments, notes), *_threats(lines_of(experiments))]
    return [Heading(2, "In brief", "brief"), *blocks] if blocks else []


def _paper(experiments: Sequence[Experiment], notes: Sequence[Note]) -> list[Block]:
    found = verdicts(experiments)
    if not found:
        return []
    why: dict[tuple[str, str, str, float], Note | None] = {}
    for short in shortfalls(experiments):
        place = (short.network, short.defence, short.attack, short.eps)
        why[place] = why.get(place) or next((n for n in notes if n.explains(short)), None)
    told = [note for note in why.values() if note is not None]
    reasons = (
        f". {words.count(len(told))} of the latter have a paragraph below that says what was "
        f"measured of the reason; of {words.count(sum(n.is_open for n in told))} a part stays "
        "unexplained"
    )
    return [
        Paragraph(
            f"Beside the paper: of {words.several(found.total(), 'figure')} for clean images and "
            f"for defences that ours can be held against, {words.count(found['within'])} differ by "
            f"no more than chance explains, {words.count(found['above'])} are above the paper's "
            f"and {words.count(found['below'])} below{reasons if why else ''}."
        )
    ]


def _threats(lines: Sequence[Line]) -> list[Block]:
    """Of each network's first experiment the defence that keeps most against who knows of it."""
    if not lines:
        return []
    (eps,), others = epsilons_of(lines, 1)
    met = [line for line in lines if eps in line.pairs]
    best: dict[str, Line] = {}
    for line in met:
        known = best.get(line.network)
        if line.defence == NONE or (known is not None and known.plan != line.plan):
            continue  # other experiments have other attacks
        if known is None or _kept(line, eps) > _kept(known, eps):
            best[line.network] = line
    larger = [other for other in others if other > eps]
    return [
        Paragraph(
            f"At ε = {eps:g}/255, of the first experiment in which a network's defences met both "
            "kinds of attackers: the most that one of them keeps against an attacker who knows of "
            "it, what the same one keeps against an attacker who does not, and the network alone:"
        ),
        Bullets(
            [_sentence(line, eps, met) + _larger(line, lines, larger) for line in best.values()]
        ),
    ]


def _larger(line: Line, lines: Sequence[Line], epsilons: Sequence[float]) -> str:
    """What is left at larger radii by whichever defence keeps most there."""
    beside = [
        one
        for one in lines
        if (one.network, one.plan) == (line.network, line.plan) and one.defence != NONE
    ]
    told = []
    for eps in epsilons:
        met = [one.pairs[eps][1] for one in beside if eps in one.pairs]
        if met:
            most = max(met, key=lambda result: result.accuracy)
            interval = words.interval(100 * most.low, 100 * most.high)
            told.append(f"{words.percent(most.accuracy)} % ({interval}) at {eps:g}/255")
    return f" The most at larger radii: {words.listed(told)}." if told else ""


def _kept(line: Line, eps: float) -> float:
    return line.pairs[eps][1].accuracy


def _sentence(line: Line, eps: float, lines: Sequence[Line]) -> str:
    oblivious, adaptive = line.pairs[eps]
    same = (line.network, line.plan, NONE)
    plain = next((p for p in lines if (p.network, p.plan, p.defence) == same), None)
    without = ""
    if plain is not None:
        alone = plain.pairs[eps][1]
        overlap = adaptive.low <= alone.high and alone.low <= adaptive.high
        alike = ", and the intervals overlap" if overlap else ""
        without = f"; without control {words.percent(alone.accuracy)} %{alike}"
    interval = words.interval(100 * adaptive.low, 100 * adaptive.high)
    return (
        f"{line.network}: {words.percent(adaptive.accuracy)} % ({interval}; "
        f"n = {words.count(adaptive.n)}) by {words.defence(line.defence)} (plan {line.plan}: "
        f"{words.attack(adaptive.attack)}), which keeps {words.percent(oblivious.accuracy)} % if "
        f"the attacker does not know{without}."
    )
