"""Names and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from clcnn.corruptions import NAMES
from clcnn.evaluation.plan import UNBOUNDED

DEFENCES = {
    "none": "no control",
    "linear": "CLC-NN, linear",
    "nonlinear": "CLC-NN, nonlinear",
    "reactive": "reactive",
    "pmp": "PMP",
    "feedback": "feedback",
    "feedback-strong": "feedback, strong",
    "feedback-free": "feedback, full authority",
    "filter": "filter alone",
    "filter-strong": "filter alone, strong",
    "layerwise": "layer-wise",
    "linear-reactive": "CLC-NN − reactive",
    "literal": "all of the authors' habits",
    "literal-digits": "float32 throughout",
    "literal-centring": "centred by the test batch",
    "literal-rank": "authors' rank rule",
    "literal-weights": "averages over features",
    "literal-fit": "fitted on 6,500 correct images",
    "literal-tuning": "chosen on test images",
    "literal-reactive": "reactive, authors' rank rule",
    "literal-layerwise": "layer-wise, authors' rank rule",
    "literal-longer": "CLC-NN, nonlinear, 20 iterations",
    "literal-more": "20 iterations of 0.001",
    "literal-rank-more": "authors' rank rule, 20 iterations of 0.001",
    "literal-input": "the input's subspace by the authors' rank rule",
}
ATTACKS = {
    "none": "Clean",
    "manifold": "Manifold",
    "fgsm": "FGSM",
    "pgd": "PGD",
    "cw": "CW",
    "noise": "Noise",
    "gaussian": "Gaussian noise",
    "cw-literal": "CW of the authors",
    "manifold-literal": "Manifold of the authors",
    "manifold-nearest": "Authors' manifold, other networks",
    "pgd-random": "PGD from a random start",
    "square": "Square",
    "autoattack": "AutoAttack",
    "stealth": "Stealth",
    "margin": "PGD on the margin",
    "unrolled": "unrolled PGD",
    "constant": "PGD, controls constant",
    "long": "longer PGD",
    "persistent": "Longer search",
    "worst": "Worst case",
    **{name: name.replace("_", " ").capitalize() for name in NAMES},
    "jpeg_compression": "JPEG",
}
EXPERIMENTS = {
    "adaptive": "An attacker who knows of the control",
    "fashion": "Fashion-MNIST",
    "feedback": "One-pass feedback control",
    "corruptions": "Common corruptions",
    "demo": "A demonstration",
    "detector": "Telling perturbed images from clean ones",
    "rivals": "Feedback control and PMP, when the attacker knows of them",
    "robust": "Networks that feedback control should leave alone",
    "strength": "The strength of feedback control",
    "literal": "What the authors' code does otherwise, switch by switch",
    "manifold": "Manifold attack, layer by layer",
    "theory": "Theorem 1",
    "toy": "The toy of Figure 2",
    "toy-states": "The toy of Figure 2: its four panels",
}
PARTS = {"toy-states": "toy"}
"""Files that stand in another's section, if that is there."""

