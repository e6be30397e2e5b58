"""The whole at a glance: what either kind of attacker leaves of each defence, and what it costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from clcnn.evaluation.plan import NONE
from clcnn.report import words
from clcnn.report.blocks import Block, Column, Heading, Row, Span, TableBlock
from clcnn.report.cells import UNPLANNED, Footnotes, Usual, accuracy_spans, usual_of
from clcnn.report.costs import Cost, costs
from clcnn.report.gather import Experiment
from clcnn.report.lines import Pair, epsilons_of, lines_of
from clcnn.report.threats import threat_figure

_THREATS = ("oblivious", "adaptive")
_MOST = 4
"""So many epsilons have columns."""


def glance_blocks(experiments: Sequence[Experiment]) -> list[Block]:
    """One line a defence that both kinds of attacker have met, and its network without it.

    Only lines of one experiment have met the same attacks, so each network has a group for each.
    """
    shown = lines_of(experiments)
    if not shown:
        return []
    epsilons, left = epsilons_of(shown, _MOST)
    pairs = [line.pairs[eps] for line in shown for eps in epsilons if eps in line.pairs]
    usual = usual_of(pair[1].n for pair in pairs)
    attacks = Counter(result.attack for pair in pairs for result in pair)
    frequent = attacks.most_common(1)[0][0]
    prices = {(c.network, c.defence, c.subject): c for c in costs(experiments)}
    rows = [
        Row(
            (line.group, words.defence(line.defence)),
            [
                accuracy_spans(line.clean, None, usual, Footnotes()),
                *(
                    spans
                    for eps in epsilons
                    for spans in _spans(line.pairs.get(eps), usual, frequent)
                ),
                _price(prices.get((line.network, line.defence, line.subject))),
            ],
        )
        for line in shown
    ]
    both = ", and " if len(attacks) > 1 else "; "
    table = TableBlock(
        caption=f"The accuracy in % that a defence keeps, with 95 % intervals, and what it costs; "
        f"{words.attack(frequent)}{both}{usual.words}. Defences that both kinds of attacker have "
        "met, by experiment.",
        corner=("network: experiment", "defence"),
        columns=[
            Column(words.attack(NONE)),
            *(Column(threat, f"ε = {eps:g}") for eps in epsilons for threat in _THREATS),
            Column("plain forwards"),
        ],
        rows=rows,
        legend=_legend(left),
    )
    return [Heading(2, "At a glance", "glance"), threat_figure(shown), table]


def _legend(left: Sequence[float]) -> list[str]:
    legend = [
        "Oblivious attackers do not know of the control, adaptive ones do. The two figures of a "
        "pair are of the same images, each the least that any attack leaves of those that were "
        "measured for both.",
        "Attacks differ between experiments, whose sections say what they are: compare within "
        "a group. Where n differs, so do the images.",
        "A worst case is of the attacks that its section names: one that is not in it may leave "
        "less, as the tables' footnotes say.",
        "A worst case takes over what broke an image at a smaller ε of its experiment: one that "
        "begins at a smaller ε has more of these.",
    ]
    if left:
        legend.append(f"Also measured, not shown: ε = {words.listed(f'{eps:g}' for eps in left)}.")
    return legend


def _price(cost: Cost | None) -> list[Span]:
    return [Span(UNPLANNED, "muted")] if cost is None else [Span(f"{cost.middle:.3g} ×")]


def _spans(pair: Pair | None, usual: Usual, attack: str) -> list[list[Span]]:
    if pair is None:
        return [[Span(UNPLANNED, "muted")] for _ in _THREATS]
    return [
        [
            *accuracy_spans(result, None, usual, Footnotes()),
            *([Span(words.attack(result.attack), "interval")] if result.attack != attack else []),
        ]
        for result in pair
    ]
