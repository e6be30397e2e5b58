"""Measure the attacks: speed beside foolbox's and ART's, and what they leave of a trained network.

    python benchmarks/attacks.py                                  # speed, on a ResNet-20
    python benchmarks/attacks.py --art 10                         # CW beside ART's as well
    python benchmarks/attacks.py --network resnet20-cifar10 --n 1000

Both libraries attack the same images of the same network in one run, in turn, so that a busy
machine slows both alike; the ratio of their times is given with its spread.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import clcnn
from clcnn import models
from clcnn.attacks import CW, FGSM, PGD, Attack, Manifold, departure
from clcnn.data import load, sample
from clcnn.statistics import wilson

PIXEL = 1 / 255

# What the paper's Table 1 gives, and what the shipped standard ResNet-20 is expected to show.
TARGETS = (
    ("PGD, 20 steps", 2, 0, 0, 2),
    ("FGSM", 2, 21, 15, 30),
    ("CW", 4, 0, 0, 3),
    ("Manifold", 8, 1, 0, 5),
)


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", help="a name from clcnn.models.list(): what attacks leave")
    parser.add_argument("--n", type=count, default=1000, help="test images for --network")
    parser.add_argument("--test-set", action="store_true", help="the test set, not the sample")
    parser.add_argument("--root", help="where the data sets are, for --test-set")
    parser.add_argument("--repeats", type=count, default=5, help="of each timing")
    parser.add_argument("--speed-images", type=count, default=100, help="images in each timing")
    parser.add_argument(
        "--art", type=count, default=0, metavar="N", help="CW and ART's on N images"
    )
    parser.add_argument("--skip-speed", action="store_true")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    asked = parser.parse_args()

    network = models.load(asked.network) if asked.network else untrained()
    result: dict[str, Any] = {"network": asked.network or "resnet20, not trained"}
    if asked.network:
        data = network.card.data
        (x, y), train = images(data, asked.test_set, asked.root)
        result["images"] = f"{data}, {'test set' if asked.test_set else 'shipped sample'}"
        result["left"] = left_by_attacks(network, x[: asked.n], y[: asked.n], train)
    if not asked.skip_speed:
        x = sample().test[0][: asked.speed_images]
        result["speed"] = speed(network, x, asked.repeats)
    if asked.art:
        x, y = sample().test
        result["cw"] = beside_art(network, *some_right(network, x, y, asked.art))
    print(json.dumps(result, indent=2) if asked.json else tables(result))


def count(text: str) -> int:
    """A whole number of at least 1, from the command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text!r}")
    return int(text)


def untrained() -> nn.Module:
    """A ResNet-20 with random weights: as fast as a trained one."""
    torch.manual_seed(0)
    return models.build("resnet20").eval()


def images(data: str, test_set: bool, root: str | None) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Test images with labels, and training images to fit the embedding on."""
    if test_set:
        return load(data, "test", root).tensors(), load(data, "train", root).tensors()[0]
    shipped = sample(data)
    return shipped.test, shipped.train[0]


def left_by_attacks(
    network: nn.Module, x: Tensor, y: Tensor, train: Tensor
) -> list[dict[str, Any]]:
    """Accuracy under each attack, in percent, with the 95 % interval of Wilson."""
    E = clcnn.LinearEmbedding(energy=0.99).fit([train])
    attacks: dict[str, Callable[[float], Attack]] = {
        "PGD, 20 steps": PGD,
        "FGSM": FGSM,
        "CW": CW,
        "Manifold": lambda eps: Manifold(eps, E),
    }
    rows = [row("clean", 0, correct(network, x, y))]
    for name, eps, paper, least, most in TARGETS:
        started = time.perf_counter()
        x_adv = attacks[name](eps * PIXEL)(network, x, y)
        seconds = time.perf_counter() - started
        measured = row(name, eps, correct(network, x_adv, y))
        measured |= {"paper": paper, "expected": [least, most], "seconds": round(seconds, 1)}
        measured["as_expected"] = least <= measured["accuracy"] <= most
        if name == "Manifold":
            measured["outside_subspace"] = float(departure(E, x, x_adv).mean())
            measured["rank"] = int(E.V.shape[1])
        rows.append(measured)
    return rows


def row(name: str, eps: float, right: Tensor) -> dict[str, Any]:
    """One line of the table."""
    share = float(right.double().mean())
    low, high = (100 * bound for bound in wilson(share, len(right)))
    return {"attack": name, "eps": eps, "accuracy": 100 * share, "low": low, "high": high}


@torch.no_grad()
def correct(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Which images the network gets right."""
    return torch.cat([network(part).argmax(1) for part in x.split(250)]) == y


