"""What control costs, in multiples of one plain forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from clcnn.attacks import PGD
from clcnn.benchmarks.literal import Literal
from clcnn.benchmarks.timing import Candidate, compare, exponent
from clcnn.control import ControlledModule
from clcnn.embeddings import Embedding, LinearEmbedding, OrthogonalEmbedding
from clcnn.solvers import MSA, PMP, Greedy, Reactive
from clcnn.states import Batches, collect
from clcnn.statistics import paired, wilson

Say = Callable[[str], None]
Row = dict[str, Any]

PLAIN = "plain forward"
EPSILON = 2 / 255
_BATCHES = 8  # in which samples may leave


@dataclass(frozen=True)
class Bench:
    """What is measured, and on what.

    ``fit`` are clean images for the embeddings, ``heldout`` others to measure what these keep,
    ``x`` and ``y`` images and labels for timing and accuracy.
    """

    model: nn.Module
    cuts: tuple[str, ...]
    fit: Tensor
    heldout: Tensor
    x: Tensor
    y: Tensor
    energy: float = 0.99
    iterations: int = 5
    lr: float = 0.005
    batch: int = 64
    rounds: int = 7
    seed: int = 0

    @property
    def solver(self) -> PMP:
        """The paper's solver with the iterations measured."""
        return PMP(iterations=self.iterations, lr=self.lr, tolerance=0.0)

    @property
    def images(self) -> Tensor:
        """One batch."""
        return self.x[: self.batch]

    def controlled(self, embedding: Embedding | dict[str, Embedding]) -> ControlledModule:
        """The network under control with an embedding, fitted."""
        robust = ControlledModule(
            self.model, self.cuts, embedding=embedding, solver=self.solver, weights="sum"
        )
        return robust.fit(self.fit)

    def compare(self, candidates: dict[str, Candidate]) -> list[Row]:
        """Times in multiples of the plain forward pass of one batch."""
        on_gpu = self.x.device.type == "cuda"
        return [row.to_dict() for row in compare(candidates, PLAIN, self.rounds, on_gpu)]

    def plain(self, x: Tensor | None = None) -> Candidate:
        """The network's own forward pass, without gradients."""
        images = self.images if x is None else x

        def forward() -> None:
            with torch.no_grad():
                self.model(images)

        return forward


def _each(model: nn.Module, batches: Sequence[Tensor]) -> Candidate:
    return lambda: [model(x) for x in batches]


def call(robust: ControlledModule, x: Tensor) -> Candidate:
    """The controlled network on x."""
    return lambda: robust(x)


def costs(bench: Bench, robust: ControlledModule, *, literal: bool) -> list[Row]:
    """Every solver, the faster stand-ins and Algorithm 1 to the letter, in one run."""
    x = bench.images

    def backward() -> None:
        leaf = x.clone().requires_grad_()
        torch.autograd.grad(bench.model(leaf).sum(), leaf)

    k = bench.iterations
    greedy = PMP(iterations=k, lr=bench.lr, tolerance=0.0, start="greedy")
    candidates: dict[str, Candidate] = {
        PLAIN: bench.plain(),
        "forward and backward to the input": backward,
        f"PMP, {k} iterations": call(robust, x),
        f"PMP, {k} iterations, accelerated": call(robust.accelerate(), x),
        f"PMP, {k} iterations, batch norms folded": call(robust.accelerate(channels_last=False), x),
        f"PMP, {k} iterations, channels last": call(robust.accelerate(fold=False), x),
        f"PMP, {k} iterations, from the greedy control": call(robust.configure(solver=greedy), x),
        f"MSA, {k} iterations": call(
            robust.configure(solver=MSA(iterations=k, lr=bench.lr, tolerance=0.0)), x
        ),
        "greedy": call(robust.configure(solver=Greedy()), x),
    }
    if bench.cuts[0] == "input":
        candidates["reactive"] = call(robust.configure(solver=Reactive()), x)
    if literal:
        reference = Literal(bench.model, bench.cuts, linear_of(robust))
        candidates[f"Algorithm 1 to the letter, {k} iterations"] = lambda: reference.solve(
            x, k, bench.lr
        )
    return bench.compare(candidates)


