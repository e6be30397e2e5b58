"""How well `robust.detect` tells perturbed images from clean ones, for each attack.

AUROC = P(score of a perturbed image > score of a clean one), and the share of images flagged: of
clean ones the false alarms, of perturbed ones the power. An image counts as perturbed if the attack
changed it: those that the network gets wrong anyway are left as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from clcnn.control import ControlledModule
from clcnn.evaluation.bench import Bench, Cell
from clcnn.evaluation.plan import Plan
from clcnn.evaluation.store import Store
from clcnn.evaluation.watch import Watch
from clcnn.evaluation.workshop import Workshop
from clcnn.statistics import auroc, wilson

COLUMNS = (
    "network",
    "defence",
    "attack",
    "eps",
    "threat",
    "n",  # images that the attack changed; all of them where there is none
    "auroc",
    "auroc_low",
    "auroc_high",
    "flagged",  # per cent
    "low",
    "high",
    "alpha",
)

_ALPHA = 0.05


def run(plan: Plan, store: Store, workshop: Workshop, watch: Watch) -> Iterator[dict[str, str]]:
    """The rows of every cell of the plan; attacks are kept beside the store."""
    bench = Bench(plan, workshop, store.folder, watch)
    cells = bench.cells()
    for place, cell in enumerate(cells):
        watch.cell(place, len(cells), cell.entry)
        yield _row(bench, cell)


def _row(bench: Bench, cell: Cell) -> dict[str, str]:
    entry = cell.entry
    robust = bench.defences.ready(bench.plan, entry.network, entry.defence).robust
    assert robust is not None
    if robust.alpha is None:
        _calibrate(bench, entry.network, robust)
    clean, perturbed, flags, moved = [], [], [], []
    for number in range(len(cell.key.counts)):
        chunk, _, examples = bench.examples(cell, number)
        changed = (examples.x != chunk.x).flatten(1).any(1)
        before, after = robust.detect(chunk.x), robust.detect(examples.x)
        clean.append(before.score)
        perturbed.append(after.score[changed])
        moved.append(changed)
        flags.append(after.flagged[changed] if entry.attack != "none" else before.flagged)
    scores = torch.cat(clean), torch.cat(perturbed), torch.cat(moved)
    return _values(cell, *scores, torch.cat(flags), robust.alpha)


def _calibrate(bench: Bench, network: str, robust: ControlledModule) -> None:
    """On all held-out images: no network, fit or attack here has seen them."""
    plan, workshop = bench.plan, bench.workshop
    count = workshop.available(plan, network, "heldout")
    chosen = workshop.images(plan, network, "heldout", count, plan.seed)
    x, _ = chosen.pictures.take(chosen.places)
    robust.calibrate(list(torch.split(x.to(workshop.device), plan.chunk)), alpha=_ALPHA)


def _values(
    cell: Cell,
    clean: Tensor,
    perturbed: Tensor,
    moved: Tensor,
    flags: Tensor,
    alpha: float | None,
) -> dict[str, str]:
    entry, n = cell.entry, len(flags)
    areas = ["", "", ""]
    if len(perturbed) > 1:
        area = auroc(clean.tolist(), perturbed.tolist(), moved.nonzero().flatten().tolist())
        areas = [f"{v:.4f}" for v in (area.value, area.low, area.high)]
    share = float(flags.double().mean()) if n else 0.0
    shares = [f"{100 * v:.2f}" for v in (share, *wilson(share, n))] if n else ["", "", ""]
    facts = (entry.network, entry.defence, entry.attack, f"{entry.eps:g}", entry.threat, str(n))
    return dict(zip(COLUMNS, (*facts, *areas, *shares, f"{alpha:g}"), strict=True))
