"""One attack on one network, with or without its control: what `clcnn attack` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from clcnn.attacks import Attack, AutoAttack, Noise, Square, WorstCase, examine
from clcnn.attacks.base import is_correct
from clcnn.control import ControlledModule
from clcnn.evaluation.threats import WRAPPERS, timed, ways_to_know
from clcnn.solvers.base import Solver
from clcnn.statistics import wilson

_EXAMINED = 64
"""Images on which the checks are made, so that they cost little beside an attack."""

_BATCH = 250


@dataclass(frozen=True)
class Once:
    """Rows with defence, threat, accuracy, low and high; warnings; the examples by threat.

    An adaptive example that is withstood is the last one that was tried.
    """

    rows: list[dict[str, Any]]
    warnings: list[str]
    examples: dict[str, Tensor]


def measure(
    model: nn.Module,
    attack: Attack,
    x: Tensor,
    y: Tensor,
    robust: ControlledModule | None = None,
) -> Once:
    """Accuracies with 95 % intervals, each with its threat."""
    signs = _signs("uncontrolled", model, attack, x, y)
    made = timed(lambda: (attack(model, x, y), None))
    findings = list(made.findings)
    examples = {"oblivious": made.x}
    rows = [
        _row("uncontrolled", "clean", _right(model, x, y)),
        _row("uncontrolled", "attacked", _right(model, made.x, y)),
    ]
    if robust is not None:
        rows.append(_row("controlled", "clean", _right(robust, x, y)))
        rows.append(_row("controlled", "oblivious", _right(robust, made.x, y)))
        signs += _signs("controlled", robust.configure(grad="straight_through"), attack, x, y)
        worst = WorstCase(_informed(attack, robust))

        def strongest() -> tuple[Tensor, list[str | None]]:
            # The attack on the uncontrolled network is known already, and no other was asked for.
            found = worst.first_success(robust, x, y, [made.x])
            return found.x_adv, list(found.by)

        adaptive = timed(strongest)
        findings += adaptive.findings
        examples["adaptive"] = adaptive.x
        withstood = [name is None for name in adaptive.broken_by or ()]
        rows.append(_row("controlled", "adaptive", withstood))
    sentences = [*signs, *(str(finding) for finding in dict.fromkeys(findings))]
    return Once(rows, sentences, examples)


def _informed(attack: Attack, robust: ControlledModule) -> list[Attack]:
    """The attack by someone who knows of the control, in each way to differentiate it."""
    solver = type(robust.solver) if isinstance(robust.solver, Solver) else Solver
    ways = ways_to_know(solver, black_box=isinstance(attack, (Noise, Square)))
    if isinstance(attack, AutoAttack):
        ways = ways[:1]  # it asks for more gradients than unrolling can pay for
    return [WRAPPERS[way](attack) for way in ways]


def _signs(defence: str, model: nn.Module, attack: Attack, x: Tensor, y: Tensor) -> list[str]:
    """What `examine` finds on some of the images."""
    # as far along each pixel as a perturbation of that length goes
    eps = attack.eps if attack.norm == "linf" else attack.eps / x[0].numel() ** 0.5
    found = examine(model, x[:_EXAMINED], y[:_EXAMINED], eps=eps)
    return [f"{defence}, {finding}" for finding in found]


def _right(model: nn.Module, x: Tensor, y: Tensor) -> list[bool]:
    pairs = zip(torch.split(x, _BATCH), torch.split(y, _BATCH), strict=True)
    return [
        right for images, labels in pairs for right in is_correct(model, images, labels).tolist()
    ]


def _row(defence: str, threat: str, right: Sequence[bool]) -> dict[str, Any]:
    accuracy = sum(right) / len(right)
    low, high = wilson(accuracy, len(right))
    return {"defence": defence, "threat": threat, "accuracy": accuracy, "low": low, "high": high}
