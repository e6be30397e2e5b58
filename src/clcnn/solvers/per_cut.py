"""Different settings at different cuts, out of solvers of one kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from clcnn.embeddings.base import Embedding
from clcnn.errors import SolveError
from clcnn.solvers.base import FeedbackSolver, Solver
from clcnn.solvers.loop import IterativeSolver, Memory
from clcnn.solvers.msa import MSA
from clcnn.solvers.pmp import PMP
from clcnn.solvers.problem import Policy, Problem

_LOOP = ("iterations", "tolerance", "start")


@dataclass(frozen=True)
class IterativePerCut(IterativeSolver):
    """u_t <- solvers[t].update(u_t, dJ/du_t): one loop, each cut with its own update."""

    solvers: tuple[IterativeSolver, ...] = ()

    def update(self, t: int, k: int, u: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The update of cut t's own solver."""
        return self.solvers[t].update(t, k, u, g, memory)


@dataclass(frozen=True)
class MSAPerCut(MSA):
    """v_t and its damping by solvers[t], the co-states held for all cuts at once."""

    solvers: tuple[MSA, ...] = ()

    def update(self, t: int, k: int, u: Tensor, g: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        """The inner step of cut t's own solver."""
        return self.solvers[t].update(t, k, u, g, memory)

    def damping_at(self, t: int) -> float:
        """The damping of cut t's own solver."""
        return self.solvers[t].damping


@dataclass(frozen=True)
class FeedbackPerCut(FeedbackSolver):
    """u_t = pi_t(x_t), each cut with its own policy."""

    solvers: tuple[FeedbackSolver, ...] = ()

    def policy(self, problem: Problem) -> Policy:
        """The policies of all cuts as one."""
        policies = [solver.policy(problem) for solver in self.solvers]
        return lambda t, x: policies[t](t, x)

    def check(self, cuts: Sequence[str], embeddings: Sequence[Embedding]) -> None:
        """Each cut's own solver looks at its own embedding."""
        for solver, cut, E in zip(self.solvers, cuts, embeddings, strict=True):
            solver.check([cut], [E])

    def remarks(self, cuts: Sequence[str], embeddings: Sequence[Embedding]) -> list[str]:
        """Those of each cut's own solver."""
        places = zip(self.solvers, cuts, embeddings, strict=True)
        return [said for solver, cut, E in places for said in solver.remarks([cut], [E])]


def combine(solvers: Mapping[str, Solver], cuts: Sequence[str]) -> Solver:
    """One solver out of a dict with one for each cut."""
    if set(solvers) != set(cuts):
        raise SolveError(
            f"found solvers for {', '.join(solvers)}; expected one for each cut: {', '.join(cuts)}."
        )
    ordered = [solvers[name] for name in cuts]
    if len(set(ordered)) == 1:
        return ordered[0]
    pmps = tuple(solver for solver in ordered if isinstance(solver, PMP))
    if len(pmps) == len(ordered):
        return IterativePerCut(**_shared(pmps, _LOOP), solvers=pmps)
    msas = tuple(solver for solver in ordered if isinstance(solver, MSA))
    if len(msas) == len(ordered):
        return MSAPerCut(**_shared(msas, (*_LOOP, "inner")), solvers=msas)
    policies = tuple(solver for solver in ordered if isinstance(solver, FeedbackSolver))
    if len(policies) == len(ordered):
        return FeedbackPerCut(solvers=policies)
    kinds = ", ".join(sorted({type(solver).__name__ for solver in ordered}))
    raise SolveError(
        f"found solvers of kinds {kinds} at different cuts; expected one kind at all (PMP, MSA, or "
        "the one-pass ones: Greedy, Reactive, Feedback), as one loop runs them. Pass one solver "
        "for all cuts instead."
    )


def _shared(solvers: Sequence[IterativeSolver], names: Sequence[str]) -> dict[str, Any]:
    """The settings that one loop has only once; they must agree."""
    for name in names:
        if any(getattr(solver, name) != getattr(solvers[0], name) for solver in solvers):
            raise SolveError(
                f"the cuts' solvers differ in {name}; expected the same {name} at all cuts, as "
                "one loop runs them. lr and method may differ."
            )
    return {name: getattr(solvers[0], name) for name in names}
