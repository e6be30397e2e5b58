"""How it was made: the manifests of all runs, each fact once.

Runs of one plan differ in little, and plans run by the same code on the same machine share the
rest: environments are told apart by number, the latest manifest of a plan stands whole (but for its
environment), and each earlier one as what it has otherwise.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clcnn.report.blocks import (
    Block,
    Code,
    Column,
    Details,
    Heading,
    Paragraph,
    Row,
    Span,
    TableBlock,
)
from clcnn.report.gather import TUNING, Experiment, Made

_OF_THE_RUN = ("git", "images", "plan", "weights")
_WIDTH = 110
_ABSENT = object()


def made_blocks(experiments: Sequence[Experiment]) -> list[Block]:
    """Revisions of all runs, what they were run with, and their settings and hashes."""
    heading = Heading(2, "How it was made", "manifest")
    if not any(experiment.made for experiment in experiments):
        return [heading, Paragraph("No run has left a manifest.", "warning")]
    numbers: dict[str, int] = {}
    for experiment in experiments:
        for made in experiment.made:
            numbers.setdefault(_environment(made), len(numbers) + 1)
    return [
        heading,
        _environments(numbers),
        _runs(experiments, numbers),
        *(_code(text, number) for text, number in numbers.items()),
        *(_manifest(experiment, numbers) for experiment in experiments if experiment.made),
    ]


def _environment(made: Made) -> str:
    """All that does not depend on the plan: versions, machine, hashes of the code."""
    shared = {key: value for key, value in made.manifest.items() if key not in _OF_THE_RUN}
    return json.dumps(shared, sort_keys=True, ensure_ascii=False)


def _environments(numbers: Mapping[str, int]) -> TableBlock:
    rows = []
    for text, number in numbers.items():
        m = json.loads(text)
        packages = ", ".join(f"{k} {v}" for k, v in sorted(m["packages"].items()) if v)
        code = hashlib.sha256(json.dumps(m["code"], sort_keys=True).encode()).hexdigest()[:8]
        threads = f", threads: {m['threads']}" if "threads" in m else ""
        bfloat16 = ", multiplies bfloat16" if m.get("bfloat16") else ""
        rows.append(
            Row(
                (str(number),),
                [
                    [Span(f"clcnn {m['clcnn']}, Python {m['python']}, code {code}", "interval")],
                    [Span(packages, "remark")],
                    [Span(f"{m['machine']}, {m['device']}{threads}{bfloat16}", "interval")],
                ],
            )
        )
    columns = [Column(c) for c in ("version", "packages", "machine")]
    return TableBlock("What runs were made with", ("environment",), columns, rows)


def _runs(experiments: Sequence[Experiment], numbers: Mapping[str, int]) -> TableBlock:
    begun: dict[tuple[str, str, str, int], list[str]] = {}
    for experiment in experiments:
        for made in experiment.made:
            git = str(made.manifest["git"] or "not a checkout")
            key = (experiment.label, experiment.plan, git, numbers[_environment(made)])
            begun.setdefault(key, []).extend(made.started)
    rows = [
        Row(
            (label, plan),
            [
                [Span(git, "interval")],
                [Span(str(number), "interval")],
                [Span(f"{min(started)} ({len(started)})", "interval")],
            ],
        )
        for (label, plan, git, number), started in begun.items()
    ]
    columns = [Column(c) for c in ("git", "environment", "begun (starts)")]
    caption = (
        "Revisions of all runs, also of those whose cells were measured again since; settings and "
        "hashes of weights, data and code are below"
    )
    return TableBlock(caption, ("store", "plan"), columns, rows)


def _code(environment: str, number: int) -> Details:
    return Details(f"Environment {number}, whole", [Code(compact(json.loads(environment)))])


def _manifest(experiment: Experiment, numbers: Mapping[str, int]) -> Details:
    described = [_described(made, numbers) for made in experiment.made]
    *earlier, latest = zip(experiment.made, described, strict=True)
    blocks: list[Block] = [Paragraph(_begun(latest[0])), Code(compact(latest[1]))]
    for made, manifest in reversed(earlier):
        lines = [f"{place}: {compact(value)}" for place, value in otherwise(manifest, latest[1])]
        blocks += [Paragraph(f"{_begun(made)}, otherwise than above:"), Code("\n".join(lines))]
    return Details(f"Manifest of `{experiment.plan}` in {experiment.label}", blocks)


def _described(made: Made, numbers: Mapping[str, int]) -> dict[str, Any]:
    own = {key: made.manifest[key] for key in _OF_THE_RUN if key in made.manifest}
    if own["plan"]["name"].startswith(TUNING):
        own["plan"] = own["plan"] | {"defences": grid(own["plan"]["defences"])}
    return {"environment": numbers[_environment(made)], **own}


def grid(defences: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The points of a grid: the first whole, of each other where it differs from that."""
    (first, whole), *others = sorted(defences.items())
    return {first: whole} | {
        name: {"as": first, "but": dict(otherwise(defence, whole))} for name, defence in others
    }


def _begun(made: Made) -> str:
    return f"Begun {', '.join(made.started)}"


def otherwise(
    ours: Mapping[str, Any], theirs: Mapping[str, Any], at: str = ""
) -> Iterator[tuple[str, Any]]:
    """Where ``ours`` has something else, and what; or that it has nothing there."""
    for key in sorted({*ours, *theirs}):
        mine, other = ours.get(key, _ABSENT), theirs.get(key, _ABSENT)
        if mine == other:
            continue
        place = f"{at}{key}"
        if isinstance(mine, Mapping) and isinstance(other, Mapping):
            yield from otherwise(mine, other, f"{place} / ")
        else:
            yield place, "absent" if mine is _ABSENT else mine


def compact(value: object, indent: str = "") -> str:
    """JSON with everything in one line that fits into one, and short entries side by side."""
    line = json.dumps(value, sort_keys=True, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or not isinstance(value, Mapping | list) or not value:
        return line
    inner = f"{indent} "
    if isinstance(value, list):
        parts, (left, right) = [compact(item, inner) for item in value], "[]"
    else:
        left, right = "{}"
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {compact(value[key], inner)}"
            for key in sorted(value)
        ]
    return f"{left}\n{_filled(parts, inner)}\n{indent}{right}"


def _filled(parts: Sequence[str], indent: str) -> str:
    """The entries, as many to a line as fit; one of several lines has them for itself."""
    lines: list[str] = []
    for part in parts:
        beside = f"{lines[-1]}, {part}" if lines else part
        if lines and "\n" not in beside and len(beside) <= _WIDTH:
            lines[-1] = beside
        else:
            lines.append(indent + part)
    return ",\n".join(lines)
