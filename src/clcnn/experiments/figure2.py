"""Figure 2 in rows: accuracy of the toy before and after control, clean and under FGSM."""

from __future__ import annotations

import time
from collections.abc import Iterator

from torch import Tensor

from clcnn.evaluation.results import COLUMNS
from clcnn.experiments import toy as figure
from clcnn.statistics import wilson

__all__ = ["COLUMNS", "run"]

_QUICK = {"samples": 450, "iterations": 300, "epochs": 120}


def run(seed: int = 0, quick: bool = False) -> Iterator[dict[str, str]]:
    """Four rows; eps is in the units of the plane, not in 1/255."""
    made = figure.make(seed, **_QUICK) if quick else figure.make(seed)
    for attack, eps, x in (("none", 0.0, made.x), ("fgsm", made.eps, made.x_eps)):
        for defence, network in (("none", made.network), ("nonlinear", made.robust)):
            began = time.perf_counter()
            logits: Tensor = network(x)
            seconds = (time.perf_counter() - began) / len(x)
            share = figure.accuracy(logits, made.y)
            low, high = wilson(share, len(x))
            yield {
                "network": "toy",
                "defence": defence,
                "attack": attack,
                "eps": f"{eps:g}",
                "threat": "oblivious" if eps else "none",
                "n": str(len(x)),
                "accuracy": f"{100 * share:.2f}",
                "low": f"{100 * low:.2f}",
                "high": f"{100 * high:.2f}",
                "seconds": f"{seconds:.6f}",
            }