ABOUT = {
    "adaptive": "Worst case: an image counts as withstood if no attack of the set misleads the "
    "network. Who knows of the control differentiates it straight through and unrolled, "
    "stays within what the embeddings do not notice, and searches without gradients. Unrolled, "
    "the gradient of a control that iterates is exact; straight through it holds the controls "
    "constant. The longer "
    "search (by the margin of the logits, straight through alone, from two random starts, in more "
    "and smaller steps) asks how near the worst case is to what can be found.",
    "demo": "Noise is Gaussian, with half of epsilon as its standard deviation; who "
    "knows of the control draws once more for what the first draw did not mislead.",
    "feedback": "Feedback control is ours, not the paper's: one pass at the input, which takes out "
    "as much as each image's own residual calls for. `filter alone` is that; `feedback` has a "
    "small network behind the filter that learned through the classifier.",
    "rivals": "PMP has here the embeddings that `clcnn.control` picks by itself, not the principal "
    "components of CLC-NN, linear; both defences meet the attacks of plan `feedback`.",
    "literal": "Most rows change one thing of CLC-NN, linear: products in every digit of float32 "
    "(which changes nothing where the processor does not multiply bfloat16, see the environments), "
    "states centred by the mean of the test batch, the rank by the sum of singular "
    "values (99 %), a running loss that averages over features, embeddings of more and "
    "correctly classified images, settings chosen on test images, more iterations (by our rank and "
    "by theirs); one has all of these at once. The others are the one-pass defences by the "
    "authors' rank rule, DenseNet-40 with more iterations, and networks without control; the last "
    "columns are the authors' own forms of two attacks.",
    "robust": "Networks that were trained to withstand attacks, or whose images are sharp "
    "drawings, go by what a filter takes away: feedback's authority is to leave them "
    "alone. Full authority is what it would do otherwise.",
    "strength": "floor-N: the least level of the filter, in thousandths, at the preset strong; "
    "strength-N: how strongly the filter alone acts (its presets are 16 and, strong, "
    "128); refined-N: the same with the shipped network behind the filter. Presets were "
    "chosen on held-out images, before any of these.",
    "theory": "Greedy control of two linear networks that share their layers. `uncontrolled`: the "
    "mean squared error that a perturbation of length 1 leaves at layer t without control; "
    "`error`: with control; `bound`: what Theorem 1 allows it. Each panel varies one of t, c "
    "(regularization) and r (the dimension of the data's subspace). Where the layers are "
    "orthogonal the theorem is an equality: the bound's line covers that of the error. In the "
    "other network the singular values differ from 1, and the bound is one.",
    "toy": "The paper has 86 % under attack and 100 % under control, on data that it does not "
    "describe. Here epsilon is the smallest on a grid that brings the training accuracy down to "
    "86 %. One seed of the curves, the network and the auto-encoders is shown; others differ, and "
    "`clcnn experiment toy --seed N` measures them.",
    "toy-states": "The paper's Figure 2: the perturbed states leave the curves that clean ones lie "
    "on, and control moves most of them back.",
}
"""What a reader of an experiment's table has to know about its rows."""


def defence(name: str) -> str:
    """A defence's name for people."""
    return DEFENCES.get(name, name)


def attack(name: str) -> str:
    """An attack's name for people."""
    return ATTACKS.get(name, name)


def level(eps: float) -> str:
    """An epsilon in 1/255, or a severity; the largest bounds nothing."""
    return "any" if eps >= UNBOUNDED else f"{eps:g}"


def percent(share: float) -> str:
    """A share in per cent."""
    return "–" if math.isnan(share) else f"{100 * share:.1f}"


def interval(low: float, high: float, signed: bool = False) -> str:
    """An interval of per cents."""
    if signed:
        return f"{_signed(low)} to {_signed(high)}"
    return f"{low:.1f}–{high:.1f}"


def points(value: float) -> str:
    """A difference in points, always with its sign."""
    return _signed(value)


def _signed(value: float) -> str:
    text = f"{value:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", "−")


def count(n: int) -> str:
    """A whole number with thin gaps that no line breaks at."""
    return f"{n:,}".replace(",", "\u202f")


SPLITS = {"heldout": "held-out", "test": "test", "train": "training"}


def images(n: int, split: str) -> str:
    """So many images of a split."""
    return f"{count(n)} {SPLITS.get(split, split)} images"


def several(n: int, one: str, many: str | None = None) -> str:
    """1 cell, 2 cells."""
    return f"{count(n)} {one if n == 1 else many or one + 's'}"


def listed(words: Iterable[str]) -> str:
    """a, b and c."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def slug(text: str) -> str:
    """Letters, digits and hyphens: for anchors and names of files."""
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in text.lower())
    return "-".join(part for part in kept.split("-") if part) or "part"
