"""Whether this machine gives the results that a store holds: cells' first chunks, measured again.

    python benchmarks/again.py results.sqlite table1 --defence none --attack cw --eps 2 --float32

A sample is identical if its answer, the norms of its perturbation and its cost J are the same to
the last bit. Nothing is written into the store; fits and examples that lie beside it are not used.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from clcnn.evaluation import Bench, Store, Workshop
from clcnn.evaluation.watch import Silent
from clcnn.experiments.run import Request, plan_of
from clcnn.memory import keep_memory


def main() -> None:
    """Print one row a cell: samples, how many are identical, how many answers differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("experiment")
    parser.add_argument("--network")
    parser.add_argument("--defence")
    parser.add_argument("--attack")
    parser.add_argument("--eps", type=float)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--float32", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    keep_memory()
    shop = Workshop(float32=asked.float32)
    plan, _ = plan_of(asked.experiment, Request(), shop)
    wanted = {name: getattr(asked, name) for name in ("network", "defence", "attack", "eps")}
    entries = tuple(
        entry
        for entry in plan.entries
        if all(value in (None, getattr(entry, name)) for name, value in wanted.items())
    )
    print(f"{torch.backends.cpu.get_cpu_capability()}, {asked.threads} threads")
    with tempfile.TemporaryDirectory() as folder, Store(asked.store, must_exist=True) as store:
        bench = Bench(replace(plan, entries=entries), shop, Path(folder), Silent())
        for cell in bench.cells():
            known = {
                sample: values
                for sample, *values in store.read(
                    "SELECT sample, predicted, linf, l2, cost FROM samples WHERE chunk = 0 AND "
                    "cell = (SELECT id FROM cells WHERE hash = ?)",
                    cell.key.hash,
                )
            }
            entry = cell.entry
            name = f"{entry.network}, {entry.defence}, {entry.attack} {entry.eps:g}, {entry.threat}"
            if not known:
                print(f"{name}: not in the store", flush=True)
                continue
            rows = bench.measure(cell, 0).rows
            same = sum([r.predicted, r.linf, r.l2, r.cost] == known[r.sample] for r in rows)
            others = sum(r.predicted != known[r.sample][0] for r in rows)
            print(f"{name}: {len(rows)}, {same} identical, {others} other answers", flush=True)


if __name__ == "__main__":
    main()
