"""Which attacks a worst case tried on a cell, by which view of the control, in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clcnn.evaluation.kinds import ATTACKS

_CALLED = {
    "straight_through": "StraightThrough({})",
    "unrolled": "Unrolled({})",
    "exact": "ExactGradient({})",
    "itself": "{}",
}
"""What broke a sample is stored under the name of the attack's class, and of its view's."""


@dataclass(frozen=True)
class Attempt:
    """The attack at a place of the worst case's list by one view; its name in the store."""

    place: int
    view: str
    label: str


def attempts(attack: Mapping[str, Any]) -> list[Attempt]:
    """What the settings of a cell's attack say that was tried with knowledge of the control."""
    members: Sequence[Mapping[str, Any]] = attack.get("attacks", ())
    seen: Counter[str] = Counter()
    found = []
    for place, (member, views) in enumerate(zip(members, attack.get("through", ()), strict=False)):
        made = ATTACKS.get(member["kind"])
        for view in views:
            label = _CALLED.get(view, view).format(made.__name__ if made else member["kind"])
            seen[label] += 1
            number = f" {seen[label]}" if seen[label] > 1 else ""
            found.append(Attempt(place, view, f"{label}{number}"))
    return found