def some_right(network: nn.Module, x: Tensor, y: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """The first n images that the network gets right."""
    places = correct(network, x, y).nonzero().squeeze(1)[:n]
    return x[places], y[places]


def speed(network: nn.Module, x: Tensor, repeats: int) -> list[dict[str, Any]]:
    """Seconds of clcnn and foolbox; labels are what the network says, so that none is left out."""
    import foolbox

    with torch.no_grad():
        y = network(x).argmax(1)
    eps = 2 * PIXEL
    fmodel = foolbox.PyTorchModel(network, bounds=(0, 1))
    pgd = foolbox.attacks.LinfProjectedGradientDescentAttack(
        steps=20, abs_stepsize=eps / 4, random_start=False
    )
    pairs = {
        "FGSM": (FGSM(eps), foolbox.attacks.LinfFastGradientAttack()),
        "PGD, 20 steps": (PGD(eps), pgd),
    }
    rows = []
    for name, (ours, theirs) in pairs.items():

        def run_ours(attack: Attack = ours) -> Tensor:
            return attack(network, x, y)

        def run_theirs(attack: Any = theirs) -> Tensor:
            clipped: Tensor = attack(fmodel, x, y, epsilons=eps)[1]
            return clipped

        broken = [int((~correct(network, run(), y)).sum()) for run in (run_ours, run_theirs)]
        times = [(timed(run_ours), timed(run_theirs)) for _ in range(repeats)]
        ratios = [mine / other for mine, other in times]
        rows.append(
            {
                "attack": name,
                "images": len(x),
                "broken": broken,
                "seconds": statistics.median(mine for mine, _ in times),
                "seconds_foolbox": statistics.median(other for _, other in times),
                "ratio": statistics.median(ratios),
                "ratio_range": [min(ratios), max(ratios)],
            }
        )
    return rows


def timed(run: Callable[[], Tensor]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def beside_art(network: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """CW and ART's CarliniLInfMethod with the same settings on the same images, eps = 4."""
    from art.attacks.evasion import CarliniLInfMethod
    from art.estimators.classification import PyTorchClassifier

    eps = 4 * PIXEL
    classifier = PyTorchClassifier(
        network, nn.CrossEntropyLoss(), tuple(x.shape[1:]), 10, clip_values=(0.0, 1.0)
    )
    started = time.perf_counter()
    found = CarliniLInfMethod(classifier, verbose=False).generate(x.numpy(), y.numpy())
    seconds_art = time.perf_counter() - started
    x_art = torch.from_numpy(found)
    near = ((x_art - x).abs().flatten(1).amax(1) <= eps) & ~correct(network, x_art, y)
    clipped = ~correct(network, x + (x_art - x).clamp(-eps, eps), y)
    started = time.perf_counter()
    x_adv = CW(eps)(network, x, y)
    return {
        "images": len(x),
        "broken": int((~correct(network, x_adv, y)).sum()),
        "broken_art": int(near.sum()),
        "broken_art_clipped": int(clipped.sum()),
        "seconds": time.perf_counter() - started,
        "seconds_art": seconds_art,
    }


def tables(result: dict[str, Any]) -> str:
    """The result as text."""
    lines = [f"network: {result['network']}"]
    if "left" in result:
        lines += [
            f"images: {result['images']}; accuracy in percent with its 95 % interval (Wilson)",
            f"{'attack':<16}{'eps':>5}{'accuracy':>10}{'interval':>18}{'paper':>7}{'expected':>12}",
        ]
        for r in result["left"]:
            line = f"{r['attack']:<16}{r['eps']:>5}{r['accuracy']:>10.1f}"
            line += f"{'{:.1f} to {:.1f}'.format(r['low'], r['high']):>18}"
            if "paper" in r:
                least, most = r["expected"]
                line += f"{r['paper']:>7}{f'{least} to {most}':>12}"
                line += "" if r["as_expected"] else "   NOT as expected"
            lines.append(line)
    for r in result.get("speed", ()):
        low, high = r["ratio_range"]
        lines.append(
            f"{r['attack']} on {r['images']} images: {r['seconds']:.2f} s, foolbox "
            f"{r['seconds_foolbox']:.2f} s; time ratio {r['ratio']:.2f} ({low:.2f} to {high:.2f}); "
            f"broken {r['broken'][0]} and {r['broken'][1]}"
        )
    if "cw" in result:
        r = result["cw"]
        lines.append(
            f"CW at 4 on {r['images']} images: broken {r['broken']} in {r['seconds']:.1f} s; ART "
            f"{r['broken_art']} ({r['broken_art_clipped']} clipped to eps) in "
            f"{r['seconds_art']:.1f} s"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
