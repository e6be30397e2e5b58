"""The attacks of an experiment, with their settings, as its manifest has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clcnn.evaluation.plan import CORRUPTION, NONE, WORST
from clcnn.report import words
from clcnn.report.blocks import Block, Bullets, Details
from clcnn.report.gather import Experiment

_PLAIN = (("restarts", 1), ("tries", 1), ("confidence", 0.0))
"""Settings that go without saying, as those do that are not set."""

_STEPS = {"stealth": "epsilon / 10"}
"""Step sizes of attacks that have their own where none is given."""

_NAMES = {"ce": "cross-entropy", "straight_through": "straight through"}


def attacker_blocks(experiment: Experiment) -> list[Block]:
    """One line an attack; nothing where the store does not say."""
    known: Mapping[str, Any] = experiment.described.get("attacks", {})
    met = {r.attack for r in experiment.results if r.attack != NONE}
    members = {name for attack in met for name in known.get(attack, {}).get("of") or ()}
    lines = [
        _line(name, attack, is_alone=name in met)
        for name, attack in known.items()
        if name in met | members and attack.get("kind") != CORRUPTION
    ]
    return [Details("The attacks, with their settings", [Bullets(lines)])] if lines else []


def _line(name: str, attack: Mapping[str, Any], *, is_alone: bool) -> str:
    if attack.get("kind") == WORST:
        parts = words.listed(words.attack(part) for part in attack.get("of") or ())
        return (
            f"{words.attack(name)}: an image is withstood if it withstands all of {parts}, and "
            "what breaks it at a smaller epsilon of this table counts at a larger one"
        )
    said = [] if attack.get("kind") == name else [str(attack.get("kind"))]
    made = dict((attack.get("settings") or {}).get("settings") or {})
    if "step_size" in made and made["step_size"] is None:
        made["step_size"] = _STEPS.get(str(attack.get("kind")), "epsilon / 4")
    said += settings(made)
    if attack.get("embedding_of"):
        said.append(f"within the input embedding of {words.defence(attack['embedding_of'])}")
    if attack.get("through"):
        views = words.listed(_NAMES.get(view, view) for view in attack["through"])
        said.append(f"who knows of the control sees it {views}")
    if attack.get("norm", "linf") != "linf":
        said.append(f"norm {attack['norm']}")
    part = "" if is_alone else " (of the worst case)"
    return f"{words.attack(name)}{part}: {', '.join(said) or 'no settings'}"


def settings(values: Mapping[str, Any]) -> list[str]:
    """Settings in words, without those that are not set or go without saying."""
    return [
        key.replace("_", " ") if value is True else f"{key.replace('_', ' ')} {_value(value)}"
        for key, value in values.items()
        if value is not None and value is not False and (key, value) not in _PLAIN
    ]


def _value(value: object) -> str:
    return _NAMES.get(str(value), str(value)) if not isinstance(value, float) else f"{value:g}"
