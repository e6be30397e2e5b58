"""Grids of settings, what they achieve, and the choice among them as a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, sqrt
from pathlib import Path
from typing import Any, Self

from clcnn.data.files import write_text
from clcnn.evaluation.defence import CHOICE, Defence, read_choice
from clcnn.evaluation.kinds import Kind
from clcnn.evaluation.plan import NONE, Threat
from clcnn.evaluation.tables import PlanError, read_json

ITERATIONS = (5, 10, 20, 30, 50)
"""The paper's."""

RULES = ("rank", "energy", "singular")
"""The settings of a linear embedding of which there is one."""

LEARNING_RATES = (0.001, 0.002, 0.005, 0.01, 0.02)
ENERGIES = (0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Grid:
    """All combinations of these are tried, and judged under clean, FGSM and PGD images.

    ``rule`` is the setting of the embedding that ``energy`` gives: "energy" over eigenvalues,
    "singular" over singular values as in the authors' code; without any ``energy`` the embedding
    stays as it is. ``eps`` is in 1/255; ``most_lost`` is the share of clean accuracy that may be
    lost. Unless ``whole``, combinations that lose more on clean images, which are never chosen, do
    not meet the perturbed ones.
    """

    iterations: tuple[int, ...] = ITERATIONS
    lr: tuple[float, ...] = LEARNING_RATES
    energy: tuple[float, ...] = ENERGIES
    rule: str = "energy"
    eps: tuple[float, ...] = (2.0, 4.0, 8.0)
    most_lost: float = 0.04
    whole: bool = True

    def __post_init__(self) -> None:
        for name in ("iterations", "lr", "eps"):
            values = getattr(self, name)
            if not values or not all(0 < value < inf for value in values):
                raise PlanError(f"found {name} = {values}; expected finite numbers above 0.")
        if any(not 0 < energy <= 1 for energy in self.energy):
            raise PlanError(f"found energy = {self.energy}; expected shares in (0, 1].")
        if self.rule not in ("energy", "singular"):
            raise PlanError(f"found rule = {self.rule!r}; expected 'energy' or 'singular'.")

    def energies(self) -> tuple[float | None, ...]:
        """The energies to try; None where the embedding stays as it is."""
        return self.energy or (None,)

    def conditions(self) -> list[tuple[str, float, Threat]]:
        """The perturbations that count, clean images first."""
        attacked: list[tuple[str, float, Threat]] = [
            (attack, eps, "oblivious") for attack in ("fgsm", "pgd") for eps in self.eps
        ]
        return [(NONE, 0.0, "none"), *attacked]


@dataclass(frozen=True)
class Point:
    """One combination: its accuracy under each condition ("none", "fgsm 2" ...), and their mean.

    ``objective`` is None where only clean images were measured, as they rule the combination out.
    """

    iterations: int
    lr: float
    energy: float | None
    accuracies: Mapping[str, float]
    objective: float | None
    lost: float
    feasible: bool

    @classmethod
    def of(
        cls,
        iterations: int,
        lr: float,
        energy: float | None,
        accuracies: Mapping[str, float],
        plain: Mapping[str, float],
        most_lost: float,
    ) -> Point:
        """The combination, judged beside the uncontrolled network's accuracies ``plain``."""
        lost = plain[NONE] - accuracies[NONE]
        mean = sum(accuracies.values()) / len(accuracies)
        objective = mean if accuracies.keys() == plain.keys() else None
        # Shares of n: a rounding must not turn 4 points of 100 into more than 4.
        return cls(iterations, lr, energy, accuracies, objective, lost, lost <= most_lost + 1e-9)

    @property
    def clean(self) -> float:
        """Accuracy on clean images."""
        return self.accuracies[NONE]

    @property
    def goal(self) -> float:
        """What is compared: the objective, and 0 where there is none."""
        return 0.0 if self.objective is None else self.objective

    def standard_error(self, n: int) -> float:
        """sum_i sqrt(p_i (1 - p_i) / n) / m over the m accuracies p_i, an upper limit.

        It is reached if all perturbations of an image stand or fall together.
        """
        errors = [sqrt(max(0.0, p * (1 - p)) / n) for p in self.accuracies.values()]
        return sum(errors) / len(errors)


@dataclass(frozen=True)
class Confirmation:
    """How a combination did on more clean images than the grid had."""

    iterations: int
    lr: float
    energy: float | None
    n: int
    plain: float  # accuracy without control, on the same images
    clean: float
    kept: bool

    @property
    def lost(self) -> float:
        """Accuracy that control costs."""
        return self.plain - self.clean


@dataclass(frozen=True)
class Choice:
    """The best point of a grid with the whole grid, and the defence that it makes.

    ``confirmed`` lists what was tried on more clean images, in order; the last is the choice unless
    all failed.
    """

    network: str
    fingerprint: str
    data: str
    split: str
    n: int
    chosen: Point
    points: tuple[Point, ...]
    plain: Mapping[str, float]
    grid: Grid
    defence: Defence
    manifest: Mapping[str, Any]
    confirmed: tuple[Confirmation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; a plan's ``tuned`` reads the file that holds them."""
        return {
            "kind": CHOICE,
            "network": self.network,
            "fingerprint": self.fingerprint,
            "data": self.data,
            "split": self.split,
            "n": self.n,
            "feasible": self.chosen.feasible,
            "chosen": asdict(self.chosen),
            "plain": dict(self.plain),
            "defence": self.defence.settings(),
            "grid": asdict(self.grid),
            "points": [asdict(point) for point in self.points],
            "confirmed": [asdict(one) for one in self.confirmed],
            "manifest": dict(self.manifest),
        }

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """The choice that `write` stored."""
        defence, values = read_choice(Path(path)), read_json(Path(path))
        try:
            grid: dict[str, Any] = {
                k: tuple(v) if isinstance(v, list) else v for k, v in values["grid"].items()
            }
            return cls(
                **{k: values[k] for k in ("network", "fingerprint", "data", "split", "n")},
                chosen=Point(**values["chosen"]),
                points=tuple(Point(**point) for point in values["points"]),
                plain=values["plain"],
                grid=Grid(**grid),
                defence=replace(defence, chosen=None),
                manifest=values["manifest"],
                confirmed=tuple(Confirmation(**one) for one in values.get("confirmed", ())),
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise PlanError(
                f"{path} is no whole choice of settings ({type(error).__name__}: {error}); "
                "expected what `clcnn tune` wrote. Run it again."
            ) from error

    def write(self, path: str | Path) -> None:
        """Store the choice where a plan can find it."""
        write_text(Path(path), json.dumps(self.to_dict(), indent=1) + "\n")


def settings_at(
    defence: Defence, rule: str, energy: float | None, lr: float, iterations: int
) -> Defence:
    """A defence with one combination of the grid's settings."""
    embedding = dict(defence.embedding.settings)
    if energy is not None:
        embedding = {k: v for k, v in embedding.items() if k not in RULES} | {rule: energy}
    solver = {**defence.solver.settings, "lr": lr, "iterations": iterations}
    return replace(
        defence,
        embedding=Kind(defence.embedding.kind, embedding),
        solver=Kind(defence.solver.kind, solver),
        chosen=None,
    )


def named(energy: float | None, lr: float, iterations: int) -> str:
    """What a combination is called in a store."""
    words = [f"lr {lr:g}", f"{iterations} iterations"]
    return ", ".join(words if energy is None else [f"energy {energy:g}", *words])


def best(points: Sequence[Point], n: int) -> Point:
    """The cheapest of those that keep the clean accuracy and are near the highest objective.

    Near is within one standard error of it: what n images cannot tell apart is decided by cost,
    iterations first. Where none keeps the clean accuracy, the one that loses least.
    """
    allowed = [point for point in points if point.feasible]
    if not allowed:
        return min(points, key=lambda p: (p.lost, -p.goal, p.iterations, p.lr))
    highest = max(allowed, key=lambda p: p.goal)
    enough = highest.goal - highest.standard_error(n) - 1e-9
    near = [point for point in allowed if point.goal >= enough]
    return min(near, key=lambda p: (p.iterations, p.energy or 0.0, -round(p.goal, 9), p.lr))
