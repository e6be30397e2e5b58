"""All choices of settings that the plans need, each made once on held-out training images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from clcnn.evaluation.bench import check_alone
from clcnn.evaluation.choice import Choice
from clcnn.evaluation.confirm import confirm
from clcnn.evaluation.store import Store
from clcnn.evaluation.tables import PlanError, UnpreparedError
from clcnn.evaluation.tune import tune
from clcnn.evaluation.watch import Silent, Watch
from clcnn.evaluation.workshop import Workshop
from clcnn.experiments.choices import Task, asked, differs, is_confirmed, tasks
from clcnn.experiments.run import PLANS


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
    found, missing = _known(names, choices, workshop)
    for sentence in missing:
        watch.say(sentence)
    for task in found:
        wanted = asked(task, most, whole)
        made: Choice | None = None
        if task.file.is_file():
            why = differs(task, wanted, workshop)
            if why is not None:
                watch.say(f"{task.file} is made again: {why}")
            elif is_confirmed(task.file, wanted):
                watch.say(f"{task.file} is there already")
                continue
            else:
                watch.say(f"{task.file} is there, to be confirmed on clean images")
                made = Choice.read(task.file)
        if made is None:
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
        if wanted.confirm:
            made = confirm(
                made,
                store,
                n=wanted.confirm,
                defence=wanted.defence,
                workshop=workshop,
                watch=watch,
            )
            made.write(task.file)
        yield task, made


def check(
    names: Sequence[str], choices: Path, *, most: int | None = None, workshop: Workshop
) -> None:
    """Fail where a choice cannot be made, for want of a network or of its images, with no store."""
    for task in _known(names, choices, workshop)[0]:
        if not task.file.is_file():
            wanted = asked(task, most)
            n = max(wanted.images, wanted.confirm)
            check_alone(task.network, wanted.defence, workshop, n=n, split=wanted.split)


def _known(
    names: Sequence[str], choices: Path, workshop: Workshop
) -> tuple[list[Task], tuple[str, ...]]:
    """What can be chosen, at least one, and what is missing for more."""
    unknown = [name for name in names if name not in PLANS]
    if unknown:
        raise PlanError(
            f"found {unknown[0]!r}, which has no settings to choose; expected some of "
            f"{', '.join(PLANS)}."
        )
    found, missing = tasks(names or PLANS, choices, workshop)
    if not found:
        if missing:
            raise UnpreparedError(" ".join(missing))
        raise PlanError(
            f"{', '.join(names)} have no settings to choose; expected others of the plans."
        )
    return found, missing
