"""The file itself: its tables, and the refusal of files that are damaged, foreign or newer."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clcnn.errors import ClcnnError

APPLICATION = 0x636C636E  # "clcn"
SCHEMA = 1
_MAGIC = b"SQLite format 3\x00"
PACKED = b"\xfd7zXZ\x00"
"""How a file of `clcnn store pack` begins."""
_BUSY = 60.0  # seconds that a process waits while another writes
_POLL = 0.02  # seconds between two tries, where SQLite itself does not wait

_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    started TEXT NOT NULL,
    manifest TEXT NOT NULL                  -- JSON: versions, settings, hashes
);
CREATE TABLE cells (
    id INTEGER PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,                 -- JSON: everything that changes a result
    samples INTEGER NOT NULL,
    run INTEGER NOT NULL REFERENCES runs
);
CREATE TABLE entries (                      -- where a cell stands in the tables of a plan
    plan TEXT NOT NULL,
    place INTEGER NOT NULL,
    network TEXT NOT NULL,
    defence TEXT NOT NULL,
    attack TEXT NOT NULL,
    eps REAL NOT NULL,                      -- in 1/255
    threat TEXT NOT NULL,
    cell INTEGER NOT NULL REFERENCES cells,
    PRIMARY KEY (plan, place)
) WITHOUT ROWID;
CREATE TABLE chunks (
    cell INTEGER NOT NULL REFERENCES cells,
    number INTEGER NOT NULL,
    count INTEGER NOT NULL,
    done INTEGER NOT NULL DEFAULT 0,
    owner TEXT,                             -- who works on it, until when (UNIX time)
    expires REAL,
    seconds REAL,                           -- attack and defence together
    plain_seconds REAL,                     -- of one plain forward of the same images
    PRIMARY KEY (cell, number)
) WITHOUT ROWID;
CREATE TABLE samples (
    cell INTEGER NOT NULL,
    sample INTEGER NOT NULL,                -- the image's place in its data set
    chunk INTEGER NOT NULL,
    label INTEGER NOT NULL,
    predicted INTEGER NOT NULL,
    correct INTEGER NOT NULL,
    cost REAL,                              -- J, under control
    before BLOB,                            -- float32, ||E_t(x_t) - x_t||^2 without control
    after BLOB,                             -- float32, L_t under control
    linf REAL NOT NULL,
    l2 REAL NOT NULL,
    seconds REAL NOT NULL,                  -- of the defence, without the attack
    broken_by TEXT,                         -- in a worst case: what broke it
    PRIMARY KEY (cell, sample)
) WITHOUT ROWID;
CREATE TABLE findings (                     -- signs that a cell may lie
    cell INTEGER NOT NULL REFERENCES cells,
    "check" TEXT NOT NULL,
    sentence TEXT NOT NULL,
    PRIMARY KEY (cell, "check", sentence)
) WITHOUT ROWID;
"""


class StoreError(ClcnnError, RuntimeError):
    """A store of results cannot be opened, read or written."""


def connect(path: Path) -> sqlite3.Connection:
    """A connection whose transactions are begun by hand; a new file gets its tables."""
    with explained(path):
        connection = sqlite3.connect(
            path, timeout=_BUSY, isolation_level=None, check_same_thread=False
        )
        try:
            _write_ahead(connection)
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            _create(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Let readers and a writer work at once.

    SQLite does not wait here for a process that opens the same new file, whatever the timeout.
    """
    until = time.monotonic() + _BUSY
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_POLL)


def _create(connection: sqlite3.Connection) -> None:
    """Make the tables, unless another process has; all of them or none."""
    if _number(connection, "user_version"):
        return
    with transaction(connection):
        if _number(connection, "user_version"):
            return
        for statement in _TABLES.split(";\n"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing; no other process writes in between."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def check_file(path: Path) -> None:
    """Refuse a file that is not a whole store of a schema that is known."""
    if path.is_dir():
        raise StoreError(
            f"{path} is a folder; expected a store of results, which is one file. Give the path of "
            f"a file, such as {path / 'results.sqlite'}."
        )
    with explained(path), path.open("rb") as file:
        start = file.read(len(_MAGIC))
    if not start:
        return  # made by a process that was ended before it wrote anything
    if start.startswith(PACKED):
        raise StoreError(
            f"{path} is packed; expected a store to write to. Unpack it first, "
            f"`clcnn store unpack {path} --out NAME.sqlite`, and use that: this one stays as it is."
        )
    if start != _MAGIC:
        raise StoreError(
            f"{path} is no SQLite file; expected a store of results, or the path of a new one. "
            "Give another: this file was left as it is."
        )
    with explained(path):
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", timeout=_BUSY, uri=True)
        try:
            _check(path, connection)
        finally:
            connection.close()


def _check(path: Path, connection: sqlite3.Connection) -> None:
    # One transaction: another process may make the tables between two of these reads.
    connection.execute("BEGIN")
    application, schema = (_number(connection, p) for p in ("application_id", "user_version"))
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application == 0 and schema == 0 and tables == 0:
        return
    if application != APPLICATION:
        raise StoreError(
            f"{path} is an SQLite file of another program; expected a store of results, or the "
            "path of a new one. Give another: this file was left as it is."
        )
    if schema != SCHEMA:
        raise StoreError(
            f"{path} has schema {schema}, this version of clcnn reads schema {SCHEMA}. Use the "
            "version that wrote it, or give another path."
        )
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise damaged(path, "; ".join(line for text in found for line in text.splitlines()))
    broken = connection.execute(
        "SELECT chunks.cell, chunks.number, chunks.count, count(samples.sample) AS found "
        "FROM chunks LEFT JOIN samples "
        "ON samples.cell = chunks.cell AND samples.chunk = chunks.number "
        "GROUP BY chunks.cell, chunks.number "
        "HAVING found != CASE WHEN chunks.done THEN chunks.count ELSE 0 END LIMIT 1"
    ).fetchone()
    if broken:
        cell, number, count, rows = broken
        raise damaged(path, f"part {number} of cell {cell} has {rows} rows of {count}")


def damaged(path: Path, what: str) -> StoreError:
    """The error for a store that is not whole."""
    return StoreError(
        f"{path} is damaged ({what}). Move it away, with {path.name}-wal and "
        f"{path.name}-shm if they are there, and run the evaluation again: adversarial "
        "examples and fits beside it are checked and used again, so that only the measurements "
        "are repeated. What can be saved of the old one: sqlite3 OLD .recover"
    )


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """SQLite's errors as ours, with what to do."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        raise StoreError(
            f"cannot use {path} ({error}). Make room on the disk, see that the folder exists and "
            "may be written to and that no other program holds the file, then run the same "
            "command again: what was stored stays."
        ) from error
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.IntegrityError):
            raise
        raise damaged(path, str(error)) from error


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
