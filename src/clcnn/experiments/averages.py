"""Means over all cells of a defence: an image that many cells share counts once, by its mean."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import NONE
from clcnn.evaluation.results import Result
from clcnn.evaluation.store import Store
from clcnn.statistics import Mean, mean

MEAN = "mean"
Row = dict[str, str]


def means(store: Store, found: Sequence[Result]) -> list[Row]:
    """Accuracy over all corruptions and severities, and its difference to no control, in per cent.

    m = sum_i a_i / n, a_i the share of all cells in which image i is classified right. The 95 %
    intervals are over images, as the same ones are in every cell; differences are image by image.
    The corruptions are not drawn from anything: they are these.
    """
    cells = [result for result in found if result.is_corruption]
    rows = []
    for network in dict.fromkeys(result.network for result in cells):
        here = [result for result in cells if result.network == network]
        defences = list(dict.fromkeys(result.defence for result in here))
        of = {d: [result for result in here if result.defence == d] for d in defences}
        shares = {d: _shares(store, of[d]) for d in defences}
        seconds = {d: sum(result.seconds for result in of[d]) / len(of[d]) for d in defences}
        plain = shares.get(NONE, {})
        for d in defences:
            rows.append(_row(network, d, mean(list(shares[d].values())), seconds[d]))
        for d in defences:
            if d == NONE or not plain:
                continue
            more = [share - plain[sample] for sample, share in shares[d].items()]
            rows.append(_row(network, f"{d}-{NONE}", mean(more), seconds[d] - seconds[NONE]))
    return rows


def _shares(store: Store, cells: Sequence[Result]) -> dict[int, float]:
    """By sample the share of the cells in which it is classified right."""
    marks = ", ".join("?" * len(cells))
    rows = store.read(
        f"SELECT sample, avg(correct) FROM samples WHERE cell IN ({marks}) GROUP BY sample",
        *(result.cell for result in cells),
    )
    return dict(rows)


def _row(network: str, defence: str, found: Mean, seconds: float) -> Row:
    return {
        "network": network,
        "defence": defence,
        "attack": MEAN,
        "eps": "",
        "threat": "oblivious",
        "n": str(found.n),
        "accuracy": f"{100 * found.value:.2f}",
        "low": f"{100 * found.low:.2f}",
        "high": f"{100 * found.high:.2f}",
        "seconds": f"{seconds:.6f}",
    }