def costs_of(bench: Bench, defences: dict[str, ControlledModule]) -> list[Row]:
    """PMP and greedy control with several embeddings, in one run."""
    x, k = bench.images, bench.iterations
    candidates: dict[str, Candidate] = {PLAIN: bench.plain()}
    for name, robust in defences.items():
        candidates[f"PMP, {k} iterations, {name}"] = call(robust, x)
        if any(E.in_bfloat16() is not E for E in robust.objective.embeddings):
            quick = robust.accelerate(bfloat16=True)
            candidates[f"PMP, {k} iterations, {name}, in bfloat16"] = call(quick, x)
        candidates[f"greedy, {name}"] = call(robust.configure(solver=Greedy()), x)
    return bench.compare(candidates)


def linear_of(robust: ControlledModule) -> list[OrthogonalEmbedding]:
    """The embeddings, which must all be linear."""
    found = [E for E in robust.embeddings if isinstance(E, OrthogonalEmbedding)]
    assert len(found) == len(robust.embeddings)
    return found


def embeddings_table(robust: ControlledModule, heldout: Sequence[Tensor]) -> list[Row]:
    """Rank, cost and energy kept of every cut's embedding."""
    return [
        {
            "cut": cut,
            "kind": type(E).__name__,
            "d": len(E.mean),
            "rank": E.rank_,
            "multiply_adds": E.multiply_adds_,
            "kept_fitted": E.explained_,
            "kept_heldout": E.kept(x),
        }
        for cut, E, x in zip(robust.cuts, linear_of(robust), heldout, strict=True)
    ]


def states_of(robust: ControlledModule, x: Tensor) -> list[Tensor]:
    """The states of x at every cut."""
    assert robust.dynamics is not None
    batches = Batches(x)
    kept = collect(robust.dynamics, batches, device=None, correct_only=False, memory=2**34)
    return [torch.cat(list(states)) for states in kept]


def leaving(bench: Bench, robust: ControlledModule) -> dict[str, Any]:
    """Clean and attacked batches at one tolerance: the 95 % quantile of J on held-out images.

    Several batches, as few samples of one go beyond that quantile.
    """
    early = robust.leaving_early(bench.heldout)
    n = min(len(bench.x), _BATCHES * bench.batch)
    images = {"clean batches": bench.x[:n]}
    for eps in (EPSILON, 4 * EPSILON):
        name = f"PGD, epsilon {eps * 255:.0f}/255"
        images[name] = PGD(eps=eps)(bench.model, bench.x[:n], bench.y[:n])
    batches = {name: torch.split(x, bench.batch) for name, x in images.items()}
    candidates = {name: _each(early, parts) for name, parts in batches.items()}
    with torch.no_grad():
        plain = _each(bench.model, batches["clean batches"])
        rows = bench.compare({PLAIN: plain, **candidates})
    for row in rows[1:]:
        steps = [early.solve(part).steps for part in batches[row["name"]]]
        row["mean_steps"] = float(torch.cat(steps).double().mean())
    solver = early.solver
    assert isinstance(solver, PMP)
    return {"tolerance": solver.tolerance, "images": n, "times": rows}


