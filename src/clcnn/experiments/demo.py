"""What control does, on the images that come with the package: one small table and its report."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from clcnn.evaluation.results import Result, warnings_of
from clcnn.evaluation.runner import run as run_plan
from clcnn.evaluation.store import Store
from clcnn.evaluation.watch import Silent, Watch
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments.run import QUICK, Request, plan_of

NAME = "demo"
DEFENCES = {"none": "uncontrolled", "reactive": "reactive", "pmp": "PMP", "feedback": "feedback"}
ATTACKS = {"none": "clean", "noise": "noise", "fgsm": "FGSM", "pgd": "PGD"}
THREATS = ("oblivious", "adaptive")


@dataclass(frozen=True)
class Demo:
    """All cells of the demonstration, and what the evaluation warned of."""

    found: tuple[Result, ...]
    warnings: tuple[str, ...]

    def lines(self) -> list[str]:
        """The table: a row for each perturbation and threat, a column for each defence."""
        defences = [name for name in DEFENCES if any(r.defence == name for r in self.found)]
        rows = [("", "threat", *(DEFENCES[name] for name in defences))]
        places = dict.fromkeys((r.attack, r.eps, r.threat) for r in self.found)
        for attack, eps, threat in sorted(places, key=_order):
            at = {
                r.defence: r
                for r in self.found
                if (r.attack, r.eps, r.threat) == (attack, eps, threat)
            }
            name = ATTACKS.get(attack, attack) + (f", eps {eps:g}/255" if eps else "")
            cells = (_cell(at[name]) if name in at else "" for name in defences)
            rows.append((name, "" if threat == "none" else threat, *cells))
        costs = (_cost(self.found, name) for name in defences)
        rows.append(("cost, plain forwards", "", *costs))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]


def run(
    store: Store,
    *,
    seed: int | None = None,
    most: int | None = None,
    workshop: Workshop | None = None,
    watch: Watch | None = None,
) -> Demo:
    """Measure what the store does not hold yet."""
    workshop, watch = workshop or Workshop(), watch or Silent()
    plan, _ = plan_of(NAME, Request(quick=True, seed=seed, most=most), workshop)
    # Its page shows what was asked for last, and nothing of earlier forms.
    plan = replace(plan, name=f"{NAME}{QUICK}")
    found = run_plan(plan, store, workshop=workshop, watch=watch)
    return Demo(tuple(found), tuple(map(str, warnings_of(found))))


def _order(place: tuple[str, float, str]) -> tuple[int, float, int]:
    attack, eps, threat = place
    return list(ATTACKS).index(attack), eps, THREATS.index(threat) if threat in THREATS else 0


def _cell(result: Result) -> str:
    return f"{100 * result.accuracy:.0f} % ({100 * result.low:.0f} to {100 * result.high:.0f})"


def _cost(found: Sequence[Result], defence: str) -> str:
    """The median over its cells, as in the report."""
    return f"{statistics.median(r.cost for r in found if r.defence == defence):.2f}"
