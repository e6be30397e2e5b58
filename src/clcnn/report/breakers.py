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
_SEEN = re.compile(r"(\w+)\((\w+)\)(?: (\d+))?")
_NUMBERED = re.compile(r"(?P<attack>[^,(]+?)(?:, [^(]*?)?(?: \((?P<number>\d+)\))?")
"""What `_called` makes of it."""

_VIEWS = {
    "StraightThrough": "straight through",
    "Unrolled": "unrolled",
    "ExactGradient": "exact gradient",
}
_TRANSFERRED = "made without control"
_WITHSTOOD = "left"


def breaker_blocks(experiment: Experiment) -> list[Block]:
    """For each defence how many images each attack broke, of those that were left to it."""
    attacks: Mapping[str, Any] = experiment.described.get("attacks", {})
    counts: dict[tuple[str, str], Counter[str]] = {}
    for result in experiment.results:
        broken = experiment.broken.get(result.cell)
        is_shown = result.attack == WORST and result.defence != NONE
        if broken is not None and is_shown:
            names = (experiment.network(result), result.defence)
            for by, n in broken.items():
                # No attack was tried on what was wrong already, or at a smaller epsilon.
                if by != "clean" and not _EARLIER.match(by):
                    counts.setdefault(names, Counter())[_called(by)] += n
    found = dict.fromkeys(name for each in counts.values() for name in each)
    of = attacks.get(WORST, {}).get("of") or ()
    members = [words.attack(str(attacks.get(name, {}).get("kind", name))) for name in of]
    order = sorted(set(found) - {_TRANSFERRED, _WITHSTOOD}, key=lambda name: _place(name, members))
    if not order:
        return []
    columns = [_TRANSFERRED, *order]
    return [
        TableBlock(
            caption="What breaks the images for an attacker who knows of the control: each attack "
            "is tried on those that the ones before it have left",
            corner=("network", "defence"),
            columns=[Column(name) for name in (*columns, _WITHSTOOD)],
            rows=[
                Row((network, words.defence(defence)), _cells(columns, counts[network, defence]))
                for network, defence in counts
            ],
            legend=[
                "Over all ε of the worst cases; what is wrong without any attack, or was broken at "
                "a smaller ε, is not tried. An attack that breaks next to nothing adds nothing to "
                "the figure: a worst case is worth what the others find."
            ],
        )
    ]


def _called(by: str) -> str:
    """What broke an image, for people."""
    if not by:
        return _WITHSTOOD
    if _KNOWN.fullmatch(by):
        return _TRANSFERRED
    seen = _SEEN.fullmatch(by)
    if seen is None:
        return words.attack(by.lower())
    view, attack, number = seen.groups()
    again = f" ({number})" if number else ""
    return f"{words.attack(attack.lower())}, {_VIEWS.get(view, view)}{again}"


def _place(name: str, members: Sequence[str]) -> tuple[int, str]:
    """When it was tried: as the plan lists the kinds, the second of a kind as "(2)"."""
    parts = _NUMBERED.fullmatch(name)
    assert parts is not None
    alike = [k for k, member in enumerate(members) if member == parts["attack"]]
    return ([*alike, len(members)][min(int(parts["number"] or 1) - 1, len(alike))], name)


def _cells(columns: Sequence[str], counts: Counter[str]) -> list[list[Span]]:
    left = counts.total()
    cells = []
    for name in columns:
        broken = counts[name]
        cells.append([Span(words.count(broken)), Span(f"of {words.count(left)}", "interval")])
        left -= broken
    return [*cells, [Span(words.count(left))]]
