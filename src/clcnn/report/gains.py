"""What control changes on the same images: each defence beside another, sample by sample.

The other is no control, in most experiments (`clcnn.report.gather.GAINS`). Its cells often have
more images, so that two figures of one column may be of different images: their difference is not
what control changes, and this is.
"""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import NONE
from clcnn.experiments import paper
from clcnn.report import words
from clcnn.report.blocks import Block, Column, Details, Row, Span, TableBlock
from clcnn.report.cells import UNPLANNED, Footnotes, again, difference_spans, usual_of
from clcnn.report.gather import GAINS, Experiment


def gain_blocks(experiment: Experiment) -> list[Block]:
    """Points of accuracy gained by each defence, with intervals; clean images first."""
    if not experiment.gains:
        return []
    base = GAINS[experiment.name]
    what = "Accuracy under control minus accuracy without"
    title = "What control changes, on the same images"
    if base != NONE:
        what = f"Accuracy minus that of {words.defence(base)}"
        title = f"What each changes beside {words.defence(base)}, on the same images"
    usual = usual_of(pair.n for pair in experiment.gains.values())
    found = [r for r in experiment.results if r.cell in experiment.gains]
    order = [*paper.ATTACKS, *(r.attack for r in found)]  # as in the table above it
    across = sorted(
        dict.fromkeys((r.attack, r.threat) for r in found if r.attack != NONE),
        key=lambda place: order.index(place[0]),
    )
    at = {(r.network, r.defence, r.attack, r.eps, r.threat): r for r in found}

    def spans(network: str, defence: str, attack: str, eps: float, threat: str) -> list[Span]:
        result = at.get((network, defence, attack, eps, threat))
        if result is None:
            return [Span(UNPLANNED, "muted")]
        pair = experiment.gains[result.cell]
        return difference_spans(pair, result.is_complete, None, usual, Footnotes())

    rows = []
    for network, defence in dict.fromkeys((r.network, r.defence) for r in found):
        own = {r.eps for r in found if (r.network, r.defence) == (network, defence) and r.eps}
        for place, eps in enumerate(sorted(own) or [0.0]):
            clean = spans(network, defence, NONE, 0.0, NONE)
            cells: list[Sequence[Span]] = [again(clean) if place else clean]
            cells += [spans(network, defence, attack, eps, threat) for attack, threat in across]
            weights = experiment.weights.get(network, network)
            rows.append(Row((weights, words.defence(defence), words.level(eps)), cells))
    both = len({threat for _, threat in across}) > 1
    table = TableBlock(
        caption=f"{what}, in points, on the images that both have met, with 95 % intervals "
        f"(Tango, paired); {usual.words}",
        corner=("network", "defence", "ε/255"),
        columns=[
            Column(words.attack(NONE)),
            *(
                Column(threat, words.attack(attack)) if both else Column(words.attack(attack))
                for attack, threat in across
            ),
        ],
        rows=rows,
    )
    return [Details(title, [table])]
