"""The whole at a glance: what each defence costs, and what either kind of attacker leaves of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from clcnn.evaluation.results import Result
from clcnn.report import words
from clcnn.report.blocks import Block, Column, Heading, Row, Span, TableBlock
from clcnn.report.cells import UNPLANNED, Footnotes, Usual, accuracy_spans, usual_of
from clcnn.report.costs import Cost, costs
from clcnn.report.gather import Experiment
from clcnn.report.pool import NONE, at
from clcnn.report.trade import SWEEPS

_THREATS = ("oblivious", "adaptive")
_APART = SWEEPS | {"literal"}
"""Experiments about a setting or about the published code: no defences to choose among."""


@dataclass
class _Line:
    """One defence of one network: its clean cell, and by epsilon what both threats leave of it."""

    network: str
    defence: str
    clean: Result | None = None
    pairs: dict[float, tuple[Result, Result]] = field(default_factory=dict)
    """The cells of one attack on the same images, oblivious and adaptive."""


def glance_blocks(experiments: Sequence[Experiment]) -> list[Block]:
    """One line a defence that both kinds of attacker have met, and its network without it."""
    lines = _lines([e for e in experiments if e.name not in _APART])
    lines = {key: line for key, line in lines.items() if line.clean and line.pairs}
    controlled = [line for line in lines.values() if line.defence != NONE]
    if not controlled:
        return []
    networks = dict.fromkeys(line.network for line in controlled)
    shown = {key: line for key, line in lines.items() if line.network in networks}
    epsilons = _epsilons(controlled)
    prices = {(c.network, c.defence, c.subject): c for c in costs(experiments)}
    usual = usual_of(
        line.pairs[eps][0].n for line in shown.values() for eps in epsilons if eps in line.pairs
    )
    ordered = sorted(shown.items(), key=lambda pair: list(networks).index(pair[1].network))
    rows = [
        Row(
            (line.network, words.defence(line.defence)),
            [
                accuracy_spans(line.clean, None, usual, Footnotes()),
                *(spans for eps in epsilons for spans in _spans(line.pairs.get(eps), usual)),
                _price(prices.get(key)),
            ],
        )
        for key, line in ordered
    ]
    table = TableBlock(
        caption="The accuracy in % that a defence keeps, with 95 % intervals, and what it costs; "
        f"{usual.words}. Defences that both kinds of attacker have met.",
        corner=("network", "defence"),
        columns=[
            Column(words.attack(NONE)),
            *(Column(threat, f"ε = {eps:g}") for eps in epsilons for threat in _THREATS),
            Column("plain forwards"),
        ],
        rows=rows,
        legend=[
            "Oblivious attackers do not know of the control, adaptive ones do. Each pair is of one "
            "attack on the same images: of those measured for both, the one that leaves least to "
            "who knows. What single attacks leave is in the sections below."
        ],
    )
    return [Heading(2, "At a glance", "glance"), table]


def _lines(experiments: Sequence[Experiment]) -> dict[tuple[str, str, str], _Line]:
    """By network, defence and all that it is measured with; whoever measured it."""
    lines: dict[tuple[str, str, str], _Line] = {}
    for experiment in experiments:
        for result in experiment.results:
            if not result.is_complete:
                continue
            network = experiment.network(result)
            subject = experiment.subject(result.network, result.defence, NONE)
            key = (network, result.defence, subject)
            line = lines.setdefault(key, _Line(network, result.defence))
            if result.attack == NONE and (line.clean is None or line.clean.n < result.n):
                line.clean = result
            pair = _pair(experiment, result)
            known = line.pairs.get(result.eps)
            if pair is not None and (known is None or _rank(pair) < _rank(known)):
                line.pairs[result.eps] = pair
    return lines


def _pair(experiment: Experiment, result: Result) -> tuple[Result, Result] | None:
    """An adaptive cell behind the oblivious one of the same attack and images."""
    if result.threat != "adaptive" or not experiment.is_sought(result):
        return None
    place = (result.network, result.defence, result.attack, result.eps)
    oblivious = at(experiment, *place, "oblivious")
    if oblivious is None or oblivious.n != result.n:
        return None
    return oblivious, result


def _rank(pair: tuple[Result, Result]) -> tuple[float, int]:
    """The lowest is shown: the least adaptive accuracy, of two alike that of more images."""
    return pair[1].accuracy, -pair[1].n


def _epsilons(lines: Sequence[_Line]) -> list[float]:
    """Those at which at least half as many defences were attacked as at the commonest."""
    counts = Counter(eps for line in lines for eps in line.pairs)
    most = max(counts.values(), default=0)
    return sorted(eps for eps, count in counts.items() if 2 * count >= most)


def _price(cost: Cost | None) -> list[Span]:
    return [Span(UNPLANNED, "muted")] if cost is None else [Span(f"{cost.middle:.3g} ×")]


def _spans(pair: tuple[Result, Result] | None, usual: Usual) -> list[list[Span]]:
    if pair is None:
        return [[Span(UNPLANNED, "muted")] for _ in _THREATS]
    name = Span(words.attack(pair[1].attack), "interval")
    return [[*accuracy_spans(result, None, usual, Footnotes()), name] for result in pair]
