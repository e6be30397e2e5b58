"""The defences of an experiment, with their settings, as its manifest has them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clcnn.evaluation.kinds import EMBEDDINGS, SOLVERS
from clcnn.evaluation.plan import NONE
from clcnn.report import words
from clcnn.report.attackers import settings
from clcnn.report.blocks import Block, Bullets, Details
from clcnn.report.gather import Experiment

_SILENT = ("seed", "memory", "progress")
"""Settings that change how a result is reached, and not which."""

_DECIDES = ("solver", "embedding", "weights", "centring", "fit")
"""What makes another defence of one that was chosen."""

_SAID = ("iterations", "lr")
"""Settings that are said though they may be the solver's own."""


def defender_blocks(experiment: Experiment) -> list[Block]:
    """One line a defence and its settings, with the networks that it has them on."""
    known: Mapping[str, Any] = experiment.described.get("defences", {})
    lines: dict[tuple[str, str], list[str]] = {}
    for network, name in dict.fromkeys((r.network, r.defence) for r in experiment.results):
        if name != NONE and network in known.get(name, {}):
            key = (name, "; ".join(_told(known[name][network], _base(known, name, network))))
            lines.setdefault(key, []).append(experiment.weights.get(network, network))
    several = len({r.network for r in experiment.results}) > 1
    items = [
        f"{words.defence(name)}{f' ({words.listed(networks)})' if several else ''}: {told}"
        for (name, told), networks in lines.items()
    ]
    return [Details("The defences, with their settings", [Bullets(items)])] if items else []


def _base(known: Mapping[str, Any], name: str, network: str) -> str | None:
    """The defence that a choice was made for, where ``name`` took it over and changed something."""
    defence = known[name][network]
    stem = Path((defence.get("chosen") or {}).get("file", "")).stem
    for other in known:
        if other != name and stem.endswith(f"-{other}") and network in known[other]:
            made = known[other][network]
            return other if any(made.get(k) != defence.get(k) for k in _DECIDES) else None
    return None


def _told(defence: Mapping[str, Any], base: str | None) -> list[str]:
    """What a defence is, in a few words; what is not said is as the library has it."""
    parts = [_kind(defence["solver"], SOLVERS)]
    if "shipped" in defence:
        parts.append(f"with what is shipped for the network as preset {defence['shipped']}")
    else:
        parts.append(f"embedding {_kind(defence['embedding'], EMBEDDINGS)}")
        parts.append(f"at {words.listed(defence['cuts'])}{_last(defence)}")
        if images := defence.get("fit", {}).get("images"):
            right = " that the network gets right" if defence.get("correct_only") else ""
            parts.append(f"fitted on {words.count(images)} training images{right}")
    if chosen := defence.get("chosen"):
        where = f"chosen on {words.images(chosen['n'], chosen['split'])}"
        taken = f"otherwise as {words.defence(base)}, {where}" if base is not None else where
        parts.append(taken)
    if defence.get("weights", "sum") != "sum":
        parts.append("its loss averages over features")
    if defence.get("centring", "fitted") != "fitted":
        parts.append("centred by the test batch")
    if defence.get("regularization"):
        parts.append(f"regularization {defence['regularization']:g}")
    return parts


def _last(defence: Mapping[str, Any]) -> str:
    """What an auto-encoder's own setting puts in its place at the last of several cuts."""
    is_linear = defence["embedding"].get("linear_last") and len(defence["cuts"]) > 1
    return f" (at {defence['cuts'][-1]} principal components)" if is_linear else ""


def _kind(made: Mapping[str, Any], classes: Mapping[str, type]) -> str:
    """A solver or an embedding, with the settings that are not its own defaults."""
    kind = str(made["kind"])
    usual = inspect.signature(classes[kind]).parameters if kind in classes else {}
    told = {
        key: value
        for key, value in made.items()
        if key != "kind"
        and key not in _SILENT
        and (key in _SAID or key not in usual or usual[key].default != value)
    }
    return ", ".join([kind, *settings(told)])