def growth(bench: Bench, robust: ControlledModule) -> list[Row]:
    """How the cost grows with the batch, iterations, cuts, rank and width d of a state.

    ``exponent`` b is the least-squares slope of log cost against log size: above 1 the cost grows
    faster than linearly.
    """
    x, found = bench.images, []

    def series(what: str, sizes: Sequence[int], make: Callable[[int], Candidate]) -> None:
        if len(sizes) < 2:  # there is no growth to see
            return
        runs = {str(size): make(size) for size in sizes}
        rows = bench.compare({PLAIN: bench.plain(), **runs})[1:]
        slope = exponent(sizes, [row["ratio"] for row in rows])
        points = [row | {"size": size} for size, row in zip(sizes, rows, strict=True)]
        found.append({"with": what, "exponent": slope, "points": points})

    batches = [n for n in (8, 16, 32, 64, 128, 256) if n <= min(len(bench.x), 2 * bench.batch)]
    series("batch", batches, lambda n: call(robust, bench.x[:n]))
    series("iterations", (2, 5, 10, 20), lambda k: call(_iterating(robust, bench, k), x))
    some = {n: with_cuts(bench, robust, n) for n in range(2, len(bench.cuts) + 1)}
    series("cuts", list(some), lambda n: call(some[n], x))
    widest = max(linear_of(robust), key=lambda E: len(E.mean))
    generator = torch.Generator().manual_seed(bench.seed)
    ranks = [r for r in (16, 64, 256, 1024) if r < len(widest.mean) // 2]
    series("rank", ranks, lambda r: _scoring(*_random_basis(len(widest.mean), r, x, generator)))
    widths = [len(widest.mean) // f for f in (16, 8, 4, 2, 1)]
    series("d", widths, lambda d: _scoring(*_random_basis(d, ranks[0], x, generator)))
    return found


def _iterating(robust: ControlledModule, bench: Bench, k: int) -> ControlledModule:
    return robust.configure(solver=replace(bench.solver, iterations=k))


def with_cuts(bench: Bench, robust: ControlledModule, n: int) -> ControlledModule:
    """The same embeddings at n >= 2 of the cuts, the first and the last always among them.

    So every iteration runs the same part of the network, and only the number of cuts differs.
    """
    last = len(bench.cuts) - 1
    chosen = [*range(n - 1), last]
    some = ControlledModule(bench.model, [bench.cuts[t] for t in chosen], solver=bench.solver)
    dynamics = some.dynamics
    assert dynamics is not None
    dynamics.inspect(bench.images[:2])
    embeddings = [linear_of(robust)[t] for t in chosen]
    some.adopt(dynamics, embeddings, tuple(robust.shapes[t] for t in chosen), bench.images[:0])
    return some


def _random_basis(
    d: int, r: int, like: Tensor, generator: torch.Generator
) -> tuple[LinearEmbedding, Tensor]:
    """An embedding of rank r in dimension d, and a batch of states."""
    states = torch.randn(2 * r, d, generator=generator)
    embedding = LinearEmbedding(rank=r).fit(states).to(like)
    return embedding, torch.randn(len(like), d, generator=generator).to(like)


def _scoring(embedding: LinearEmbedding, states: Tensor) -> Candidate:
    """||E(z) - z||^2 and its gradient, as an iteration asks for them."""

    def score() -> None:
        leaf = states.detach().requires_grad_()
        torch.autograd.grad(embedding.energy(leaf).sum(), leaf)

    return score


def accuracies(
    bench: Bench, defences: dict[str, ControlledModule], reference: str, *, say: Say
) -> list[Row]:
    """Clean and PGD (epsilon 2/255, oblivious) accuracy, and paired differences to a reference."""
    rows = []
    attack = PGD(eps=EPSILON)
    parts = list(
        zip(torch.split(bench.x, bench.batch), torch.split(bench.y, bench.batch), strict=True)
    )
    inputs = {
        "none": [x for x, _ in parts],
        "PGD, 20 steps, epsilon 2/255": [attack(bench.model, x, y) for x, y in parts],
    }
    for name, batches in inputs.items():
        right = {"no control": _right(bench.model, batches, bench.y)}
        for defence, robust in defences.items():
            say(f"accuracy of {defence} against {name}")
            right[defence] = _right(robust, batches, bench.y)
        for defence, hits in right.items():
            share = float(hits.double().mean())
            low, high = wilson(share, len(hits))
            row = {"attack": name, "threat": "oblivious", "defence": defence, "n": len(hits)}
            row |= {"accuracy": share, "low": low, "high": high}
            if defence != reference and defence in defences:
                other = right[reference]
                gap = paired(len(hits), int((hits & ~other).sum()), int((~hits & other).sum()))
                row |= {"difference": gap.difference, "difference_low": gap.low}
                row |= {"difference_high": gap.high, "to": reference}
            rows.append(row)
    return rows


def _right(model: nn.Module, batches: Sequence[Tensor], y: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([model(x).argmax(1) for x in batches]) == y
