"""The figure of `clcnn bench`: costs, growth, fitting, accuracy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from clcnn.errors import DataError

_BLUE, _ORANGE, _GREY = "#2a6fbb", "#d9822b", "#8a8f98"


def draw(result: dict[str, Any], path: Path) -> None:
    """One panel for each section that ``result`` holds."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise DataError(
            "the figure needs matplotlib, which is not installed: pip install 'clcnn[figures]'."
        ) from error
    mpl.use("Agg", force=False)
    from matplotlib import pyplot as plt

    panels = [(name, panel) for name, panel in _PANELS.items() if result.get(name)]
    if not panels:
        raise DataError("there is nothing to draw: no section was measured.")
    rows = (len(panels) + 1) // 2
    figure, axes = plt.subplots(
        rows, min(2, len(panels)), figsize=(13, 4.6 * rows), squeeze=False, layout="constrained"
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for (name, panel), axis in zip(panels, axes.flat, strict=False):
        panel(axis, result[name])
        axis.spines[["top", "right"]].set_visible(False)
    settings = result["settings"]
    figure.suptitle(
        f"{settings['network']}, batch {settings['batch']}, {result['machine']}, "
        f"energy {settings['energy']:g}",
        fontsize=11,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _costs(axis: Any, rows: list[dict[str, Any]]) -> None:
    ordered = sorted(rows, key=lambda row: row["ratio"])
    ratios = [row["ratio"] for row in ordered]
    spread = [
        [max(0.0, row["ratio"] - row["low"]) for row in ordered],
        [max(0.0, row["high"] - row["ratio"]) for row in ordered],
    ]
    colours = [_ORANGE if "letter" in row["name"] else _BLUE for row in ordered]
    axis.barh([row["name"] for row in ordered], ratios, xerr=spread, color=colours)
    for place, row in enumerate(ordered):
        axis.text(row["high"] * 1.06, place, f"{row['ratio']:.3g}", va="center", fontsize=9)
    axis.set_xscale("log")
    axis.set_xlim(0.7, 2.2 * max(ratios))
    axis.set_xlabel("multiples of one plain forward pass (quartiles)")
    axis.set_title("What control costs")


def _growth(axis: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        first = row["points"][0]
        sizes = [point["size"] / first["size"] for point in row["points"]]
        cost = [point["ratio"] / first["ratio"] for point in row["points"]]
        axis.plot(sizes, cost, marker="o", label=f"{row['with']}: exponent {row['exponent']:.2f}")
    limit = max(p["size"] / row["points"][0]["size"] for row in rows for p in row["points"])
    axis.plot([1, limit], [1, limit], color=_GREY, linestyle="--", label="linear")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("size, in multiples of the smallest")
    axis.set_ylabel("cost, in multiples of the smallest")
    axis.legend(frameon=False, fontsize=9)
    axis.set_title("How the cost grows")


def _leaving(axis: Any, found: dict[str, Any]) -> None:
    rows = found["times"][1:]
    axis.bar([row["name"] for row in rows], [row["ratio"] for row in rows], color=_BLUE)
    for place, row in enumerate(rows):
        words = f"{row['ratio']:.3g}\n{row['mean_steps']:.2g} steps"
        axis.text(place, row["ratio"], words, ha="center", va="bottom", fontsize=9)
    axis.set_ylim(0, 1.3 * max(row["ratio"] for row in rows))
    axis.set_ylabel("multiples of one plain forward pass")
    axis.set_title("Samples within the tolerance leave early")


def _fitting(axis: Any, found: dict[str, Any]) -> None:
    rows = found["rows"]
    names = sorted({row["method"] for row in rows})
    ranks = sorted({row["rank"] for row in rows})
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        at = {row["rank"]: row["seconds"] for row in rows if row["method"] == name}
        x = [i + (place - (len(names) - 1) / 2) * width for i, r in enumerate(ranks) if r in at]
        axis.bar(x, [at[r] for r in ranks if r in at], width, label=name)
    axis.set_xticks(range(len(ranks)), [f"rank {r}" for r in ranks])
    axis.set_yscale("log")
    axis.set_ylabel("seconds")
    axis.legend(frameon=False, fontsize=9)
    axis.set_title("Fitting a linear embedding")


def _accuracy(axis: Any, rows: list[dict[str, Any]]) -> None:
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    defences = list(dict.fromkeys(row["defence"] for row in rows))
    width = 0.8 / len(defences)
    for place, defence in enumerate(defences):
        mine = [
            next(r for r in rows if (r["attack"], r["defence"]) == (a, defence)) for a in attacks
        ]
        x = [i + (place - (len(defences) - 1) / 2) * width for i in range(len(attacks))]
        spread = [
            [100 * (row["accuracy"] - row["low"]) for row in mine],
            [100 * (row["high"] - row["accuracy"]) for row in mine],
        ]
        axis.bar(x, [100 * row["accuracy"] for row in mine], width, yerr=spread, label=defence)
    axis.set_xticks(range(len(attacks)), ["clean" if a == "none" else a for a in attacks])
    axis.set_ylim(0, 100)
    axis.set_ylabel(f"accuracy in %, n = {rows[0]['n']} (95 % interval)")
    axis.legend(frameon=False, fontsize=9)
    axis.set_title("Accuracy (attacks that ignore the control)")


_PANELS: dict[str, Callable[[Any, Any], None]] = {
    "costs": _costs,
    "growth": _growth,
    "leaving": _leaving,
    "fitting": _fitting,
    "accuracy": _accuracy,
}
