"""Which attack of a worst case broke the images: what its figure rests on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from clcnn.evaluation.plan import NONE, WORST
from clcnn.report import words
from clcnn.report.blocks import Block, Column, Row, Span, TableBlock
from clcnn.report.gather import Experiment

_EARLIER = re.compile(r"eps [\d.]+: ")
"""How it begins where a smaller epsilon of the plan had broken an image already."""

_KNOWN = re.compile(r"known \d+")

_VIEWS = {
    "straight_through": "straight through",
    "unrolled": "unrolled",
    "exact": "exact gradient",
}
_TRANSFERRED = "made without control"
_WITHSTOOD = "left"


def breaker_blocks(experiment: Experiment) -> list[Block]:
    """For each defence how many images each attack broke, of those that were left to it."""
    attacks: Mapping[str, Any] = experiment.described.get("attacks", {})
    of = attacks.get(WORST, {}).get("of") or ()
    counts: dict[tuple[str, str], Counter[str]] = {}
    tried: dict[tuple[str, str], set[str]] = {}
    places: dict[str, tuple[int, str]] = {}
    for result in experiment.results:
        broken = experiment.broken.get(result.cell)
        if broken is None or result.attack != WORST or result.defence == NONE:
            continue
        names = (experiment.network(result), result.defence)
        called = {}
        for attempt in experiment.tried.get(result.cell, ()):
            name = _called(of, attempt.place, attempt.view)
            called[attempt.label] = name
            places[name] = (attempt.place, attempt.view)
            tried.setdefault(names, set()).add(name)
        for by, n in broken.items():
            # No attack was tried on what was wrong already, or at a smaller epsilon.
            if by != "clean" and not _EARLIER.match(by):
                name = _breaker(by, called)
                counts.setdefault(names, Counter())[name] += n
                if name not in (_TRANSFERRED, _WITHSTOOD):  # one that the settings do not name too
                    places.setdefault(name, (len(of), name))
                    tried.setdefault(names, set()).add(name)
    order = sorted(places, key=lambda name: places[name])
    if not order or not counts:
        return []
    columns = [_TRANSFERRED, *order]
    return [
        TableBlock(
            caption="What breaks the images for an attacker who knows of the control: each attack "
            "is tried on those that the ones before it have left",
            corner=("network", "defence"),
            columns=[Column(name) for name in (*columns, _WITHSTOOD)],
            rows=[
                Row(
                    (network, words.defence(defence)),
                    _cells(columns, counted, {_TRANSFERRED, *tried.get((network, defence), ())}),
                )
                for (network, defence), counted in counts.items()
            ],
            legend=[
                "Over all ε of the worst cases; what is wrong without any attack, or was broken at "
                "a smaller ε, is not tried. – stands for what is not tried on such a control. What "
                "comes late finds only what was left: few images broken do not say that it would "
                "find few by itself."
            ],
        )
    ]


def _called(of: Sequence[str], place: int, view: str) -> str:
    """An attack of the plan and how it sees the control, for people."""
    name = words.attack(of[place]) if place < len(of) else f"attack {place + 1}"
    seen = _VIEWS.get(view, "")
    return name if seen in name else f"{name}, {seen}"


def _breaker(by: str, called: Mapping[str, str]) -> str:
    """The column of what broke an image."""
    if not by:
        return _WITHSTOOD
    is_transferred = _KNOWN.fullmatch(by) or by.startswith("Transfer(")
    return _TRANSFERRED if is_transferred else called.get(by, by)


def _cells(columns: Sequence[str], counts: Counter[str], tried: set[str]) -> list[list[Span]]:
    left = counts.total()
    cells = []
    for name in columns:
        if name not in tried:
            cells.append([Span("–")])
            continue
        broken = counts[name]
        cells.append([Span(words.count(broken)), Span(f"of {words.count(left)}", "interval")])
        left -= broken
    return [*cells, [Span(words.count(left))]]
