"""What the layout of the weights and the size of a batch are worth to an attack's gradients.

    python benchmarks/layout.py --rounds 5

Every candidate takes the gradient of the logits at the same images, in batches of its own size;
ratios are to the default layout in batches of 250, within a round.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import clcnn
from clcnn.benchmarks.timing import compare
from clcnn.memory import keep_memory

BATCHES = (250, 100, 50)
LAYOUTS = {"default": torch.contiguous_format, "channels last": torch.channels_last}


def main() -> None:
    """Print one row a candidate: seconds for all images, and how much faster than the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--network", default="densenet40-cifar10")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    keep_memory()
    x = clcnn.data.sample().test[0][: asked.images]
    candidates: dict[str, Callable[[], object]] = {}
    for layout, form in LAYOUTS.items():
        network = clcnn.models.load(asked.network).requires_grad_(False)
        network = network.to(memory_format=form)  # type: ignore[call-overload]
        for batch in BATCHES:
            candidates[f"{layout}, batches of {batch}"] = partial(gradients, network, x, batch)
    first = next(iter(candidates))
    print(f"{asked.network}, gradients at {len(x)} images; faster than the first by")
    for found in compare(candidates, first, asked.rounds):
        print(
            f"{found.name:32} {found.seconds:7.2f} s  {1 / found.ratio:.2f} "
            f"({1 / found.high:.2f} to {1 / found.low:.2f})",
            flush=True,
        )


def gradients(network: nn.Module, x: Tensor, batch: int) -> None:
    """The gradient of the sum of the logits at all images, by the batch."""
    for part in x.split(batch):
        at = part.clone().requires_grad_()
        torch.autograd.grad(network(at).sum(), at)


if __name__ == "__main__":
    main()
