"""The choices of settings that a plan needs: how they are to be made, and whether they were."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clcnn.evaluation.choice import RULES, Grid
from clcnn.evaluation.defence import Defence, read_choice, read_defence
from clcnn.evaluation.plan import Network, Plan
from clcnn.evaluation.tables import Table, read_json
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments.blueprints import blueprint, choice_file, present, tuning


@dataclass(frozen=True)
class Task:
    """One choice to make: its network, its name, its file, and the settings to start from."""

    network: Network
    choice: str
    file: Path
    defence: dict[str, Any]


def tasks(
    names: Sequence[str], choices: Path, workshop: Workshop
) -> tuple[list[Task], tuple[str, ...]]:
    """The choices that the plans called ``names`` need, and networks that are not there."""
    needed: dict[Path, Task] = {}
    missing: list[str] = []
    for name in names:
        drawn = blueprint(name)
        there, absent = present(
            dict.fromkeys(network for network, _ in drawn.pairs()), drawn.networks, workshop
        )
        missing += absent
        for network, choice, defence in drawn.choices():
            if network in there:
                file = choice_file(choices, network, choice)
                data = drawn.networks[network]["data"]
                needed.setdefault(file, Task(Network(network, data), choice, file, defence))
    return list(needed.values()), tuple(dict.fromkeys(missing))


@dataclass(frozen=True)
class Asked:
    """How a choice is to be made."""

    defence: Defence
    grid: Grid
    images: int
    chunk: int
    split: str
    confirm: int  # clean images that the choice has to stand; 0: none


def asked(task: Task, most: int | None = None, whole: bool = True) -> Asked:
    """What common.toml says of a choice; ``most`` bounds the images."""
    values = tuning(task.choice)
    grid = Grid(
        iterations=tuple(values["iterations"]),
        lr=tuple(values["lr"]),
        energy=tuple(values.get("energy", ())),
        rule=values.get("rule", "energy"),
        whole=whole,
    )
    images = min(values["images"], most or values["images"])
    return Asked(
        defence=read_defence(Table("common.toml", task.choice, task.defence), Path(), ()),
        grid=grid,
        images=images,
        chunk=min(values["chunk"], images),
        split=values.get("split", "heldout"),
        confirm=values["confirm"] if most is None else 0,
    )


def differs(task: Task, wanted: Asked, workshop: Workshop) -> str | None:
    """In what the choice that is there is not the one asked for; None if it is that."""
    facts, made = read_json(task.file), read_choice(task.file)
    name = task.network.weights
    plan = Plan(name, {name: task.network}, {}, {}, ())
    if facts.get("fingerprint") != workshop.network(plan, name).fingerprint:
        return "it is for other weights"
    if facts.get("split") != wanted.split:
        return f"it was made on {facts.get('split')} images, not on {wanted.split} ones"
    if not isinstance(facts.get("n"), int) or facts["n"] < wanted.images:
        return f"it was made on {facts.get('n')} images, not on {wanted.images}"
    known, grid = facts.get("grid", {}), json.loads(json.dumps(asdict(wanted.grid)))
    if wanted.grid.whole and not known.get("whole", True):
        return "its grid is not whole"
    if {**known, "whole": True} != {**grid, "whole": True}:
        return "its grid is another"
    if untuned(made, wanted.grid) != untuned(wanted.defence, wanted.grid):
        return "it is of another defence"
    return None


def is_confirmed(file: Path, wanted: Asked) -> bool:
    """Whether the choice in a file stood as many clean images as asked for, if it had to."""
    facts = read_json(file)
    tried = facts.get("confirmed", [])
    if tried:
        return all(one.get("n", 0) >= wanted.confirm for one in tried)
    # A grid of which no point kept the clean accuracy has nothing to confirm.
    return not wanted.confirm or not any(p.get("feasible") for p in facts.get("points", []))


def untuned(defence: Defence, grid: Grid) -> dict[str, Any]:
    """The settings that a tuning leaves as they are; what is but faster makes the same choice."""
    settings = {k: v for k, v in defence.settings().items() if k != "accelerate"}
    solver = {k: v for k, v in settings["solver"].items() if k not in ("iterations", "lr")}
    rules = RULES if grid.energy else ()
    embedding = {k: v for k, v in settings["embedding"].items() if k not in rules}
    return {**settings, "solver": solver, "embedding": embedding}


def made_otherwise(name: str, choices: Path, workshop: Workshop) -> tuple[str, ...]:
    """A sentence for each choice of the plan called ``name`` that is not as common.toml has it."""
    sentences = []
    for task in tasks([name], choices, workshop)[0]:
        if not task.file.is_file():
            continue
        # What clean images rule out is never chosen: a grid without it has the same choice.
        wanted = asked(task, whole=False)
        why = differs(task, wanted, workshop)
        if why is None and not is_confirmed(task.file, wanted):
            why = f"it was not confirmed on {wanted.confirm} clean images"
        if why is not None:
            sentences.append(
                f"{task.file} is used, but {why}. Make it again: clcnn experiment tune --only "
                f"{name} --choices {choices}."
            )
    return tuple(sentences)
