"""Means over all cells of a defence: an image that many cells share counts once, by its mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.evaluation.store import Store
from clcnn.statistics import Mean, mean

MEAN = "mean"
Row = dict[str, str]


@dataclass(frozen=True)
class Average:
    """The mean of one defence over all corruptions and severities, or a difference of two.

    ``minus`` is the defence that was taken away, image by image.
    """

    network: str
    defence: str
    minus: str | None
    mean: Mean
    seconds: float


def averages(store: Store, found: Sequence[Result]) -> list[Average]:
    """Accuracy over all corruptions and severities, and its difference to no control.

    m = sum_i a_i / n, a_i the share of all cells in which image i is classified right. The 95 %
    intervals are over images, as the same ones are in every cell; differences are image by image.
    The corruptions are not drawn from anything: they are these. A defence has a mean once it has
    met all that any defence of its network is to meet, on as many images.
    """
    cells = [result for result in found if result.is_corruption]
    made = []
    for network in dict.fromkeys(result.network for result in cells):
        here = [result for result in cells if result.network == network]
        wanted = {_met(result) for result in here}
        of = {
            d: [result for result in here if result.defence == d]
            for d in dict.fromkeys(result.defence for result in here)
        }
        of = {
            d: its
            for d, its in of.items()
            if {_met(result) for result in its} == wanted
            and all(result.is_complete and result.n > 1 for result in its)
        }
        shares = {d: _shares(store, its) for d, its in of.items()}
        seconds = {d: sum(result.seconds for result in its) / len(its) for d, its in of.items()}
        for d in of:
            whole = _within(mean(list(shares[d].values())))
            made.append(Average(network, d, None, whole, seconds[d]))
        plain = shares.get(NONE)
        for d in of:
            if d != NONE and plain is not None:
                more = mean([share - plain[sample] for sample, share in shares[d].items()])
                made.append(Average(network, d, NONE, more, seconds[d] - seconds[NONE]))
    return made


def means(store: Store, found: Sequence[Result]) -> list[Row]:
    """`averages` as lines of a CSV file, in per cent."""
    return [
        {
            "network": average.network,
            "defence": f"{average.defence}-{average.minus}" if average.minus else average.defence,
            "attack": MEAN,
            "eps": "",
            "threat": "oblivious",
            "n": str(average.mean.n),
            "accuracy": f"{100 * average.mean.value:.2f}",
            "low": f"{100 * average.mean.low:.2f}",
            "high": f"{100 * average.mean.high:.2f}",
            "seconds": f"{average.seconds:.6f}",
        }
        for average in averages(store, found)
    ]


def _met(result: Result) -> tuple[str, float, int]:
    return result.attack, result.eps, result.wanted


def _within(found: Mean) -> Mean:
    """No share is below 0 or above 1, whatever the normal interval says."""
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def _shares(store: Store, cells: Sequence[Result]) -> dict[int, float]:
    """By sample the share of the cells in which it is classified right."""
    marks = ", ".join("?" * len(cells))
    rows = store.read(
        f"SELECT sample, avg(correct) FROM samples WHERE cell IN ({marks}) GROUP BY sample",
        *(result.cell for result in cells),
    )
    return dict(rows)
