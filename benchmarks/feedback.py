"""Feedback control on held-out training images: its strength, and what each of its parts is worth.

    python benchmarks/feedback.py --n 500

All attacks are computed on the uncontrolled network (oblivious). Held-out images are in no
network's training and no fit; test images have no part in choosing settings.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

import explored
import torch
from torch import Tensor

import clcnn
from clcnn import (
    PMP,
    AutoEmbedding,
    AutoencoderEmbedding,
    Embedding,
    Feedback,
    SpectralEmbedding,
    TailEmbedding,
)
from clcnn.attacks import CW, FGSM, PGD, ExactGradient, Noise
from clcnn.attacks.base import is_correct
from clcnn.data import load
from clcnn.statistics import wilson

STRONG = Feedback(preset="strong")
FLOORS = (
    (128, 0.0),
    (128, 0.008),
    (128, 0.016),
    (128, 0.064),
    (512, 0.004),
    (512, 0.008),
    (512, 0.016),
    (512, 0.032),
    (512, 0.064),
    (512, 0.096),
    (512, 0.128),
    (2048, 0.032),
    (2048, 0.064),
    (2048, 0.096),
    (2048, 0.128),
)
STRENGTHS = (0, 4, 8, 16, 32, 64, 128, 256)
PARTS: Mapping[str, Feedback] = {
    "strong": STRONG,
    "no suspicion": Feedback(preset="strong", suspicion=0),
    "no knee": Feedback(preset="strong", knee=1e6),
    "no ceiling": Feedback(preset="strong", ceiling=1e6),
    "trust 0.03": Feedback(preset="strong", trust=0.03),
    "floor 0.016": Feedback(floor=0.016),
    "floor 0.008": Feedback(floor=0.008),
    "floor 0.032": Feedback(floor=0.032),
    "strong, floor": Feedback(preset="strong", floor=0.016),
    "floor alone": Feedback(strength=0, floor=0.032),
}

ELSEWHERE: Mapping[str, tuple[tuple[str, ...], Embedding, Feedback]] = {
    "tail energy": (("input",), explored.TailEnergy(), STRONG),
    "median": (("input",), explored.Median(), STRONG),
    "bands": (("input",), explored.Bands(), STRONG),
    "threshold": (("input",), explored.Threshold(), STRONG),
    "gain squared": (("input",), explored.Square(), STRONG),
    "root of gain": (("input",), explored.Root(), STRONG),
    "tail, input": (("input",), TailEmbedding(AutoEmbedding()), STRONG),
    "tail, encoder": (
        ("input",),
        TailEmbedding(AutoencoderEmbedding(epochs=20, progress=False)),
        STRONG,
    ),
    "input, layer1": (("input", "layer1"), SpectralEmbedding(), STRONG),
    "carried": (("input", "layer1"), SpectralEmbedding(), Feedback(preset="strong", carry=True)),
    "input, head": (("input", "head"), SpectralEmbedding(), STRONG),
    "layer1": (("layer1",), SpectralEmbedding(), STRONG),
    "head": (("head",), SpectralEmbedding(), STRONG),
}


def main() -> None:
    """Fit, attack, and print one row a setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet20-cifar10")
    parser.add_argument("--n", type=int, default=500, help="held-out images")
    parser.add_argument("--fit", type=int, default=5000, help="training images to fit on")
    parser.add_argument("--elsewhere", action="store_true", help="other cuts and embeddings too")
    parser.add_argument(
        "--adaptive", type=int, default=0, metavar="IMAGES", help="attack that many through it, too"
    )
    parser.add_argument(
        "--control",
        type=Path,
        default=None,
        metavar="FILE",
        help="instead: one that was fitted before (clcnn harden), at several strengths and floors",
    )
    parser.add_argument(
        "--authority", action="store_true", help="instead: its own authority beside all of it"
    )
    parser.add_argument("--clean", action="store_true", help="no attacks, only clean images")
    parser.add_argument("--root", type=Path, default=None)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    network = clcnn.models.load(asked.network)
    assert network.card is not None
    x, y = some(network.card.data, "heldout", asked.n, asked)
    sets = {"clean": x} if asked.clean else attacked(network, x, y, asked.seed)
    low, high = wilson(0.5, len(x))
    widest = 50 * (high - low)
    print(f"{asked.network}, {len(x)} held-out images; intervals at most +-{widest:.1f} points")
    print(f"{'':16}" + "".join(f"{name:>8}" for name in sets) + "    cost")
    show("no control", network, sets, y, network)
    if asked.control:
        robust = clcnn.load(asked.control, network)
        for strength, floor in FLOORS:
            one = robust.configure(solver=Feedback(strength=strength, floor=floor))
            show(f"{strength}, {floor:g}", one, sets, y, network)
            if asked.adaptive:
                through(one, x[: asked.adaptive], y[: asked.adaptive])
        return
    fit, _ = some(network.card.data, "train", asked.fit, asked)
    robust = clcnn.control(network, ["input"], embedding=SpectralEmbedding(), solver=Feedback())
    robust = robust.fit(fit)
    embedding = robust.embeddings[0]
    assert isinstance(embedding, SpectralEmbedding)
    print(f"overlap {float(embedding.overlap):.2f}, authority {float(embedding.authority):.1g}")
    if asked.authority:
        for authority in (None, 1):
            one = robust.configure(solver=Feedback(preset="strong", authority=authority))
            show("its own" if authority is None else "full", one, sets, y, network)
            through(one, x[: asked.adaptive], y[: asked.adaptive], (2, 4, 8))
        print("no control")
        through(network, x[: asked.adaptive], y[: asked.adaptive], (2, 4, 8))
        return
    for strength in STRENGTHS:
        one = robust.configure(solver=Feedback(strength=strength))
        show(f"strength {strength}", one, sets, y, network)
    for name, solver in PARTS.items():
        show(name, robust.configure(solver=solver), sets, y, network)
        if asked.adaptive:
            through(robust.configure(solver=solver), x[: asked.adaptive], y[: asked.adaptive])
    if asked.elsewhere:
        for name, (cuts, kind, solver) in ELSEWHERE.items():
            other = clcnn.control(network, list(cuts), embedding=kind, solver=solver).fit(fit)
            show(name, other, sets, y, network)
        strong = robust.configure(solver=STRONG)
        show("strong, twice", Then(strong, strong), sets, y, network)
        pmp = clcnn.control(network, solver=PMP(iterations=5, lr=0.002)).fit(fit)
        show("PMP alone", pmp, sets, y, network)
        show("strong, then PMP", Then(strong, pmp), sets, y, network)
    # As if the network answered to every pixel alike: k = 1, and the clean level that goes with it.
    everywhere = torch.eye(fit[0].numel()).reshape(-1, *fit.shape[1:])
    embedding.hear([everywhere], list(torch.split(fit, 250)))
    deaf = robust.configure(solver=Feedback(preset="strong", authority=1))
    show("white only", deaf, sets, y, network)


