"""All choices of settings that the plans need, each made once on held-out training images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from clcnn.evaluation.choice import Choice, Grid
from clcnn.evaluation.defence import Defence, read_choice, read_defence
from clcnn.evaluation.plan import Network, Plan
from clcnn.evaluation.runner import Silent, Watch
from clcnn.evaluation.store import Store
from clcnn.evaluation.tables import PlanError, Table, read_json
from clcnn.evaluation.tune import RULES, tune
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments.blueprints import blueprint, choice_file, present, tuning
from clcnn.experiments.run import PLANS


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


def untuned(defence: Defence, grid: Grid) -> dict[str, Any]:
    """The settings that a tuning leaves as they are."""
    settings = defence.settings()
    solver = {k: v for k, v in settings["solver"].items() if k not in ("iterations", "lr")}
    rules = RULES if grid.energy else ()
    embedding = {k: v for k, v in settings["embedding"].items() if k not in rules}
    return {**settings, "solver": solver, "embedding": embedding}


def run(
    names: Sequence[str],
    store: Store,
    choices: Path,
    *,
    most: int | None = None,
    whole: bool = True,
    workshop: Workshop | None = None,
    watch: Watch | None = None,
) -> Iterator[tuple[Task, Choice]]:
    """Make every choice that is not there, in the order of the plans; resumable as any run.

    Unless ``whole``, settings that clean images rule out meet no attack: the same choice, sooner.
    """
    workshop, watch = workshop or Workshop(), watch or Silent()
    unknown = [name for name in names if name not in PLANS]
    if unknown:
        raise PlanError(
            f"found {unknown[0]!r}, which has no settings to choose; expected some of "
            f"{', '.join(PLANS)}."
        )
    found, missing = tasks(names or PLANS, choices, workshop)
    for sentence in missing:
        watch.say(sentence)
    if not found:
        nothing = f"{', '.join(names)} have no settings to choose; expected others of the plans."
        raise PlanError(" ".join(missing) or nothing)
    for task in found:
        wanted = asked(task, most, whole)
        if task.file.is_file():
            why = differs(task, wanted, workshop)
            if why is None:
                watch.say(f"{task.file} is there already")
                continue
            watch.say(f"{task.file} is made again: {why}")
        watch.say(f"choosing {task.choice} for {task.network.weights}")
        made = tune(
            task.network,
            store,
            defence=wanted.defence,
            grid=wanted.grid,
            n=wanted.images,
            chunk=wanted.chunk,
            split=wanted.split,
            workshop=workshop,
            watch=watch,
        )
        made.write(task.file)
        yield task, made
