"""What keeping memory (`clcnn.memory.keep_memory`) is worth: the same work with and without it.

    python benchmarks/memory.py --rounds 5

Each round starts one process of either kind, one after the other; ratios are of their times.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

import clcnn
from clcnn.attacks import PGD
from clcnn.memory import keep_memory
from clcnn.models import DenseNet40

KINDS = ("as it is", "kept")


def main() -> None:
    """Print one row a workload: seconds of either kind, and the ratio with its range."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=list(WORK), default=None)
    parser.add_argument("--child", choices=KINDS, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        torch.set_num_threads(asked.threads)
        if asked.child == "kept" and not keep_memory():
            raise SystemExit("there is no glibc here: memory cannot be kept")
        print(timed(WORK[asked.only]()))
        return
    for name in [asked.only] if asked.only else WORK:
        pairs = [
            [float(child(kind, name, asked.threads)) for kind in KINDS] for _ in range(asked.rounds)
        ]
        medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
        ratios = sorted(before / after for before, after in pairs)
        print(
            f"{name:32} {medians[0]:7.3f} s  {medians[1]:7.3f} s kept; ratio "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def child(kind: str, name: str, threads: int) -> str:
    """The seconds that a process of its own needs for one piece of work."""
    words = [sys.executable, __file__, "--child", kind, "--only", name, "--threads", str(threads)]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def timed(work: Callable[[], object], calls: int = 3) -> float:
    """The median of several calls, after one that is not counted."""
    work()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def forward() -> Callable[[], object]:
    """ResNet-20, 500 images, no gradients."""
    network = clcnn.models.load("resnet20-cifar10")
    x = torch.rand(500, 3, 32, 32)

    def work() -> None:
        with torch.no_grad():
            network(x)

    return work


def attack() -> Callable[[], object]:
    """5 steps of PGD on ResNet-20, 250 images."""
    network = clcnn.models.load("resnet20-cifar10")
    x = clcnn.data.sample().test[0][:250]
    with torch.no_grad():
        y = network(x).argmax(1)  # what is wrong from the beginning is not attacked
    pgd = PGD(2 / 255, steps=5)
    return lambda: pgd(network, x, y)


def control() -> Callable[[], object]:
    """PMP, 2 iterations, 100 images, components of the shipped sample."""
    robust = clcnn.control(
        clcnn.models.load("resnet20-cifar10"), solver=clcnn.PMP(iterations=2, lr=0.002)
    ).fit(clcnn.data.sample().train[0])
    x = clcnn.data.sample().test[0][:100]
    return lambda: robust(x)


def training() -> Callable[[], object]:
    """A step of DenseNet-40, 64 images."""
    network = DenseNet40().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = torch.rand(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.zeros(64, dtype=torch.long)

    def work() -> None:
        network.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()

    return work


WORK = {
    "ResNet-20, forward": forward,
    "ResNet-20, PGD": attack,
    "ResNet-20, PMP": control,
    "DenseNet-40, training": training,
}

if __name__ == "__main__":
    main()