class Then(torch.nn.Module):
    """The input as the first control leaves it, under the second."""

    def __init__(self, first: clcnn.ControlledModule, second: clcnn.ControlledModule) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        """The second's answer."""
        answer: Tensor = self.second(x + self.first.solve(x).u[0])
        return answer


def some(data: str, split: str, n: int, asked: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """n images of a split, drawn by the seed."""
    x, y = load(data, split, asked.root).tensors()  # type: ignore[arg-type]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(asked.seed))[:n]
    return x[order], y[order]


def attacked(network: torch.nn.Module, x: Tensor, y: Tensor, seed: int) -> dict[str, Tensor]:
    """The images and what attacks make of them."""
    sets = {"clean": x}
    for eps in (2, 4, 8):
        sets[f"FGSM {eps}"] = FGSM(eps / 255)(network, x, y)
    for eps in (1, 2, 4, 8):
        sets[f"PGD {eps}"] = PGD(eps / 255)(network, x, y)
    sets["CW 4"] = CW(4 / 255)(network, x, y)
    gaussian = Noise(1.0, distribution="gaussian", std=0.08, seed=seed)
    return sets | {"noise": gaussian(network, x, y)}


def show(
    name: str, model: torch.nn.Module, sets: Mapping[str, Tensor], y: Tensor, plain: torch.nn.Module
) -> None:
    """Accuracies in per cent, and the time in plain forwards."""
    shares = [100 * float(right(model, x, y).double().mean()) for x in sets.values()]
    cost = seconds(model, sets["clean"][:64]) / seconds(plain, sets["clean"][:64])
    print(
        f"{name:16}" + "".join(f"{share:8.1f}" for share in shares) + f"  {cost:6.2f}", flush=True
    )


def through(robust: torch.nn.Module, x: Tensor, y: Tensor, radii: tuple[int, ...] = (1, 2)) -> None:
    """Accuracy under 20-step PGD that differentiates through the control."""
    for eps in radii if len(x) else ():
        attack = PGD(eps / 255)
        controlled = isinstance(robust, clcnn.ControlledModule)
        x_adv = (ExactGradient(attack) if controlled else attack)(robust, x, y)
        share = 100 * float(right(robust, x_adv, y).double().mean())
        print(f"  through it, PGD {eps}: {share:.1f} of {len(x)} images", flush=True)


def right(model: torch.nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images are classified correctly."""
    pairs = zip(torch.split(x, 250), torch.split(y, 250), strict=True)
    return torch.cat([is_correct(model, images, labels) for images, labels in pairs])


def seconds(model: torch.nn.Module, x: Tensor, rounds: int = 5) -> float:
    """The shortest of several calls."""
    times = []
    with torch.no_grad():
        for _ in range(rounds):
            start = time.perf_counter()
            model(x)
            times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    main()
