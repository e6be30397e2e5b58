"""Real processes on one store: killed at any point, and two at once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import TEXT, network, plan, workshop

from clcnn.evaluation import Bench, ExampleCache, Store, cache, results, run, schema
from clcnn.evaluation.defending import Defences

PLAN = TEXT.replace('["none", "fgsm", "noise"]', '["none", "noise"]').replace("[20, 40]", "[40]")
FORK = multiprocessing.get_context("fork")
CHUNKS = 4 * 3  # cells times chunks


def start(work: Callable[[], Any]) -> BaseProcess:
    def alone() -> None:
        torch.set_num_threads(1)
        work()

    process = FORK.Process(target=alone)
    process.start()
    return process


def content(path: Path) -> list[tuple]:
    """All that was measured, but for the time it took."""
    with Store(path, must_exist=True) as store:
        return store.read(
            "SELECT hash, sample, chunk, label, predicted, correct, cost, before, after, linf, l2 "
            "FROM samples JOIN cells ON cells.id = samples.cell ORDER BY hash, sample"
        )


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[tuple]:
    path = tmp_path_factory.mktemp("whole") / "r.sqlite"
    network()  # trained before any fork
    run(plan(PLAN), path, workshop=workshop())
    rows = content(path)
    assert len(rows) == 4 * 20
    return rows


def die(*arguments: object, **named: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(calls: int, function: Callable[..., Any], *, first: bool = False) -> Callable[..., Any]:
    """``function``, with death in its place (``first``) or behind it at the given call."""
    count = [0]

    def wrapped(*arguments: Any, **named: Any) -> Any:
        count[0] += 1
        if first and count[0] == calls:
            die()
        value = function(*arguments, **named)
        if count[0] == calls:
            die()
        return value

    return wrapped


POINTS = {
    "while the tables are made": (schema, "_number", 2, True),
    "before anything is measured": (Bench, "measure", 1, True),
    "while it is fitted": (Defences, "_fit", 1, False),
    "while a fit is written": (Defences, "_write", 1, True),
    "while examples are written": (cache, "save_file", 2, False),
    "when examples are there": (ExampleCache, "get", 5, False),
    "in the middle of a transaction": (Store, "_insert", 4, False),
    "behind a transaction": (Store, "finish", 7, False),
    "with one chunk left": (Store, "finish", CHUNKS - 1, False),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_run_killed_anywhere_goes_on_to_the_same_rows(
    tmp_path: Path, uninterrupted: list[tuple], point: str
) -> None:
    path = tmp_path / "r.sqlite"
    owner, name, call, first = POINTS[point]

    def doomed() -> None:
        setattr(owner, name, after(call, getattr(owner, name), first=first))
        run(plan(PLAN), path, workshop=workshop())

    process = start(doomed)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    if path.exists():
        rows = content(path)
        assert len(rows) < len(uninterrupted)
        assert set(rows) <= set(uninterrupted)
    found = run(plan(PLAN), path, workshop=workshop())
    assert all(result.is_complete for result in found)
    assert content(path) == uninterrupted


def test_a_run_killed_again_and_again_at_random_times(
    tmp_path: Path, uninterrupted: list[tuple]
) -> None:
    began = time.monotonic()
    start(lambda: run(plan(PLAN), tmp_path / "timed.sqlite", workshop=workshop())).join()
    longest = time.monotonic() - began
    chance = random.Random(5)
    deaths = 0
    for attempt in range(40):
        if not deaths:  # the machine was faster this time: begin again, and be quicker
            path, longest = tmp_path / f"{attempt}.sqlite", longest / 1.5
        process = start(lambda path=path: run(plan(PLAN), path, workshop=workshop()))
        process.join(chance.uniform(0.05, 1.0) * longest)
        if process.exitcode is not None:
            if deaths:
                break
            continue
        process.kill()
        process.join()
        deaths += 1
        if path.exists():
            assert set(content(path)) <= set(uninterrupted)
    assert deaths > 0
    run(plan(PLAN), path, workshop=workshop())
    assert content(path) == uninterrupted


def test_two_processes_share_the_work_and_nothing_is_done_twice(
    tmp_path: Path, uninterrupted: list[tuple]
) -> None:
    path, log = tmp_path / "r.sqlite", tmp_path / "log"
    barrier = FORK.Barrier(2)

    def worker() -> None:
        measure, alone = Bench.measure, iter([True])

        def noted(bench: Bench, cell: Any, number: int) -> Any:
            if next(alone, False):  # each has a chunk of its own before either goes on
                barrier.wait(60)
            with log.open("a") as file:  # one short line: whole, whoever else writes
                file.write(f"{os.getpid()} {cell.key.hash} {number}\n")
            return measure(bench, cell, number)

        Bench.measure = noted  # type: ignore[method-assign]
        found = run(plan(PLAN), path, workshop=workshop())
        assert all(result.is_complete for result in found)  # both see the end

    processes = [start(worker), start(worker)]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    lines = [line.split() for line in log.read_text().splitlines()]
    assert len({pid for pid, _, _ in lines}) == 2
    assert len(lines) == len({(cell, number) for _, cell, number in lines}) == CHUNKS
    assert content(path) == uninterrupted


def test_one_of_two_is_killed_and_the_other_does_its_part(
    tmp_path: Path, uninterrupted: list[tuple]
) -> None:
    path = tmp_path / "r.sqlite"
    begun = FORK.Event()

    def doomed() -> None:
        measure, calls = Bench.measure, [0]

        def fatal(bench: Bench, cell: Any, number: int) -> Any:
            calls[0] += 1
            if calls[0] == 2:
                begun.set()
                die()
            return measure(bench, cell, number)

        Bench.measure = fatal  # type: ignore[method-assign]
        run(plan(PLAN), path, workshop=workshop())

    def inherits() -> None:
        measure = Bench.measure

        def patient(bench: Bench, cell: Any, number: int) -> Any:
            assert begun.wait(60)  # else it might have done all before the other's second chunk
            return measure(bench, cell, number)

        Bench.measure = patient  # type: ignore[method-assign]
        run(plan(PLAN), path, workshop=workshop())

    victim, heir = start(doomed), start(inherits)
    victim.join(60)
    heir.join(60)
    assert victim.exitcode == -signal.SIGKILL
    assert heir.exitcode == 0
    assert content(path) == uninterrupted
    with Store(path) as store:
        assert all(result.is_complete for result in results(store, "tiny"))
        assert store.read("SELECT count(*) FROM chunks WHERE owner IS NOT NULL")[0][0] == 0
