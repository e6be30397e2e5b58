"""One SQLite file of results, a row a sample, safe against kills and shared by processes.

Work is claimed by the chunk. A claim has a lease that its holder renews; a claim whose process is
dead, or whose lease has run out, is free again. All rows of a chunk are written in one transaction
that also takes the claim away, so that a kill at any time loses one chunk at most, and no sample is
ever counted twice.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from clcnn.attacks.flags import Finding
from clcnn.evaluation.plan import Entry
from clcnn.evaluation.schema import StoreError, check_file, connect, explained, transaction
from clcnn.evaluation.seals import seal, seal_part

LEASE = 60.0
"""Seconds after which the claim of a process that no longer renews it is free."""


@dataclass(frozen=True)
class Row:
    """What was measured of one sample."""

    sample: int
    label: int
    predicted: int
    correct: bool
    cost: float | None
    before: bytes | None
    after: bytes | None
    linf: float
    l2: float
    seconds: float
    broken_by: str | None = None


@dataclass(frozen=True)
class Measured:
    """What was measured of one chunk."""

    rows: Sequence[Row]
    seconds: float
    plain_seconds: float
    findings: Sequence[Finding] = ()


@dataclass(frozen=True)
class CellKey:
    """A cell: the hash of its settings, the settings, and the samples of each of its chunks."""

    hash: str
    settings: Mapping[str, Any]
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Claim:
    """The right of one process to work on one chunk, as long as it renews it."""

    cell: int
    chunk: int
    owner: str


def folder_of(path: Path) -> Path:
    """Where examples and fits that belong to the store at ``path`` are kept."""
    return path.parent / f"{path.stem}.files"


class Store:
    """Open or make the store at ``path``; use as a context manager."""

    def __init__(self, path: str | Path, *, lease: float = LEASE, must_exist: bool = False) -> None:
        self.path = Path(path)
        self.lease = lease
        self.owner = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:12]}"
        if self.path.exists():
            check_file(self.path)
        elif must_exist:
            raise StoreError(
                f"there is no store {self.path}. Run `clcnn evaluate PLAN --store {self.path}` "
                "first."
            )
        else:
            with explained(self.path):
                self.path.parent.mkdir(parents=True, exist_ok=True)
        self.connection = connect(self.path)
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """The store itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file; everything that was recorded is in it."""
        self.connection.close()

    @property
    def folder(self) -> Path:
        """Where examples and fits that belong to this store are kept."""
        return folder_of(self.path)

    def begin(self, manifest: Mapping[str, Any]) -> int:
        """Note a run; returns its number."""
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._writing():
            cursor = self.connection.execute(
                "INSERT INTO runs (started, manifest) VALUES (?, ?)",
                (started, json.dumps(manifest)),
            )
            seal(self.connection, "runs", "id = ?", cursor.lastrowid)
        return int(cursor.lastrowid or 0)

    def register(self, run: int, plan: str, cells: Sequence[tuple[Entry, CellKey]]) -> list[int]:
        """Note the cells of a plan, old and new, in their order; returns their numbers.

        What the plan listed before and no longer does stays stored, but is no longer of the plan.
        """
        with self._writing():
            numbers = [self._cell(run, key) for _, key in cells]
            self.connection.execute("DELETE FROM entries WHERE plan = ?", (plan,))
            self.connection.executemany(
                "INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                [
                    (plan, place, e.network, e.defence, e.attack, e.eps, e.threat, number)
                    for place, ((e, _), number) in enumerate(zip(cells, numbers, strict=True))
                ],
            )
            seal(self.connection, "entries", "plan = ?", plan)
        return numbers

    def _cell(self, run: int, key: CellKey) -> int:
        cursor = self.connection.execute(
            "INSERT OR IGNORE INTO cells (hash, settings, samples, run) VALUES (?, ?, ?, ?)",
            (key.hash, json.dumps(key.settings), sum(key.counts), run),
        )
        if cursor.rowcount:
            seal(self.connection, "cells", "hash = ?", key.hash)
        row = self.connection.execute("SELECT id FROM cells WHERE hash = ?", (key.hash,)).fetchone()
        self.connection.executemany(
            "INSERT OR IGNORE INTO chunks (cell, number, count) VALUES (?, ?, ?)",
            [(row[0], number, count) for number, count in enumerate(key.counts)],
        )
        return int(row[0])

    def claim(self, *cells: int) -> Claim | None:
        """The first chunk that one of ``cells`` lacks and nobody works on, for this process.

        Cells that are measured together have their chunks claimed together: whoever works on a
        chunk of one works on that chunk of all.
        """
        with self._writing():
            rows = self.connection.execute(
                "SELECT number, cell, owner, expires FROM chunks WHERE NOT done AND cell IN "
                f"({', '.join('?' * len(cells))}) ORDER BY number, cell",
                cells,
            ).fetchall()
            for number, alike in groupby(rows, key=itemgetter(0)):
                left = list(alike)
                if any(_is_held(owner, expires) for *_, owner, expires in left):
                    continue
                cell = left[0][1]
                self.connection.execute(
                    "UPDATE chunks SET owner = ?, expires = ? WHERE cell = ? AND number = ?",
                    (self.owner, time.time() + self.lease, cell, number),
                )
                return Claim(cell, number, self.owner)
        return None

    @contextmanager
    def held(self, claim: Claim) -> Iterator[None]:
        """Renew the claim while the block runs; give it back if the block fails."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self.lease / 4):
                # What keeps it from being written will be said when the rows are.
                with suppress(StoreError), self._writing():
                    self._update(claim, "expires = ?", time.time() + self.lease)

        thread = threading.Thread(target=renew, daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            ended.set()
            thread.join()
            with self._writing():
                self._update(claim, "owner = NULL, expires = NULL")
            raise
        ended.set()
        thread.join()

    def finish(self, claim: Claim, measured: Mapping[int, Measured]) -> bool:
        """Write a chunk, of one cell or of several measured together, and end the claim.

        False if the claim was lost (its process slept past the lease): another one does the work,
        and nothing is written.
        """
        with self._writing():
            if not self._update(claim, "owner = NULL, expires = NULL"):
                return False
            for cell, part in measured.items():
                cursor = self.connection.execute(
                    "UPDATE chunks SET done = 1, seconds = ?, plain_seconds = ? "
                    "WHERE cell = ? AND number = ? AND NOT done",
                    (part.seconds, part.plain_seconds, cell, claim.chunk),
                )
                if cursor.rowcount:
                    self._insert(cell, claim.chunk, part)
        return True

    def _insert(self, cell: int, chunk: int, part: Measured) -> None:
        self.connection.executemany(
            "INSERT INTO samples VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [
                (
                    cell,
                    row.sample,
                    chunk,
                    row.label,
                    row.predicted,
                    row.correct,
                    row.cost,
                    row.before,
                    row.after,
                    row.linf,
                    row.l2,
                    row.seconds,
                    row.broken_by,
                )
                for row in part.rows
            ],
        )
        self.connection.executemany(
            "INSERT OR IGNORE INTO findings VALUES (?, ?, ?, NULL)",
            [(cell, finding.check, finding.sentence) for finding in part.findings],
        )
        seal(self.connection, "findings", "cell = ?", cell)
        seal_part(self.connection, cell, chunk)

    def _update(self, claim: Claim, change: str, *values: float) -> bool:
        cursor = self.connection.execute(
            f"UPDATE chunks SET {change} WHERE cell = ? AND number = ? AND owner = ?",
            (*values, claim.cell, claim.chunk, claim.owner),
        )
        return cursor.rowcount == 1

    def done(self, cell: int) -> tuple[int, int]:
        """How many samples of a cell are stored, and how many it has."""
        row = self.read(
            "SELECT coalesce(sum(count * done), 0), sum(count) FROM chunks WHERE cell = ?", cell
        )[0]
        return int(row[0]), int(row[1])

    def read(self, query: str, *values: object) -> list[Any]:
        """All rows of a query."""
        with self._lock, explained(self.path):
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One transaction; the thread that renews a claim waits for its turn."""
        with self._lock, explained(self.path), transaction(self.connection):
            yield


def _is_held(owner: str | None, expires: float | None) -> bool:
    """Whether somebody works on a chunk, as far as one can know."""
    return owner is not None and (expires or 0) >= time.time() and not _is_dead(owner)


def _is_dead(owner: str) -> bool:
    """Whether the process behind a claim is known to be gone: of this machine, and not there."""
    host, process, _ = owner.rsplit("/", 2)
    if host != socket.gethostname() or os.name != "posix":
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
