"""Theorem 1 in a figure: the error of the greedy control, and its bound, against t, c and r.

Run ``python examples/theory.py --out theory.png``. The upper row is a nearly orthogonal linear
network, where the bound is an inequality; the lower row an orthogonal one, where it is an equality.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clcnn.experiments.theorem import LinearNetwork, Settings, networks

# Okabe and Ito's palette: told apart with any colour vision, and markers differ as well.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
MARKERS = ("o", "s", "^", "D")


Curves = dict[str, list[tuple[float, float, float]]]
"""For each curve, by its label: (place on the axis, mean error, mean bound)."""


@dataclass
class Sweep:
    """Evaluates a network, and remembers the largest error / bound of any sample it has seen."""

    network: LinearNetwork
    worst: float = 0.0

    def curves(
        self,
        labels: Sequence[str],
        places: Sequence[float],
        settings: Callable[[int, float], tuple[int, float, int]],
    ) -> Curves:
        """Mean error and bound over samples at settings(curve, place) = (t, c, r)."""
        found: Curves = {}
        for i, label in enumerate(labels):
            found[label] = []
            for place in places:
                t, c, r = settings(i, place)
                error, bound = self.network.error(t, c, r), self.network.bound(t, c, r)
                self.worst = max(self.worst, (error / bound).max().item())
                found[label].append((place, error.mean().item(), bound.mean().item()))
        return found


def draw_panel(axes: Any, curves: Curves, exact: bool) -> None:
    """Markers for simulated errors, dashed lines for bounds, solid ones for the equality."""
    for (label, points), colour, marker in zip(curves.items(), COLOURS, MARKERS, strict=False):
        places, errors, bounds = zip(*points, strict=True)
        style = "-" if exact else "--"
        axes.plot(places, bounds, style, color=colour, linewidth=1.4)
        line = "none" if exact else "-"
        axes.plot(
            places,
            errors,
            marker,
            linestyle=line,
            color=colour,
            markersize=4,
            linewidth=1,
            label=label,
        )
    from matplotlib import ticker

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.grid(visible=True, which="major", color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def print_table(title: str, variable: str, curves: Curves) -> None:
    """The numbers of one panel, three places of each curve."""
    print(f"\n{title}, against {variable}")
    print(f"  {'curve':<12} {variable:>8} {'error':>11} {'bound':>11} {'ratio':>7}")
    for label, points in curves.items():
        for place, error, bound in (points[0], points[len(points) // 2], points[-1]):
            print(f"  {label:<12} {place:8.3g} {error:11.4e} {bound:11.4e} {error / bound:7.4f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Compute, print, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("theory.png"), help="the figure to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--depth", type=int, default=8, help="layers T")
    parser.add_argument("--width", type=int, default=32, help="dimension d of a state")
    parser.add_argument("--rank", type=int, default=4, help="dimension r of the data's subspace")
    parser.add_argument("--samples", type=int, default=64, help="perturbations of length 1")
    parser.add_argument("--spread", type=float, default=0.01, help="of the singular values about 1")
    args = parser.parse_args(arguments)
    for name, lowest in (("depth", 3), ("width", 2), ("rank", 1), ("samples", 1)):
        if getattr(args, name) < lowest:
            parser.error(f"--{name} is {getattr(args, name)}; expected at least {lowest}")
    if args.rank > args.width or not 0 < args.spread < 1:
        parser.error("expected --rank at most --width, and --spread between 0 and 1")
    try:
        import matplotlib
    except ImportError:
        parser.error("the figure needs matplotlib: pip install 'clcnn[figures]'")
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.lines import Line2D

    T, r = args.depth, args.rank
    strengths = [0.0, 0.1, 0.5, 2.0]
    depths = sorted({1, 2, T // 2, T})
    costs = [10 ** (k / 4) for k in range(-8, 9)]
    ranks = sorted({*(2**k for k in range(int(math.log2(args.width)) + 1)), args.width})
    shallow = 3  # for the panel against r: deeper, c hardly matters any more

    figure, grid = plt.subplots(2, 3, figsize=(12, 6.8), sharey="col", layout="constrained")
    exact, near = networks(Settings(T, args.width, args.rank, args.samples, args.spread, args.seed))
    titles = (f"Nearly orthogonal layers (σ = 1 ± {args.spread:g})", "Orthogonal layers")
    for row, network, title in zip(grid, (near, exact), titles, strict=True):
        sweep = Sweep(network)
        panels = {
            "t": sweep.curves(
                [f"c = {c:g}" for c in strengths],
                range(1, T + 1),
                lambda i, t: (int(t), strengths[i], r),
            ),
            "c": sweep.curves([f"t = {t}" for t in depths], costs, lambda i, c: (depths[i], c, r)),
            "r": sweep.curves(
                [f"c = {c:g}" for c in strengths],
                ranks,
                lambda i, k: (shallow, strengths[i], int(k)),
            ),
        }
        for axes, (variable, curves) in zip(row, panels.items(), strict=True):
            draw_panel(axes, curves, network.is_orthogonal)
            print_table(title, variable, curves)
        print(f"  largest error / bound of any sample: {sweep.worst:.12f}")
        layers = range(1, T + 1)
        free = [network.uncontrolled(t).mean().item() for t in layers]
        row[0].plot(layers, free, ":", color="0.35", linewidth=1.6, label="no control")
        row[0].set_ylabel(title + "\n" + r"squared error  $\|\bar{x}_t - x_t\|^2$")
        row[1].set_xscale("log")
        row[2].set_xscale("log", base=2)
        row[2].xaxis.set_major_formatter("{x:g}")
    for axes, corner, title, name in zip(
        grid.T,
        ("upper right", "upper left", "upper left"),
        (
            f"Error after t layers (r = {r})",
            f"Smaller c, smaller error (r = {r})",
            f"Smaller r, smaller error (t = {shallow})",
        ),
        (
            "layer t",
            "control regularization c",
            f"dimension r of the subspace (of d = {args.width})",
        ),
        strict=True,
    ):
        axes[0].set_title(title, fontsize=11)
        axes[0].legend(fontsize=8, framealpha=0.9, edgecolor="none", loc=corner)
        axes[1].set_xlabel(name)
    grid[0, 0].get_legend().set_bbox_to_anchor((1, 0.93))  # below the line of no control
    keys = [
        Line2D(
            [], [], color="0.3", marker="o", markersize=4, label="error, simulated (mean over z)"
        ),
        Line2D([], [], color="0.3", linestyle="--", label="bound of Theorem 1 (upper row)"),
        Line2D([], [], color="0.3", label="equality of Theorem 1 (lower row)"),
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=3, frameon=False)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=96)
    print(f"\nwrote {args.out}")


if __name__ == "__main__":
    main()
