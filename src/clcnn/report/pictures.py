"""Pictures of single images: input, attacked, control, controlled."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clcnn.data.catalogue import CATALOGUE
from clcnn.errors import ClcnnError
from clcnn.evaluation.bench import Bench, Cell
from clcnn.evaluation.defence import from_settings
from clcnn.evaluation.kinds import Kind
from clcnn.evaluation.plan import NONE, AttackPlan, Entry, Network, Plan
from clcnn.evaluation.results import Result
from clcnn.evaluation.store import Store
from clcnn.evaluation.watch import Silent
from clcnn.evaluation.workshop import Workshop
from clcnn.report import words
from clcnn.report.blocks import Block, Paragraph, Picture, Pictures, ReportError
from clcnn.report.gather import Experiment
from clcnn.report.png import to_png

MAGNIFIED = 10.0
"""How much larger than itself the control is drawn, around grey."""

_LIKED = ("pgd", "fgsm")
"""Attacks whose pictures are preferred, the first that is there."""


class _Telling(Silent):
    """Passes on what a person should read, such as a fit that takes its time."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell

    def say(self, sentence: str) -> None:
        self.tell(sentence)


@dataclass(frozen=True)
class _Subject:
    """The cell that is pictured, and the one without control beside it."""

    experiment: Experiment
    controlled: Result
    plain: Result


def picture_blocks(
    experiments: Sequence[Experiment],
    workshop: Workshop,
    count: int,
    tell: Callable[[str], None],
) -> list[Block]:
    """Pictures of the first cell that allows them, or a sentence that says why there are none."""
    subject = _subject(experiments)
    if subject is None:
        return [
            Paragraph(
                "No pictures: no store has an oblivious attack with and without control at the "
                "input.",
                "muted",
            )
        ]
    try:
        return [_pictured(subject, workshop, count, tell)]
    except (ClcnnError, OSError) as error:
        return [Paragraph(f"No pictures: {error}", "muted")]


def _subject(experiments: Sequence[Experiment]) -> _Subject | None:
    found = []
    for place, experiment in enumerate(experiments):
        at = {(r.network, r.defence, r.attack, r.eps): r for r in experiment.results if r.n}
        for order, result in enumerate(experiment.results):
            key = (result.network, NONE, result.attack, result.eps)
            cuts = experiment.cuts.get((result.network, result.defence), ("input",))
            attacked = result.threat == "oblivious" and not result.is_corruption
            usable = attacked and result.n and cuts[0] == "input"
            if (
                result.defence == NONE
                or not usable
                or key not in at
                or _by_batch(experiment, result)
            ):
                continue
            liked = _LIKED.index(result.attack) if result.attack in _LIKED else len(_LIKED)
            found.append((place, liked, -result.eps, order, _Subject(experiment, result, at[key])))
    return min(found, key=lambda row: row[:4])[-1] if found else None


def _by_batch(experiment: Experiment, result: Result) -> bool:
    """Whether an image's control depends on the batch, so that it cannot be shown by itself."""
    defences = experiment.described.get("defences", {})
    settings = defences.get(result.defence, {}).get(result.network, {})
    return bool(settings.get("centring", "batch") == "batch")


def _pictured(
    subject: _Subject, workshop: Workshop, count: int, tell: Callable[[str], None]
) -> Pictures:
    experiment, result = subject.experiment, subject.controlled
    try:
        plan = replan(experiment, result)
    except (KeyError, TypeError) as error:
        raise ReportError(
            f"the manifest in {experiment.store.name} is not one that this version can make the "
            f"plan from again ({error!r})."
        ) from error
    with Store(experiment.store, must_exist=True) as store:
        was = json.loads(store.read("SELECT settings FROM cells WHERE id = ?", result.cell)[0][0])
        if was["defence"].get("rounded") is False:
            workshop = workshop.unrounded()
        bench = Bench(plan, workshop, store.folder, _Telling(tell))
        cell = bench.cells()[0]
        _check_the_same(was, cell)
        stored = _rows(store, result.cell)
        unhelped = _rows(store, subject.plain.cell)
    samples, saved = choose(stored, unhelped, count)
    tell(
        f"making pictures of {len(samples)} images: the first chunk is attacked, and the control "
        "fitted, unless files beside the store have them; --pictures 0 does without"
    )
    chunk, defended, examples = bench.examples(cell, 0)
    robust = defended.robust
    if robust is None or robust.cuts[0] != "input":
        raise ReportError("the defence has no control at the input, so there is none to show.")
    places = chunk.places.tolist()
    rows = torch.tensor([places.index(sample) for sample in samples])
    x, x_adv = chunk.x[rows], examples.x[rows]
    if x.dim() != 4 or x.shape[1] not in (1, 3):
        raise ReportError(f"inputs of shape {tuple(x.shape[1:])} are no pictures.")
    solution = robust.solve(x_adv)
    u = solution.u[0]
    predicted = solution.logits.argmax(1).tolist()
    names = _classes(experiment.data.get(result.network, ""))
    pictures = [
        _row(
            (x[i], x_adv[i], u[i]),
            names(stored[sample][0]),
            names(unhelped[sample][1]),
            names(predicted[i]),
        )
        for i, sample in enumerate(samples)
    ]
    caption = (
        f"{experiment.network(result)}, {words.defence(result.defence)}, "
        f"{words.attack(result.attack)} at ε = {result.eps:g}/255: {_which(saved, len(samples))}. "
        f"Of all {words.count(result.n)} the controlled network has "
        f"{words.percent(result.accuracy)} % right, of which these few are no sign. The control is "
        f"drawn {MAGNIFIED:g} times as large as it is, around grey."
    )
    others = sum(a != stored[s][1] for a, s in zip(predicted, samples, strict=True))
    if others:
        caption += (
            f" {others} of {len(samples)} answers differ from the stored ones: code, weights, data "
            "or the processor are no longer those that the cell was measured with."
        )
    heads = ("input", "attacked", f"control × {MAGNIFIED:g}", "controlled")
    return Pictures(words.slug(f"pictures-{experiment.plan}"), caption, heads, pictures)


