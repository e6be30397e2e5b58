"""The whole at a glance: what either kind of attacker leaves of each defence, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.report import words
from clcnn.report.blocks import Block, Column, Heading, Row, Span, TableBlock
from clcnn.report.cells import UNPLANNED, Footnotes, Usual, accuracy_spans, usual_of
from clcnn.report.costs import Cost, costs
from clcnn.report.gather import Experiment
from clcnn.report.pool import at
from clcnn.report.trade import SWEEPS

_THREATS = ("oblivious", "adaptive")
_MOST = 4
"""So many epsilons have columns."""

_APART = SWEEPS | {"literal"}
"""Experiments about a setting or about the published code: no defences to choose among."""

_Pair = tuple[Result, Result]
"""The cells of one attack on the same images, oblivious and adaptive."""


@dataclass
class _Line:
    """One defence of one network in one experiment, and by epsilon what both threats leave."""

    network: str
    plan: str
    defence: str
    subject: str
    clean: Result | None = None
    pairs: dict[float, _Pair] = field(default_factory=dict)


def glance_blocks(experiments: Sequence[Experiment]) -> list[Block]:
    """One line a defence that both kinds of attacker have met, and its network without it.

    Only lines of one experiment have met the same attacks, so each network has a group for each.
    """
    lines = [line for e in experiments if e.name not in _APART for line in _lines(e)]
    controlled = [line for line in lines if line.defence != NONE]
    if not controlled:
        return []
    groups = dict.fromkeys((line.network, line.plan) for line in controlled)
    networks = list(dict.fromkeys(network for network, _ in groups))
    shown = [line for line in lines if (line.network, line.plan) in groups]
    shown.sort(key=lambda line: networks.index(line.network))
    epsilons, left = _epsilons(controlled)
    pairs = [line.pairs[eps] for line in shown for eps in epsilons if eps in line.pairs]
    usual, attacks = usual_of(pair[1].n for pair in pairs), {pair[1].attack for pair in pairs}
    prices = {(c.network, c.defence, c.subject): c for c in costs(experiments)}
    rows = [
        Row(
            (f"{line.network}: {line.plan}", words.defence(line.defence)),
            [
                accuracy_spans(line.clean, None, usual, Footnotes()),
                *(
                    spans
                    for eps in epsilons
                    for spans in _spans(line.pairs.get(eps), usual, named=len(attacks) > 1)
                ),
                _price(prices.get((line.network, line.defence, line.subject))),
            ],
        )
        for line in shown
    ]
    alike = f" ({words.attack(attacks.pop())})" if len(attacks) == 1 else ""
    table = TableBlock(
        caption=f"The accuracy in % that a defence keeps{alike}, with 95 % intervals, and what it "
        f"costs; {usual.words}. Defences that both kinds of attacker have met, by experiment.",
        corner=("network: experiment", "defence"),
        columns=[
            Column(words.attack(NONE)),
            *(Column(threat, f"ε = {eps:g}") for eps in epsilons for threat in _THREATS),
            Column("plain forwards"),
        ],
        rows=rows,
        legend=_legend(left),
    )
    return [Heading(2, "At a glance", "glance"), table]


def _legend(left: Sequence[float]) -> list[str]:
    legend = [
        "Oblivious attackers do not know of the control, adaptive ones do. The two figures of a "
        "pair are of one attack on the same images: of those measured for both, the one that "
        "leaves least to who knows.",
        "Attacks differ between experiments, whose sections say what they are: compare within "
        "a group. Where n differs, so do the images.",
    ]
    if left:
        legend.append(f"Also measured, not shown: ε = {words.listed(f'{eps:g}' for eps in left)}.")
    return legend


def _lines(experiment: Experiment) -> list[_Line]:
    """The defences of an experiment that both threats were measured for."""
    lines: dict[tuple[str, str], _Line] = {}
    for result in experiment.results:
        if not result.is_complete:
            continue
        subject = experiment.subject(result.network, result.defence, NONE)
        line = lines.setdefault(
            (result.network, result.defence),
            _Line(experiment.network(result), experiment.plan, result.defence, subject),
        )
        if result.attack == NONE and (line.clean is None or line.clean.n < result.n):
            line.clean = result
        pair = _pair(experiment, result)
        known = line.pairs.get(result.eps)
        if pair is not None and (known is None or pair[1].accuracy < known[1].accuracy):
            line.pairs[result.eps] = pair
    return [line for line in lines.values() if line.pairs]


def _pair(experiment: Experiment, result: Result) -> _Pair | None:
    """An adaptive cell behind the oblivious one of the same attack and images."""
    if result.threat != "adaptive" or not experiment.is_sought(result):
        return None
    place = (result.network, result.defence, result.attack, result.eps)
    oblivious = at(experiment, *place, "oblivious")
    if oblivious is None or oblivious.n != result.n:
        return None
    return oblivious, result


def _epsilons(lines: Sequence[_Line]) -> tuple[list[float], list[float]]:
    """Those that most defences have met, and the others."""
    counts = Counter(eps for line in lines for eps in line.pairs)
    kept = sorted(counts, key=lambda eps: (-counts[eps], eps))[:_MOST]
    return sorted(kept), sorted(set(counts) - set(kept))


def _price(cost: Cost | None) -> list[Span]:
    return [Span(UNPLANNED, "muted")] if cost is None else [Span(f"{cost.middle:.3g} ×")]


def _spans(pair: _Pair | None, usual: Usual, *, named: bool) -> list[list[Span]]:
    if pair is None:
        return [[Span(UNPLANNED, "muted")] for _ in _THREATS]
    name = [Span(words.attack(pair[1].attack), "interval")] if named else []
    return [[*accuracy_spans(result, None, usual, Footnotes()), *name] for result in pair]
