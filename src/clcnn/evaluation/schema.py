"""The file itself: its tables, and the refusal of files that are damaged, foreign or newer."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from clcnn.errors import ClcnnError
from clcnn.evaluation import seals

APPLICATION = 0x636C636E  # "clcn"
SCHEMA = 2
_UNSEALED = 1
"""The schema before, whose rows had no digests; its stores get them when they are opened."""
_MAGIC = b"SQLite format 3\x00"
PACKED = b"\xfd7zXZ\x00"
"""How a file of `clcnn store pack` begins."""
_BUSY = 60.0  # seconds that a process waits while another writes
_UNREADABLE = re.compile("decode to UTF-8|user-defined")
"""How SQLite calls text that Python cannot read, and that a digest cannot be made of."""
_POLL = 0.02  # seconds between two tries, where SQLite itself does not wait

_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    started TEXT NOT NULL,
    manifest TEXT NOT NULL,                 -- JSON: versions, settings, hashes
    digest BLOB                             -- of the other columns, here and below
);
CREATE TABLE cells (
    id INTEGER PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    settings TEXT NOT NULL,                 -- JSON: everything that changes a result
    samples INTEGER NOT NULL,
    run INTEGER NOT NULL REFERENCES runs,
    digest BLOB
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
    digest BLOB,
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
    digest BLOB,                            -- of its samples too, once it is done
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
    digest BLOB,
    PRIMARY KEY (cell, "check", sentence)
) WITHOUT ROWID;
"""


_SOUND = {
    "no settings that can be read in cell": "SELECT id FROM cells WHERE NOT json_valid(settings)",
    "no manifest that can be read in run": "SELECT id FROM runs WHERE NOT json_valid(manifest)",
    "parts that do not add up in cell": "SELECT id FROM cells WHERE samples != "
    "(SELECT coalesce(sum(count), 0) FROM chunks WHERE cell = id)",
    "answers that are none in cell": "SELECT cell FROM samples WHERE typeof(predicted) != "
    "'integer' OR typeof(label) != 'integer' OR correct != (predicted = label) LIMIT 1",
}
"""What no store of ours has: a change that SQLite itself cannot notice."""


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
            seals.enable(connection)
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
    """Make the tables, or what they lack, unless another process has; all of it or nothing."""
    if _number(connection, "user_version") == SCHEMA:
        return
    with transaction(connection):
        found = _number(connection, "user_version")
        if found == SCHEMA:
            return
        if found == _UNSEALED:
            for table in ("runs", "cells", "entries", "chunks", "findings"):
                connection.execute(f"ALTER TABLE {table} ADD COLUMN digest BLOB")
            seals.seal_all(connection)
        else:
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


def is_store(path: Path) -> bool:
    """Whether a file is there that begins as stores do, packed or not."""
    if not path.is_file():
        return False
    with explained(path), path.open("rb") as file:
        return file.read(len(_MAGIC)).startswith((_MAGIC, PACKED))


def check_file(path: Path, *, contents: bool = True) -> None:
    """Refuse a file that is not a whole store of a schema that is known.

    Without ``contents`` its rows are not held against their digests, which takes longest.
    """
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
            seals.enable(connection)
            _check(path, connection, contents)
        finally:
            connection.close()


def _check(path: Path, connection: sqlite3.Connection, contents: bool) -> None:
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
    if schema not in (SCHEMA, _UNSEALED):
        raise StoreError(
            f"{path} has schema {schema}, this version of clcnn reads schema {SCHEMA}. Use the "
            "version that wrote it, or give another path."
        )
    present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    lacking = [name for name in re.findall(r"CREATE TABLE (\w+)", _TABLES) if name not in present]
    if lacking:
        raise damaged(path, f"it has no table {lacking[0]}")
    if (table := _misshapen(connection, schema)) is not None:
        raise damaged(path, f"its table {table} has other columns than ours")
    found = [row[0] for row in connection.execute("PRAGMA quick_check(3)")]
    if found != ["ok"]:
        raise damaged(path, "; ".join(line for text in found for line in text.splitlines()))
    broken = connection.execute(
        "WITH held AS (SELECT cell, chunk, count(*) AS found FROM samples GROUP BY cell, chunk) "
        "SELECT chunks.cell, number, count, coalesce(found, 0) FROM chunks "
        "LEFT JOIN held ON held.cell = chunks.cell AND held.chunk = chunks.number "
        "WHERE coalesce(found, 0) != CASE WHEN done THEN count ELSE 0 END LIMIT 1"
    ).fetchone()
    if broken:
        cell, number, count, rows = broken
        raise damaged(path, f"part {number} of cell {cell} has {rows} rows of {count}")
    for what, query in _SOUND.items():
        if (row := connection.execute(query).fetchone()) is not None:
            raise damaged(path, f"{what} {row[0]}")
    if contents and schema != _UNSEALED and (where := seals.broken(connection)) is not None:
        raise damaged(path, f"{where} is not what was written")


def _misshapen(connection: sqlite3.Connection, schema: int) -> str | None:
    """The first table whose columns are not those that its schema makes."""
    with closing(sqlite3.connect(":memory:")) as sound:
        sound.executescript(_TABLES)
        names = [str(name) for (name,) in sound.execute("SELECT name FROM sqlite_master")]
        for name in names:
            query = f'PRAGMA table_info("{name}")'
            expected = sound.execute(query).fetchall()
            if schema == _UNSEALED:
                expected = [column for column in expected if column[1] != "digest"]
            if connection.execute(query).fetchall() != expected:
                return name
    return None


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
    except UnicodeDecodeError as error:
        raise damaged(path, "text that is none") from error
    except (sqlite3.OperationalError, OSError) as error:
        if _UNREADABLE.search(str(error)):
            raise damaged(path, "text that is none") from error
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