def _check_the_same(was: Mapping[str, Any], now: Cell) -> None:
    """Raise where the names in a store lead to another network or other images by now."""
    for part in ("network", "data"):
        if was[part] != now.key.settings[part]:
            raise ReportError(
                f"the {part} that this store was measured with is not the one that goes by its "
                "name here; make_report(workshop=...) takes your own."
            )


def _which(saved: int, shown: int) -> str:
    """By what rule the images were chosen."""
    if not saved:
        return "the first images of the first chunk, of which control sets none right"
    first = f"the first {words.several(saved, 'image')} that control sets right"
    return f"{first}, then {shown - saved} of the others" if shown > saved else first


def replan(experiment: Experiment, result: Result) -> Plan:
    """The plan of one cell, from the manifest of the run that measured it."""
    plan: Mapping[str, Any] = experiment.made[-1].manifest["plan"]
    network, defence = result.network, result.defence
    settings = {k: v for k, v in plan["defences"][defence][network].items() if k != "chosen"}
    attacks = {name: _attack(values) for name, values in plan["attacks"].items()}
    defences = {defence: from_settings(settings, f"{experiment.store.name}, its manifest")}
    needed = attacks[result.attack].embedding_of
    if needed is not None and needed not in defences:
        other = {k: v for k, v in plan["defences"][needed][network].items() if k != "chosen"}
        defences[needed] = from_settings(other, f"{experiment.store.name}, its manifest")
    entry = Entry(network, defence, result.attack, result.eps, "oblivious", result.wanted)
    return Plan(
        name=plan["name"],
        networks={network: Network(**plan["networks"][network])},
        defences=defences,
        attacks=attacks,
        entries=(entry,),
        seed=plan["seed"],
        chunk=plan["chunk"],
        split=plan["split"],
        sample=plan["sample"],
        folder=experiment.store.parent,
    )


def _attack(values: Mapping[str, Any]) -> AttackPlan:
    settings = values["settings"]
    return replace(
        AttackPlan(**{**values, "settings": None}),
        settings=None if settings is None else Kind(settings["kind"], settings["settings"]),
        through=tuple(values["through"]),
        of=tuple(values["of"]),
    )


def _rows(store: Store, cell: int) -> dict[int, tuple[int, int]]:
    """Label and answer of each sample of a cell's first chunk."""
    rows = store.read(
        "SELECT sample, label, predicted FROM samples WHERE cell = ? AND chunk = 0 ORDER BY sample",
        cell,
    )
    return {sample: (label, predicted) for sample, label, predicted in rows}


def choose(
    controlled: Mapping[int, tuple[int, int]],
    plain: Mapping[int, tuple[int, int]],
    count: int,
) -> tuple[list[int], int]:
    """Images for two thirds set right by control, then others; and how many of the first.

    Others that the attack did not mislead are the last resort.
    """
    both = [sample for sample in controlled if sample in plain]
    if not both:
        raise ReportError("the first chunk is not measured both with and without control yet.")
    saved = [s for s in both if plain[s][1] != plain[s][0] == controlled[s][1]]
    others = [s for s in both if s not in saved]
    others.sort(key=lambda s: plain[s][0] == plain[s][1])  # whom the attack misled first
    most = max(count - len(others), -(-2 * count // 3))
    saved = saved[:most]
    return saved + others[: count - len(saved)], len(saved)


def _row(
    images: tuple[Tensor, Tensor, Tensor], label: str, attacked: str, controlled: str
) -> list[Picture]:
    x, x_adv, u = images
    return [
        Picture(to_png(x), f"the clean image, {label}", label),
        Picture(to_png(x_adv), f"the attacked image, taken for {attacked}", f"→ {attacked}"),
        Picture(to_png(0.5 + MAGNIFIED * u), "the control at the input, magnified", ""),
        Picture(
            to_png(x_adv + u), f"the controlled image, taken for {controlled}", f"→ {controlled}"
        ),
    ]


def _classes(data: str) -> Callable[[int], str]:
    entry = CATALOGUE.get(data)
    names = entry.classes if entry is not None and not isinstance(entry.classes, int) else ()
    return lambda label: names[label] if label < len(names) else f"class {label}"
