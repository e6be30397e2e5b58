"""How far an evaluation is, and how long the rest will take."""

from __future__ import annotations

from collections.abc import Sequence

from clcnn.evaluation.plan import Entry
from clcnn.evaluation.store import Store


class Forecast:
    """Samples left times seconds a sample, taken from the most similar cells already measured.

    Similar is the same network, defence, attack and threat; failing that the same defence and
    threat; failing that anything.
    """

    def __init__(self, store: Store, cells: Sequence[tuple[Entry, int]]) -> None:
        self.store = store
        self.cells = cells

    def now(self) -> tuple[int, int, float | None]:
        """Samples stored, samples in all, seconds left (None before anything is known)."""
        facts = {
            cell: (done, total, seconds)
            for cell, done, total, seconds in self.store.read(
                "SELECT cell, sum(count * done), sum(count), sum(coalesce(seconds, 0.0) * done) "
                "FROM chunks GROUP BY cell"
            )
        }
        spent: dict[tuple[str, ...], list[float]] = {}
        for entry, cell in self.cells:
            done, _, seconds = facts[cell]
            for key in _likeness(entry):
                known = spent.setdefault(key, [0.0, 0.0])
                known[0] += seconds
                known[1] += done
        unique = {cell: entry for entry, cell in self.cells}
        stored = sum(facts[cell][0] for cell in unique)
        total = sum(facts[cell][1] for cell in unique)
        if not stored:
            return 0, total, None
        left = 0.0
        for cell, entry in unique.items():
            done, count, _ = facts[cell]
            seconds, samples = next(spent[k] for k in _likeness(entry) if spent[k][1])
            left += (count - done) * seconds / samples
        return stored, total, left


def _likeness(entry: Entry) -> list[tuple[str, ...]]:
    """Keys of ever less similar cells."""
    return [
        (entry.network, entry.defence, entry.attack, entry.threat),
        (entry.defence, entry.attack, entry.threat),
        (entry.defence, entry.threat),
        (),
    ]
