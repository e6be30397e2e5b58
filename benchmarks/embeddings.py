"""Measure the linear embeddings at the five cuts of a ResNet-20: what they keep, what they cost.

    python benchmarks/embeddings.py --network resnet20-cifar10
    python benchmarks/embeddings.py --weights weights.safetensors --root DATA --fit 5000
    python benchmarks/embeddings.py --energy 0.95 --skip-linear --json

Every kind is fitted on the same training images with the same rule, and its kept energy measured on
those and on held-out images. Times are CPU times of a residual of one batch, all kinds and the
network's plain forward in turn, so that other work on the machine disturbs them little and alike.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from clcnn import (
    FrequencyEmbedding,
    HookedDynamics,
    LinearEmbedding,
    PatchEmbedding,
    SeparableEmbedding,
    models,
)
from clcnn.data import load, sample
from clcnn.embeddings import AutoEmbedding, OrthogonalEmbedding

CUTS = ("input", "layer1", "layer2", "layer3", "head")


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", help="a name from clcnn.models.list()")
    parser.add_argument("--weights", help="a state dict of a ResNet-20 instead")
    parser.add_argument("--root", help="where CIFAR-10 is; the shipped sample if left out")
    parser.add_argument("--fit", type=int, default=5000, help="training images to fit on")
    parser.add_argument("--held-out", type=int, default=1000, help="images to measure on")
    parser.add_argument("--energy", type=float, default=0.99)
    parser.add_argument("--budget", type=float, help="multiply-adds a feature, for auto")
    parser.add_argument("--cuts", nargs="+", default=list(CUTS))
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=15, help="of each timing")
    parser.add_argument("--skip-linear", action="store_true", help="the full basis takes minutes")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    asked = parser.parse_args()

    network = network_for(asked.network, asked.weights)
    fit_images, held_images = images(asked.root, asked.fit, asked.held_out)
    everything = {}
    for t, cut in enumerate(asked.cuts):
        dynamics = HookedDynamics(network, asked.cuts)
        fitted_on = states(dynamics, t, fit_images)
        held_out = states(dynamics, t, held_images)
        kinds = fit_all(fitted_on, asked.energy, asked.budget, asked.skip_linear)
        rows = [row(name, one, fitted_on, held_out) for name, one in kinds.items()]
        functions: dict[str, Callable[[], object]] = {
            name: partial(one.residual, held_out[: asked.batch]) for name, one in kinds.items()
        }
        functions["forward"] = partial(network, held_images[: asked.batch])
        times = timed(functions, asked.repeats)
        for found in rows:
            found["ms"] = times[found["kind"]]
            found["forwards"] = times[found["kind"]] / times["forward"]
        everything[cut] = {
            "shape": list(fitted_on.shape[1:]),
            "fitted": len(fitted_on),
            "forward_ms": times["forward"],
            "kinds": rows,
            "choice": kinds["auto"].choice_,
        }
        if not asked.json:
            print(table(cut, everything[cut]), flush=True)
    print(json.dumps(everything, indent=2) if asked.json else summary(everything))


def network_for(name: str | None, weights: str | None) -> nn.Module:
    """A shipped network, one's own weights, or random ones."""
    if name is not None:
        return models.load(name).eval()
    torch.manual_seed(0)
    network = models.build("resnet20").eval()
    if weights is not None:
        network.load_state_dict(load_file(Path(weights)))
    return network


def images(root: str | None, fit: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Training and held-out images of CIFAR-10, or those of the shipped sample."""
    if root is None:
        return sample().train[0][:fit], sample().test[0][:held_out]
    train = load("cifar10", "train", root).tensors()[0][:fit]
    return train, load("cifar10", "heldout", root).tensors()[0][:held_out]


@torch.no_grad()
def states(dynamics: HookedDynamics, wanted: int, x: Tensor) -> Tensor:
    """The states at one cut."""
    found = []

    def note(t: int, state: Tensor) -> Tensor:
        if t == wanted:
            found.append(state.clone())
        return state

    for batch in x.split(250):
        dynamics.sweep(batch, note)
    return torch.cat(found)


def fit_all(
    x: Tensor, energy: float, budget: float | None, skip_linear: bool
) -> dict[str, OrthogonalEmbedding]:
    """Every kind, by the same rule on the fitted states; "auto" by its own on held-out ones."""
    C, H, W = x.shape[1:]
    kinds: dict[str, OrthogonalEmbedding] = {"separable": SeparableEmbedding(energy=energy)}
    for p in (1, 2, 4, 8):
        if H % p == W % p == 0 and C * p * p <= 1024:
            kinds[f"patch {p}"] = PatchEmbedding(p, energy=energy)
            kinds[f"frequency {p}"] = FrequencyEmbedding(p, energy=energy)
    if not skip_linear:
        kinds = {"linear": LinearEmbedding(energy=energy)} | kinds
    batches = x.split(250)
    fitted = {name: one.fit(batches) for name, one in kinds.items()}
    return fitted | {"auto": AutoEmbedding(energy, budget).fit(batches)}


def row(name: str, one: OrthogonalEmbedding, fitted_on: Tensor, held_out: Tensor) -> dict[str, Any]:
    """What one embedding keeps, and what it costs on paper."""
    return {
        "kind": name,
        "rank": one.rank_,
        "multiply_adds": one.multiply_adds_,
        "kept_fitted": one.kept(fitted_on[:1000]),
        "kept_held_out": one.kept(held_out),
    }


@torch.no_grad()
def timed(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU milliseconds of each function, called in turn."""
    spent: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats + 1):
        for name, function in functions.items():
            start = time.process_time()
            function()
            spent[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(values[1:]) for name, values in spent.items()}


def table(cut: str, found: dict[str, Any]) -> str:
    """One cut, one line a kind."""
    d = torch.Size(found["shape"]).numel()
    full = next((one for one in found["kinds"] if one["kind"] == "linear"), None)
    lines = [
        f"\n{cut}: {' x '.join(map(str, found['shape']))} = {d}, fitted on {found['fitted']}",
        f"{'kind':13}{'rank':>7}{'M madds':>9}{'a feature':>11}{'ms':>8}{'forwards':>10}"
        f"{'to full':>9}{'kept fitted':>13}{'held out':>10}",
    ]
    for one in found["kinds"]:
        ratio = f"{one['ms'] / full['ms']:9.3f}" if full else f"{'-':>9}"
        lines.append(
            f"{one['kind']:13}{one['rank']:7}{one['multiply_adds'] / 1e6:9.2f}"
            f"{one['multiply_adds'] / d:11.0f}{one['ms']:8.1f}{one['forwards']:10.3f}{ratio}"
            f"{one['kept_fitted']:13.4f}{one['kept_held_out']:10.4f}"
        )
    return "\n".join([*lines, f"auto: {found['choice']['picked']}, {found['choice']['why']}"])


def summary(everything: dict[str, Any]) -> str:
    """All cuts together: what one residual at each costs."""
    lines = ["\nall cuts together, one residual each"]
    for kind in [one["kind"] for one in next(iter(everything.values()))["kinds"]]:
        rows = [one for found in everything.values() for one in found["kinds"]]
        rows = [one for one in rows if one["kind"] == kind]
        if len(rows) == len(everything):
            madds = sum(one["multiply_adds"] for one in rows) / 1e6
            forwards = sum(one["forwards"] for one in rows)
            lines.append(f"{kind:13}{madds:9.2f} M multiply-adds{forwards:9.3f} plain forwards")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
