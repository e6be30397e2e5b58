"""Who is told of an evaluation's progress."""

from __future__ import annotations

from typing import Protocol

from clcnn.evaluation.plan import Entry


class Watch(Protocol):
    """Told of an evaluation's progress."""

    def cell(self, place: int, cells: int, entry: Entry) -> None:
        """Work on the cell at ``place`` of ``cells`` begins."""

    def samples(self, done: int, total: int, seconds_left: float | None) -> None:
        """So many of the samples of all cells are stored; None: no time is known yet."""

    def say(self, sentence: str) -> None:
        """Something that a person should read."""


class Silent:
    """Says nothing."""

    def cell(self, place: int, cells: int, entry: Entry) -> None:
        """Nothing."""

    def samples(self, done: int, total: int, seconds_left: float | None) -> None:
        """Nothing."""

    def say(self, sentence: str) -> None:
        """Nothing."""
