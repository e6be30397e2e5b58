"""The first lines of the page: the method, what was measured, and how to read it."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import CORRUPTION, WORST
from clcnn.report import words
from clcnn.report.blocks import Block, Paragraph
from clcnn.report.gather import Experiment, called

_METHOD = (
    "A trained network under close-loop control (CLC-NN: Chen, Li and Zhang, Towards Robust Neural "
    "Networks via Close-loop Control, ICLR 2021): at inference a small control is added to chosen "
    "hidden states, so that they stay near the manifold of clean data; no weight changes."
)


def summary_blocks(experiments: Sequence[Experiment], files: int) -> list[Block]:
    """What was done and measured, and how to read it; ``files`` CSV files stand beside stores."""
    # A cell that stands in several tables was measured once.
    results = {(e.store, r.cell): r for e in experiments for r in e.results}.values()
    samples = sum(r.n for r in results)
    plans = [_quoted(e, experiments) for e in experiments if not e.is_tuning]
    if tuned := len(experiments) - len(plans):
        plans.append(words.several(tuned, "search for settings", "searches for settings"))
    beside = " or, where that is said, from a CSV file" if files else ""
    blocks: list[Block] = [
        Paragraph(f"{_METHOD} {_radii(experiments)}".strip(), "lead"),
        Paragraph(
            f"{words.several(len(results), 'cell')} of {words.listed(plans)}, "
            f"{words.several(samples, 'answer')} stored. Accuracies are in per cent with 95 % "
            f"intervals; every figure comes from the stores named at the end{beside}."
        ),
        Paragraph(
            "An oblivious attack is computed on the uncontrolled network, as all of the paper's "
            "are; an adaptive one knows of the control, and counts a sample as lost if either "
            "finds a way. A defence is worth what the adaptive figures leave of it; stronger "
            "attacks may leave less."
        ),
    ]
    quick = [_quoted(e, experiments) for e in experiments if e.sample]
    if quick:
        blocks.append(
            Paragraph(
                f"{words.listed(quick)}: the quick form, on few of the "
                "images that come with the package. Its intervals are wide, and its embeddings "
                "were fitted on fewer images than the paper's.",
                "warning",
            )
        )
    blocks += [
        Paragraph(
            f"{_quoted(e, experiments)}: {words.listed(e.ways)}, which is not the whole "
            "experiment.",
            "warning",
        )
        for e in experiments
        if e.ways
    ]
    return blocks


def _quoted(experiment: Experiment, experiments: Sequence[Experiment]) -> str:
    name = f"`{experiment.plan}`"
    return called(experiment, experiments).replace(experiment.plan, name, 1)


def _radii(experiments: Sequence[Experiment]) -> str:
    """What an epsilon of the tables is."""
    norms = {
        attack.get("norm", "linf")
        for experiment in experiments
        for attack in experiment.described.get("attacks", {}).values()
        if attack.get("kind") not in (WORST, CORRUPTION)
    }
    if not norms:
        return ""
    ball = "an ℓ∞ ball" if norms <= {"linf"} else "a ball of the norm that its settings name"
    return (
        f"An attack stays within {ball} around the image, of radius ε in 1/255 of a pixel's range."
    )
