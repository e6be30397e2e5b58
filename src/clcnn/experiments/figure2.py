"""Figure 2 in rows: accuracy of the toy before and after control, and the states it draws."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from clcnn.evaluation.results import COLUMNS
from clcnn.experiments import toy as figure
from clcnn.statistics import wilson

__all__ = ["COLUMNS", "STATES", "run", "states"]

STATES = ("t", "state", "label", "right", "x", "y")
"""Columns of the points: whose class is ``label``, and whether the network gets it right."""

_QUICK = {"samples": 450, "iterations": 300, "epochs": 120}


def make(seed: int = 0, quick: bool = False) -> figure.Toy:
    """The toy itself."""
    return figure.make(seed, **_QUICK) if quick else figure.make(seed)


@torch.no_grad()
def states(made: figure.Toy) -> Iterator[dict[str, str]]:
    """x_t, x_eps,t and the controlled x_eps,t + u_t of every test sample, at t = 0 and 1."""
    solution, hidden = figure.solve(made), made.network.residual
    first = made.x_eps + solution.u[0]
    trajectories = {
        "clean": (made.x, hidden(made.x), made.network(made.x)),
        "perturbed": (made.x_eps, hidden(made.x_eps), made.network(made.x_eps)),
        "controlled": (first, hidden(first) + solution.u[1], solution.logits),
    }
    for name, (*points, logits) in trajectories.items():
        right = logits.argmax(1) == made.y
        for t, plane in enumerate(points):
            for (x, y), label, is_right in zip(plane, made.y, right, strict=True):
                yield {
                    "t": str(t),
                    "state": name,
                    "label": str(int(label)),
                    "right": str(int(is_right)),
                    "x": f"{float(x):.4f}",
                    "y": f"{float(y):.4f}",
                }


def run(made: figure.Toy) -> Iterator[dict[str, str]]:
    """Four rows; eps is in the units of the plane, not in 1/255."""
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
