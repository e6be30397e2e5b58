"""Hold a choice to its promise: so little clean accuracy lost on more images than the grid had.

A grid has few images, since each of its points meets all perturbations; the highest of many noisy
points is too high. Its candidates, each the choice (`best`) among the points that are left, are
measured on more clean images, until one keeps what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from clcnn.evaluation.choice import Choice, Confirmation, Point, best, named, settings_at
from clcnn.evaluation.defence import Defence
from clcnn.evaluation.hashing import digest
from clcnn.evaluation.plan import NONE, Entry, Network, Plan
from clcnn.evaluation.runner import run
from clcnn.evaluation.store import Store
from clcnn.evaluation.tables import PlanError
from clcnn.evaluation.watch import Silent, Watch
from clcnn.evaluation.workshop import Workshop

MARK = "clean"
"""The last but one word of the name of a plan that is made here."""


def confirm(
    choice: Choice,
    store: Store,
    *,
    n: int = 1000,
    defence: Defence | None = None,
    seed: int = 0,
    chunk: int = 250,
    sample: bool = False,
    workshop: Workshop | None = None,
    watch: Watch | None = None,
) -> Choice:
    """The first candidate with plain accuracy - accuracy <= ``grid.most_lost`` on n clean images.

    The next candidate is the choice (`best`) among the points that are left; a longer run of
    settings that failed is none. If all fail, the one that lost least on the n images is taken, and
    is called not feasible. ``defence`` is what the settings are put into, in place of the choice's
    own: one that is solved faster, say. Resumable as `run` is.
    """
    if n <= choice.n:
        raise PlanError(
            f"found {n} images to confirm a choice that was made on {choice.n}; expected more."
        )
    workshop, watch = workshop or Workshop(), watch or Silent()
    tried: list[Confirmation] = []
    left = [point for point in choice.points if point.feasible]
    while left:
        candidate = best(left, choice.n)
        points = [(p.energy, p.lr, p.iterations) for p in tried]
        points.append((candidate.energy, candidate.lr, candidate.iterations))
        plan = _plan(choice, defence or choice.defence, points, n, seed, chunk, sample)
        plain, *_, controlled = run(plan, store, workshop=workshop, watch=watch)
        lost = plain.accuracy - controlled.accuracy
        kept = lost <= choice.grid.most_lost + 1e-9
        settings = (candidate.iterations, candidate.lr, candidate.energy)
        tried.append(Confirmation(*settings, n, plain.accuracy, controlled.accuracy, kept))
        watch.say(
            f"{named(candidate.energy, candidate.lr, candidate.iterations)}: {100 * lost:.1f} "
            f"points of clean accuracy lost on {n} images"
            + ("" if kept else f", more than {100 * choice.grid.most_lost:g}")
        )
        if kept:
            break
        left = [point for point in left if not _is_longer(point, candidate)]
    return _decided(choice, tried)


def _is_longer(point: Point, failed: Point) -> bool:
    """Whether a point is what failed, or goes further in the same steps."""
    same = (point.lr, point.energy) == (failed.lr, failed.energy)
    return same and point.iterations >= failed.iterations


def _decided(choice: Choice, tried: Sequence[Confirmation]) -> Choice:
    """The choice after what was tried, the last of which was kept unless all failed."""
    if not tried:  # no point of the grid kept the clean accuracy: there is nothing to confirm
        return replace(choice, confirmed=())
    final = tried[-1] if tried[-1].kept else min(tried, key=lambda one: one.lost)
    at = (final.iterations, final.lr, final.energy)
    chosen = next(p for p in choice.points if (p.iterations, p.lr, p.energy) == at)
    return replace(
        choice,
        chosen=replace(chosen, feasible=final.kept),
        defence=settings_at(choice.defence, choice.grid.rule, final.energy, final.lr, at[0]),
        confirmed=tuple(tried),
    )


def _plan(
    choice: Choice,
    defence: Defence,
    points: Sequence[tuple[float | None, float, int]],
    n: int,
    seed: int,
    chunk: int,
    sample: bool,
) -> Plan:
    """Clean images for the network and for each of the points: energy, lr, iterations."""
    defences = {named(*point): settings_at(defence, choice.grid.rule, *point) for point in points}
    facts = [choice.fingerprint, choice.data, choice.split, n, seed, chunk, sample]
    mark = digest([*facts, choice.to_dict()["grid"], choice.defence.settings()["cuts"]])[:6]
    kind = defence.embedding.kind
    return Plan(
        name=f"tune {Path(choice.network).stem} {kind} {choice.split} {MARK} {mark}",
        networks={"network": Network(choice.network, choice.data)},
        defences=defences,
        attacks={},
        entries=tuple(Entry("network", name, NONE, 0.0, "none", n) for name in (NONE, *defences)),
        seed=seed,
        chunk=chunk,
        split=choice.split,
        sample=sample,
    )
