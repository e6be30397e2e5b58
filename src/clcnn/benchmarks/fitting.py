"""Fitting a linear embedding beside scikit-learn's PCA: time, peak memory and accuracy."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clcnn.benchmarks.memory import peak
from clcnn.benchmarks.timing import quartiles
from clcnn.embeddings import LinearEmbedding
from clcnn.errors import DataError

UNIT = "sklearn randomised"
MATCHED = "clcnn randomised, matched"
METHODS = (UNIT, "clcnn randomised", MATCHED, "clcnn exact", "sklearn incremental")
_ONCE = ("clcnn exact", "sklearn incremental")  # slow, and not what the unit is compared with
_PASSES, _MOST_PASSES = 4, 12  # LinearEmbedding's default, and where matching gives up
_SAME = 1e-5  # shares of the variance that differ by less are called equal
_OVERSAMPLING = 16
_EXACT = 2**45  # bytes: a budget that rules out nothing
_BLOCK = 512
# Bytes from which glibc gives a freed block back at once. Left to itself it moves this bound as it
# goes, and whether it keeps a block is luck: the peak of one and the same fit differs by a third.
_GIVEN_BACK = 2**20
_QUICK_SIZES, _QUICK_RANKS = (600, 1024, 200), (8, 32)


@dataclass(frozen=True)
class Job:
    """One fit, named so that another process can make it."""

    method: str
    rank: int
    seed: int
    passes: int = _PASSES


@dataclass(frozen=True)
class Basis:
    """V and the mean that a method found, whatever its own types."""

    V: Tensor  # (d, r), orthonormal columns
    mean: Tensor  # (d,)


@dataclass(frozen=True)
class Fit:
    """One method at one rank; ratios are to ``UNIT`` within the same round."""

    method: str
    rank: int
    passes: int | None  # products with the covariance, where clcnn is randomised
    seconds: float  # medians over the rounds
    cpu_seconds: float
    ratio: float
    ratio_low: float
    ratio_high: float
    cpu_ratio: float  # of the processor's time: what a machine shared with others still tells
    rounds: int
    peak_bytes: int | None  # beside the states, in a process of its own; None if not measured
    kept: float  # share of the fitted states' variance
    kept_heldout: float
    subspace: float  # mean squared sine of the angles to the exact basis


def measure(
    states: Tensor | None = None,
    heldout: Tensor | None = None,
    *,
    n: int = 5000,
    d: int = 16_384,
    n_heldout: int = 1000,
    ranks: Sequence[int] = (64, 256, 512, 1000),
    rounds: int = 3,
    seed: int = 0,
    memory: bool = True,
    quick: bool = False,
) -> dict[str, Any]:
    """Fit ``states`` (n, *state) with every method at every rank; return JSON values.

    Without states, ``n`` of dimension ``d`` are made up. ``clcnn randomised`` runs at its default
    number of passes; ``matched`` at the fewest that keep as much of the fitted states as
    scikit-learn does, found before anything is timed. Both libraries get torch's number of
    threads. ``memory=False`` leaves out the processes in which peaks are measured, ``quick``
    shrinks sizes and ranks.
    """
    if (states is None) != (heldout is None):
        raise DataError("found one of states and heldout; expected both, or neither.")
    if quick:
        n, d, n_heldout = (min(pair) for pair in zip(_QUICK_SIZES, (n, d, n_heldout), strict=True))
        ranks = _QUICK_RANKS
    made_up = states is None or heldout is None
    if states is None or heldout is None:
        drawn = synthetic(n + n_heldout, d, seed)
        states, heldout = drawn[:n], drawn[n:]
    x, rest = (part.detach().flatten(1).float().cpu().contiguous() for part in (states, heldout))
    _check(x, rest, ranks, rounds)
    rows: list[Fit] = []
    with _same_threads(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "states.npy" if memory else None
        if path is not None:
            np.save(path, x.numpy())
        for rank in ranks:
            rows += _at_rank(x, rest, rank, rounds, seed, path)
    return {
        "n": len(x),
        "d": x.shape[1],
        "n_heldout": len(rest),
        "made_up": made_up,
        "threads": torch.get_num_threads(),
        "unit": UNIT,
        "rows": [asdict(row) for row in rows],
    }


def synthetic(n: int, d: int, seed: int) -> Tensor:
    """n states of dimension d whose variances fall like 1 / i, as hidden layers' do, off zero."""
    generator = torch.Generator().manual_seed(seed)
    p = min(2048, d)
    scales = torch.arange(1, p + 1).rsqrt()
    directions = torch.randn(p, d, generator=generator) / d**0.5
    x: Tensor = (torch.randn(n, p, generator=generator) * scales) @ directions
    return x.add_(torch.randn(n, d, generator=generator), alpha=0.02 / d**0.5).add_(1.0)


def fit(job: Job, x: Tensor) -> Basis:
    """The basis that ``job`` finds for the states x (n, d)."""
    if job.method.startswith("clcnn"):
        whole = job.method == "clcnn exact"
        # The least budget of a randomised fit: what it holds is its basis, thrice.
        budget = _EXACT if whole else 3 * 8 * x.shape[1] * (job.rank + _OVERSAMPLING)
        linear = LinearEmbedding(
            rank=job.rank,
            memory=budget,
            passes=job.passes,
            oversampling=_OVERSAMPLING,
            seed=job.seed,
            algorithm="exact" if whole else "randomised",
        ).fit(x)
        return Basis(linear.V, linear.mean)
    decomposition = _sklearn()
    if job.method == UNIT:
        found = decomposition.PCA(job.rank, svd_solver="randomized", random_state=job.seed)
    else:
        found = decomposition.IncrementalPCA(job.rank, batch_size=max(_BLOCK, job.rank))
    found.fit(x.numpy())
    V, mean = (torch.from_numpy(np.asarray(a)) for a in (found.components_.T, found.mean_))
    return Basis(V.to(x), mean.to(x))


