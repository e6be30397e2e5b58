"""Digests of all that a store holds: a change that SQLite itself cannot notice breaks one.

Every row has one of its other columns, but for those of `samples`: a part of a cell has one of all
its samples. Who works on a part, and until when, is not in it.
"""

from __future__ import annotations

import hashlib
import sqlite3
from typing import Any, cast

_COLUMNS = {
    "runs": "id, started, manifest",
    "cells": "id, hash, settings, samples, run",
    "entries": "plan, place, network, defence, attack, eps, threat, cell",
    "findings": 'cell, "check", sentence',
}
_SAMPLE = "sample, label, predicted, correct, cost, before, after, linf, l2, seconds, broken_by"
_PARTS = (
    "SELECT chunks.cell, number, seal(count, done, chunks.seconds, plain_seconds, sealed), digest "
    f"FROM chunks JOIN (SELECT cell, chunk, seal_rows({_SAMPLE}) AS sealed FROM samples {{}} "
    "GROUP BY cell, chunk) AS held ON held.cell = chunks.cell AND held.chunk = chunks.number"
)

Value = int | float | str | bytes | None


def _seal(*values: Value) -> bytes:
    return hashlib.blake2b(ascii(values).encode(), digest_size=16).digest()


class _Rows:
    """The digest of rows, in whatever order they come."""

    def __init__(self) -> None:
        self.rows: list[str] = []

    def step(self, *values: Value) -> None:
        """Hear of one row."""
        self.rows.append(ascii(values))

    def finalize(self) -> bytes:
        """The digest of all."""
        return _seal(*sorted(self.rows))


def enable(connection: sqlite3.Connection) -> None:
    """Let SQL on this connection compute digests."""
    connection.create_function("seal", -1, _seal, deterministic=True)
    connection.create_aggregate("seal_rows", -1, cast(Any, _Rows))  # which need not end in an int


def seal(connection: sqlite3.Connection, table: str, where: str, *values: Value) -> None:
    """Note the digests of rows that were written just now, as they can be read again."""
    connection.execute(f"UPDATE {table} SET digest = seal({_COLUMNS[table]}) WHERE {where}", values)


def seal_part(connection: sqlite3.Connection, cell: int, chunk: int) -> None:
    """Note the digest of a part of a cell and of its samples."""
    _seal_parts(connection, "WHERE cell = ? AND chunk = ?", cell, chunk)


def seal_all(connection: sqlite3.Connection) -> None:
    """Note the digests of everything, as it is."""
    for table in _COLUMNS:
        seal(connection, table, "TRUE")
    _seal_parts(connection, "")


def _seal_parts(connection: sqlite3.Connection, where: str, *values: Value) -> None:
    parts = connection.execute(_PARTS.format(where), values).fetchall()
    connection.executemany(
        "UPDATE chunks SET digest = ? WHERE cell = ? AND number = ?",
        [(digest, cell, number) for cell, number, digest, _ in parts],
    )


def broken(connection: sqlite3.Connection) -> str | None:
    """What first does not have the digest that was noted of it; None if all has."""
    for table, columns in _COLUMNS.items():
        row = connection.execute(
            f"SELECT {columns} FROM {table} WHERE digest IS NOT seal({columns}) LIMIT 1"
        ).fetchone()
        if row is not None:
            return f"row {row[0]!r} of its table {table}"
    for cell, number, found, noted in connection.execute(_PARTS.format("")):
        if found != noted:
            return f"part {number} of cell {cell}"
    return None
