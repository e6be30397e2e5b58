"""||r_t(x_eps,t) - r_t(x_t)||, r_t(x) = E_t(x) - x: what of a manifold attack leaves the manifold.

For a linear embedding r_t is minus the projection onto the orthogonal complement, so this is the
paper's || P_t x_eps,t - P_t x_t || (P_t onto the complement), at every layer of the uncontrolled
network. The paper does not say which norm its figures have: they are printed beside four readings.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.control import ControlledModule
from clcnn.embeddings.base import Embedding
from clcnn.evaluation.bench import Bench, Cell
from clcnn.evaluation.plan import Plan
from clcnn.evaluation.results import COLUMNS as CELL_COLUMNS
from clcnn.evaluation.results import Result, pick
from clcnn.evaluation.runner import run as run_plan
from clcnn.evaluation.store import Store
from clcnn.evaluation.watch import Watch
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments.paper import MANIFOLD_GROWTH
from clcnn.statistics import Z_95

COLUMNS = (
    *CELL_COLUMNS,  # the accuracy is that of the controlled network on the same images
    "layer",
    "cut",
    "dimension",
    "moved",  # images that the attack changed: the others were wrong already; means are over these
    "norm",  # l_2 norm of the off-manifold part of the difference, mean over images
    "norm_low",
    "norm_high",  # 95 % interval of that mean
    "root_mean_square",  # norm / sqrt(dimension)
    "mean_square",  # norm^2 / dimension
    "share",  # norm / l_2 norm of the whole difference
    "paper",
)


@dataclass(frozen=True)
class Growth:
    """The off-manifold part of the difference at every layer, and the whole, (batch, T)."""

    off: Tensor
    whole: Tensor


@torch.no_grad()
def growth(robust: ControlledModule, x: Tensor, x_eps: Tensor) -> Growth:
    """||r_t(x_eps,t) - r_t(x_t)|| and ||x_eps,t - x_t|| for t = 0 ... T-1, without control."""
    off, whole = [], []
    embeddings = [E for E in robust.embeddings if isinstance(E, Embedding)]
    for E, clean, moved in zip(embeddings, states(robust, x), states(robust, x_eps), strict=True):
        off.append((E.residual(moved) - E.residual(clean)).flatten(1).norm(dim=1))
        whole.append((moved - clean).flatten(1).norm(dim=1))
    return Growth(torch.stack(off, 1), torch.stack(whole, 1))


@torch.no_grad()
def states(robust: ControlledModule, x: Tensor) -> list[Tensor]:
    """x_0, ..., x_{T-1} of the uncontrolled network."""
    assert robust.dynamics is not None
    seen: list[Tensor] = []

    def note(t: int, state: Tensor) -> Tensor:
        seen.append(state.clone())
        return state

    robust.dynamics.rollout(x, note)  # of the network itself: a faster copy may round its states
    return seen


def run(plan: Plan, store: Store, workshop: Workshop, watch: Watch) -> Iterator[dict[str, str]]:
    """The rows of every cell of the plan; attacks are kept beside the store."""
    found = run_plan(plan, store, workshop=workshop, watch=watch)
    bench = Bench(plan, workshop, store.folder, watch)
    cells = bench.cells()
    watch.say(
        "what is off the manifold is read off the attacked images: they are made again, and the "
        "embeddings fitted, unless files beside the store have them"
    )
    for place, cell in enumerate(cells):
        watch.cell(place, len(cells), cell.entry)
        yield from _rows(bench, cell, pick(found, cell.entry))


def _rows(bench: Bench, cell: Cell, found: Result) -> Iterable[dict[str, str]]:
    entry, parts = cell.entry, []
    robust = bench.defences.ready(bench.plan, entry.network, entry.defence).robust
    assert robust is not None
    for number in range(len(cell.key.counts)):
        chunk, _, examples = bench.examples(cell, number)
        parts.append(growth(robust, chunk.x, examples.x))
    off = torch.cat([part.off for part in parts]).double()
    whole = torch.cat([part.whole for part in parts]).double()
    moved = whole[:, 0] > 0
    off, whole, n = off[moved], whole[moved], int(moved.sum())
    for t, (cut, shape) in enumerate(zip(robust.cuts, robust.shapes, strict=True)):
        d, norm = math.prod(shape), off[:, t]
        mean = float(norm.mean())
        half = Z_95 * float(norm.std()) / math.sqrt(n) if n > 1 else math.nan
        values = {
            **found.row(),
            "layer": t,
            "cut": cut,
            "dimension": d,
            "moved": n,
            "norm": mean,
            "norm_low": mean - half,
            "norm_high": mean + half,
            "root_mean_square": mean / math.sqrt(d),
            "mean_square": float(norm.square().mean()) / d,
            "share": float((norm / whole[:, t].clamp_min(1e-12)).mean()),
            "paper": MANIFOLD_GROWTH[t] if t < len(MANIFOLD_GROWTH) else "",
        }
        yield {k: _written(v) for k, v in values.items()}


def _written(value: object) -> str:
    """A value in a file; what no image gives is an empty place."""
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return str(value)