def kept(basis: Basis, x: Tensor) -> float:
    """1 - sum_i ||Q (x_i - mean)||^2 / sum_i ||x_i - mean||^2, for V with orthonormal columns."""
    inside = total = 0.0
    for block in torch.split(x, _BLOCK):
        centred = block - basis.mean
        inside += float((centred @ basis.V).double().square().sum())
        total += float(centred.double().square().sum())
    return inside / total


def subspace_distance(V: Tensor, reference: Tensor) -> float:
    """1 - ||V' V_reference||_F^2 / r: the mean squared sine of the principal angles."""
    cosines = (V.T @ reference).double()
    return max(0.0, 1 - float(cosines.square().sum()) / V.shape[1])


def _at_rank(
    x: Tensor, rest: Tensor, rank: int, rounds: int, seed: int, path: Path | None
) -> list[Fit]:
    matched = _matched(x, rank, seed)
    jobs = [Job(name, rank, seed) for name in METHODS]
    jobs = [replace(job, passes=matched) if job.method == MATCHED else job for job in jobs]
    wall: dict[str, list[float]] = {name: [] for name in METHODS}
    cpu: dict[str, list[float]] = {name: [] for name in METHODS}
    bases: dict[str, Basis] = {}
    for round_ in range(rounds):
        due = [job for job in jobs if round_ == 0 or job.method not in _ONCE]
        for job in due[round_ % len(due) :] + due[: round_ % len(due)]:  # nobody is always first
            start = time.perf_counter(), time.process_time()
            bases[job.method] = fit(job, x)
            wall[job.method].append(time.perf_counter() - start[0])
            cpu[job.method].append(time.process_time() - start[1])
    reference = bases["clcnn exact"].V
    rows = []
    for job in jobs:
        name, basis = job.method, bases[job.method]
        ratios = [a / b for a, b in zip(wall[name], wall[UNIT], strict=False)]
        cpu_ratios = [a / b for a, b in zip(cpu[name], cpu[UNIT], strict=False)]
        low, high = quartiles(ratios)
        rows.append(
            Fit(
                method=name,
                rank=rank,
                passes=job.passes if "clcnn randomised" in name else None,
                seconds=statistics.median(wall[name]),
                cpu_seconds=statistics.median(cpu[name]),
                ratio=statistics.median(ratios),
                ratio_low=low,
                ratio_high=high,
                cpu_ratio=statistics.median(cpu_ratios),
                rounds=len(ratios),
                peak_bytes=None if path is None else _peak_in_a_process(job, path),
                kept=kept(basis, x),
                kept_heldout=kept(basis, rest),
                subspace=subspace_distance(basis.V, reference),
            )
        )
    return rows


def _matched(x: Tensor, rank: int, seed: int) -> int:
    """The fewest passes with which clcnn keeps what scikit-learn's randomised PCA does, or more."""
    target = kept(fit(Job(UNIT, rank, seed), x), x)
    for passes in range(2, _MOST_PASSES):
        if kept(fit(Job(MATCHED, rank, seed, passes), x), x) >= target - _SAME:
            return passes
    return _MOST_PASSES


def _peak_in_a_process(job: Job, path: Path) -> int | None:
    """Peak of one fit beside its states, in a process that has done nothing else of size."""
    threads = str(torch.get_num_threads())
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    settings = dict.fromkeys(names, threads) | {"MALLOC_MMAP_THRESHOLD_": str(_GIVEN_BACK)}
    code = "import sys; from clcnn.benchmarks.fitting import print_peak; print_peak(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(asdict(job)), str(path)],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise DataError(f"the process that fits {job.method} failed: {done.stderr[-2000:]}")
    found: int | None = json.loads(done.stdout.splitlines()[-1])
    return found


def print_peak(job: str, path: str) -> None:
    """Fit the states in a file, and print the peak in bytes: what the measuring process runs."""
    wanted = Job(**json.loads(job))
    # A small fit first: what a library sets up once is no part of a fit.
    fit(replace(wanted, rank=2), synthetic(600, 512, 0))
    x = torch.from_numpy(np.load(path))
    print(json.dumps(peak(lambda: fit(wanted, x))))


def _check(x: Tensor, rest: Tensor, ranks: Sequence[int], rounds: int) -> None:
    if rounds < 1 or not ranks or min(len(x), len(rest)) < 1:
        raise DataError(
            f"found rounds={rounds}, ranks={tuple(ranks)}, {len(x)} states and {len(rest)} held "
            "out; expected at least one of each."
        )
    most = min(len(x) - 1, x.shape[1])
    if not 0 < min(ranks) <= max(ranks) <= most:
        raise DataError(f"found ranks={tuple(ranks)}; expected them within 1 and {most}.")


def _sklearn() -> Any:
    try:
        from sklearn import decomposition
    except ModuleNotFoundError as error:
        raise DataError(
            "fitting is compared with scikit-learn, which is not installed: "
            "pip install scikit-learn, or pip install 'clcnn[dev]'."
        ) from error
    return decomposition


def _same_threads() -> AbstractContextManager[Any]:
    """Give every BLAS that is loaded, torch's and numpy's, torch's number of threads."""
    _sklearn()
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    limits: AbstractContextManager[Any] = threadpool_limits(torch.get_num_threads())
    return limits
