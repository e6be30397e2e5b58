"""What each defence costs, as a multiple of a plain forward pass measured beside it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.report import words
from clcnn.report.blocks import Block, Column, Figure, Panel, Row, Span, TableBlock
from clcnn.report.curves import series_of
from clcnn.report.gather import Experiment
from clcnn.report.svg import Plot, number, tint


@dataclass(frozen=True)
class Cost:
    """Multiples of a plain forward over the cells of one network and defence.

    ``subject`` is all that the defence is measured with (`Experiment.subject`); ``only`` names the
    plans it is from, where another defence has its name.
    """

    network: str
    defence: str
    subject: str
    only: tuple[str, ...]
    multiples: tuple[float, ...]
    samples: int

    @property
    def name(self) -> str:
        """The defence for people."""
        plans = f" ({', '.join(self.only)})" if self.only else ""
        return words.defence(self.defence) + plans

    @property
    def middle(self) -> float:
        """The median over cells."""
        return statistics.median(self.multiples)


def costs(experiments: Sequence[Experiment]) -> list[Cost]:
    """By network and defence; each cell counts once, in however many experiments it stands."""
    found: dict[tuple[str, str, str], dict[tuple[str, int], Result]] = {}
    plans: dict[tuple[str, str, str], dict[str, None]] = {}
    for experiment in experiments:
        for result in experiment.results:
            if result.n:
                subject = experiment.subject(result.network, result.defence, NONE)
                key = (experiment.network(result), result.defence, subject)
                found.setdefault(key, {})[str(experiment.store), result.cell] = result
                plans.setdefault(key, {})[experiment.plan] = None
    alike = Counter((network, defence) for network, defence, _ in found)
    networks = list(dict.fromkeys(network for network, _, _ in found))
    return [
        Cost(
            network=key[0],
            defence=key[1],
            subject=key[2],
            only=tuple(plans[key]) if alike[key[:2]] > 1 else (),
            multiples=tuple(r.cost for r in cells.values()),
            samples=sum(r.n for r in cells.values()),
        )
        for key, cells in sorted(found.items(), key=lambda item: networks.index(item[0][0]))
    ]


def cost_blocks(experiments: Sequence[Experiment]) -> list[Block]:
    """The table, and bars of what is controlled."""
    rows = costs(experiments)
    table = TableBlock(
        caption="Seconds of a defence over those of one plain forward of the same images, "
        "measured side by side",
        corner=("network", "defence"),
        columns=[
            Column("median"),
            Column("least to most"),
            Column("cells"),
            Column("images"),
        ],
        rows=[
            Row(
                (cost.network, cost.name),
                [
                    [Span(f"{cost.middle:.3g} ×")],
                    [Span(f"{min(cost.multiples):.3g}–{max(cost.multiples):.3g}", "interval")],
                    [Span(words.count(len(cost.multiples)), "interval")],
                    [Span(words.count(cost.samples), "interval")],
                ],
            )
            for cost in rows
        ],
        legend=["Each cell's multiple is the median over its chunks; the median is over cells."],
    )
    controlled = [cost for cost in rows if cost.defence != "none"]
    return [table, *([_figure(controlled)] if controlled else [])]


def _figure(rows: Sequence[Cost]) -> Figure:
    colours = series_of(list(dict.fromkeys(cost.defence for cost in rows)))
    names = [f"{cost.network}, {cost.name}" for cost in rows]
    left = min(330, 24 + 6 * max(map(len, names)))
    height = 60 + 26 * len(rows)
    most = max(cost.middle for cost in rows)
    plot = Plot.of("", (0.0, 1.15 * most), (0.0, 1.0), width=700, height=height, left=left)
    for place, (cost, name) in enumerate(zip(rows, names, strict=True)):
        y = 10 + 26 * place
        width = max(1.0, plot.x(cost.middle) - plot.x(0.0))
        plot.text(left - 8, y + 13, name, "name", "end")
        plot.parts.append(
            f'<rect x="{left}" y="{y}" width="{number(width)}" height="18" rx="2" '
            f'class="bar {tint(colours[cost.defence])}"/>'
        )
        plot.text(left + width + 6, y + 13, f"{cost.middle:.3g}")
    ticks = [(0.0, "0"), (1.0, "1")] if most < 20 else [(0.0, "0")]
    plot.x_axis(ticks, "multiples of a plain forward")
    said = "; ".join(f"{n}: {c.middle:.3g}" for n, c in zip(names, rows, strict=True))
    panel: Panel = plot.done(f"Cost in plain forwards: {said}.")
    return Figure("cost", "Cost of each defence in plain forward passes, median", [panel])
