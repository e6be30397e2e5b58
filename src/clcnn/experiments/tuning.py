"""All choices of settings that the plans need, each made once on held-out training images."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clcnn.evaluation.choice import Choice, Grid
from clcnn.evaluation.defence import read_choice, read_defence
from clcnn.evaluation.plan import Network, Plan
from clcnn.evaluation.runner import Silent, Watch
from clcnn.evaluation.store import Store
from clcnn.evaluation.tables import PlanError, Table
from clcnn.evaluation.tune import tune
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


def is_made(task: Task, workshop: Workshop, whole: bool = True) -> bool:
    """Whether the choice is there, for these very weights, from as much of the grid as asked."""
    if not task.file.is_file():
        return False
    if whole and not json.loads(task.file.read_text()).get("grid", {}).get("whole", True):
        return False
    name = task.network.weights
    plan = Plan(name, {name: task.network}, {}, {}, ())
    chosen = read_choice(task.file).chosen or {}
    return chosen.get("fingerprint") == workshop.network(plan, name).fingerprint


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
    wanted, missing = tasks(names or PLANS, choices, workshop)
    for sentence in missing:
        watch.say(sentence)
    if not wanted:
        raise PlanError(" ".join(missing))
    for task in wanted:
        if is_made(task, workshop, whole):
            watch.say(f"{task.file} is there already")
            continue
        watch.say(f"choosing {task.choice} for {task.network.weights}")
        made = make(task, store, most, whole, workshop, watch)
        made.write(task.file)
        yield task, made


def make(
    task: Task,
    store: Store,
    most: int | None,
    whole: bool,
    workshop: Workshop,
    watch: Watch,
) -> Choice:
    """One choice."""
    values = tuning(task.choice)
    grid = Grid(
        iterations=tuple(values["iterations"]),
        lr=tuple(values["lr"]),
        energy=tuple(values.get("energy", ())),
        rule=values.get("rule", "energy"),
        whole=whole,
    )
    images = min(values["images"], most or values["images"])
    return tune(
        task.network,
        store,
        defence=read_defence(Table("common.toml", task.choice, task.defence), Path(), ()),
        grid=grid,
        n=images,
        chunk=min(values["chunk"], images),
        split=values.get("split", "heldout"),
        workshop=workshop,
        watch=watch,
    )
