"""The toy of the paper's Figure 2: train, attack, control, and draw the four panels.

    python examples/toy.py --out toy.png

The attack (FGSM) is made on the uncontrolled network: the paper's threat, called oblivious.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clcnn.experiments.toy import Toy, accuracy, make, solve
from clcnn.statistics import wilson
from clcnn.types import Solution

CLEAN = ("#c23b22", "#2b5fb3")
PERTURBED = ("black", "#8a8a8a")
REGION = ("#f2c230", "#35a06a")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("toy.png"), help="where the figure goes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=1000, help="of Algorithm 1")
    parser.add_argument("--lr", type=float, default=0.01)
    arguments = parser.parse_args()
    if arguments.iterations < 0 or arguments.lr <= 0:
        parser.error("expected --iterations of at least 0 and --lr above 0")
    if importlib.util.find_spec("matplotlib") is None:
        parser.error("the figure needs matplotlib: pip install 'clcnn[figures]'")
    torch.set_num_threads(1)  # the tensors are tiny: more threads only wait for each other
    print("Training a residual network on 1,000 samples and fitting two auto-encoders ...")
    toy = make(arguments.seed, iterations=arguments.iterations, lr=arguments.lr)
    print(f"Controlling {len(toy.y)} perturbed test samples, {arguments.iterations} iterations ...")
    solution = solve(toy)
    report(toy, solution)
    draw(toy, solution, arguments.out)
    print(f"Figure: {arguments.out}")


def report(toy: Toy, solution: Solution) -> None:
    """Accuracies with n and 95 % intervals, and the cost before and after."""
    n = len(toy.y)
    rows = {
        "clean": toy.network(toy.x),
        "clean, controlled": toy.robust(toy.x),
        f"FGSM {toy.eps:g} (oblivious)": toy.network(toy.x_eps),
        f"FGSM {toy.eps:g} (oblivious), controlled": solution.logits,
    }
    print(f"\n{'':38s} accuracy   95 % interval   n")
    for name, logits in rows.items():
        share = accuracy(logits, toy.y)
        low, high = wilson(share, n)
        print(f"{name:38s} {100 * share:7.1f} %  {100 * low:5.1f} to {100 * high:5.1f}   {n}")
    before = toy.robust.configure(solver=type(toy.robust.solver)(iterations=0)).solve(toy.x_eps)
    print(f"\nmean cost J: {before.J.mean():.4f} before, {solution.J.mean():.6f} after")
    print("paper: 86 % to 100 %\n")


def draw(toy: Toy, solution: Solution, out: Path) -> None:
    """Panels (a) to (d): states at t = 0 and t = 1, before and after the control."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with torch.no_grad():
        hidden = toy.network.residual
        controlled_0 = toy.x_eps + solution.u[0]
        controlled_1 = hidden(controlled_0) + solution.u[1]
        clean = (toy.x, hidden(toy.x))
        before, after = (toy.x_eps, hidden(toy.x_eps)), (controlled_0, controlled_1)
    hit = accuracy(toy.network(toy.x_eps), toy.y), accuracy(solution.logits, toy.y)
    panels = [
        ("(a)", r"$x_0,\ x_{\epsilon,0}$", 0, before),
        ("(b)", r"$x_1,\ x_{\epsilon,1}$", 1, before),
        ("(c)", r"controlled $\bar x_{\epsilon,0}$", 0, after),
        ("(d)", r"controlled $\bar x_{\epsilon,1}$", 1, after),
    ]
    figure, axes = plt.subplots(1, 4, figsize=(15, 4.3), layout="constrained")
    for axis, (letter, title, t, states) in zip(axes, panels, strict=True):
        corners = torch.cat([clean[t], before[t], after[t]])
        low, high = corners.amin(0) - 0.25, corners.amax(0) + 0.25
        background(axis, toy, t, low, high)
        for label in (0, 1):
            which = toy.y == label
            scatter(axis, clean[t][which], CLEAN[label], "o", f"clean, class {label + 1}")
            scatter(axis, states[t][which], PERTURBED[label], "x", f"perturbed, class {label + 1}")
        axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])
        share = hit[0] if states is before else hit[1]
        axis.set_title(f"{letter} {title}\naccuracy {100 * share:.1f} %", fontsize=12)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=4, frameon=False, markerscale=2
    )
    figure.suptitle(
        f"Close-loop control of {len(toy.y)} samples under FGSM (oblivious, epsilon {toy.eps:g}); "
        "yellow and green: the network's classes, darker: higher reconstruction loss",
        fontsize=11,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=90)
    plt.close(figure)


def scatter(axis: Any, points: Tensor, colour: str, marker: str, label: str) -> None:
    size = 9 if marker == "o" else 13
    x, y = points[:, 0].numpy(), points[:, 1].numpy()
    axis.scatter(x, y, s=size, c=colour, marker=marker, linewidths=0.8, label=label, alpha=0.9)


@torch.no_grad()
def background(axis: Any, toy: Toy, t: int, low: Tensor, high: Tensor) -> None:
    """The two predicted classes, lighter where the reconstruction loss is lower."""
    import numpy as np
    from matplotlib.colors import to_rgb

    side = 240
    across = torch.linspace(float(low[0]), float(high[0]), side)
    up = torch.linspace(float(low[1]), float(high[1]), side)
    grid = torch.cartesian_prod(across, up)
    logits = toy.network(grid) if t == 0 else toy.network.head(grid)
    loss = toy.robust.embeddings[t].energy(grid)
    shade = (loss / loss.quantile(0.9)).clamp(0, 1).sqrt().unsqueeze(1).numpy()
    colours = np.array([to_rgb(colour) for colour in REGION])[logits.argmax(1).numpy()]
    light, dark = 1 - 0.25 * (1 - colours), 0.55 * colours
    image = ((1 - shade) * light + shade * dark).reshape(side, side, 3).transpose(1, 0, 2)
    extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
    axis.imshow(image, origin="lower", extent=extent, aspect="auto", interpolation="bilinear")


if __name__ == "__main__":
    main()
