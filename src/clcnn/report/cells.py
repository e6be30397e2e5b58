"""What stands in one place of a table: ours, its interval, the paper's figure, what is lacking."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from clcnn.evaluation.results import Result
from clcnn.experiments import paper
from clcnn.report import words
from clcnn.report.against import Verdict, is_attack_alone, verdict
from clcnn.report.blocks import Span
from clcnn.statistics import Paired

UNPLANNED = "–"
_MARKS: dict[Verdict, list[Span]] = {
    "above": [Span("▲", "up")],
    "below": [Span("▼", "down")],
    "within": [],
}
_OF_ATTACKS: dict[Verdict, list[Span]] = {
    "above": [Span("△", "apart")],
    "below": [Span("▽", "apart")],
    "within": [],
}


@dataclass
class Footnotes:
    """Footnotes of a table, each text once."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str) -> Span:
        """The sign that leads to a text."""
        if text not in self.texts:
            self.texts.append(text)
        return Span(f"⚠{self.texts.index(text) + 1}", "doubt")

    def lines(self) -> list[str]:
        """What stands below the table."""
        return [
            f"⚠{place + 1} the paper's figure: {text}." for place, text in enumerate(self.texts)
        ]


@dataclass(frozen=True)
class Usual:
    """The count of samples of most cells; a cell says its own only where it differs."""

    n: int | None

    @property
    def words(self) -> str:
        """For a caption."""
        if self.n is None:
            return "nothing is measured yet"
        return f"n = {words.count(self.n)} where a cell says no other"

    def other(self, n: int) -> list[Span]:
        """What a cell of ``n`` samples says of it."""
        return [] if n == self.n else [Span(f"n = {words.count(n)}", "interval")]


def usual_of(counts: Iterable[int]) -> Usual:
    """The most frequent count; cells without samples have none."""
    frequent = Counter(n for n in counts if n).most_common(1)
    return Usual(frequent[0][0] if frequent else None)


def accuracy_spans(
    result: Result | None, printed: paper.Cell | None, usual: Usual, notes: Footnotes
) -> list[Span]:
    """An accuracy with its interval, and the paper's figure; what is lacking is said."""
    figure = paper_spans(printed, notes)
    if result is None:
        return [Span("not measured", "state"), *figure] if figure else [Span(UNPLANNED, "muted")]
    if not result.n:
        return [Span(f"0 of {words.count(result.wanted)}", "state"), *figure]
    low, high = 100 * result.low, 100 * result.high
    spans = [Span(words.percent(result.accuracy))]
    if printed is not None and result.is_complete:
        marks = _OF_ATTACKS if is_attack_alone(result.defence, result.attack) else _MARKS
        spans += marks[verdict(low, high, printed.value)]
    spans += [Span(words.interval(low, high), "interval"), *usual.other(result.n)]
    if not result.is_complete:
        spans.append(Span(f"so far, of {words.count(result.wanted)}", "state"))
    return spans + figure


def difference_spans(
    pair: Paired | None,
    complete: bool,
    printed: paper.Cell | None,
    usual: Usual,
    notes: Footnotes,
) -> list[Span]:
    """A paired difference with its interval, and the paper's figure."""
    figure = paper_spans(printed, notes, differences=True)
    if pair is None:
        return [Span("not measured", "state"), *figure]
    low, high = 100 * pair.low, 100 * pair.high
    spans = [Span(words.points(100 * pair.difference))]
    if printed is not None and complete:
        spans += _MARKS[verdict(low, high, printed.value)]
    spans += [Span(words.interval(low, high, signed=True), "interval"), *usual.other(pair.n)]
    if not complete:
        spans.append(Span("so far", "state"))
    return spans + figure


def again(spans: list[Span]) -> list[Span]:
    """A cell that stands further up already, having no epsilon: its figure alone."""
    return [replace(spans[0], role="muted")] if spans[0].role == "value" else spans


def paper_spans(
    printed: paper.Cell | None, notes: Footnotes, differences: bool = False
) -> list[Span]:
    """The paper's figure, and the sign of a doubt about it."""
    if printed is None:
        return []
    value = f"{printed.value:+.0f}".replace("-", "−") if differences else f"{printed.value:.0f}"
    doubt = [notes.mark(printed.note)] if printed.note else []
    return [Span(f"paper {value}", "paper"), *doubt]
