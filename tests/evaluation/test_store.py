"""The store: claims, leases, and files that are refused."""

from __future__ import annotations

import os
import random
import re
import shutil
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from clcnn.attacks.flags import Finding
from clcnn.evaluation import Store, StoreError, schema
from clcnn.evaluation.plan import Entry
from clcnn.evaluation.store import CellKey, Measured, Row

ENTRY = Entry("net", "none", "fgsm", 2.0, "oblivious", 6)


def register(store: Store, *hashes: str) -> list[int]:
    run = store.begin({"clcnn": "test"})
    keys = [CellKey(name, {"data": {}, "name": name}, (4, 2)) for name in hashes]
    return store.register(run, "plan", [(ENTRY, key) for key in keys])


def measured(chunk: int) -> Measured:
    places = range(4 * chunk, 4 * chunk + (4, 2)[chunk])
    rows = [Row(i, 1, i % 2, i % 2 == 1, 0.5, b"", b"", 0.1, 0.2, 0.001) for i in places]
    return Measured(rows, 1.0, 0.5, [Finding("check", "sentence")])


def test_each_chunk_is_claimed_once_and_done_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.sqlite"
    with Store(path) as store, Store(path) as other:
        (cell,) = register(store, "a")
        first, second = store.claim(cell), other.claim(cell)
        assert first is not None
        assert second is not None
        assert (first.chunk, second.chunk) == (0, 1)
        assert store.claim(cell) is None
        assert store.finish(first, {cell: measured(0)})
        assert store.done(cell) == (4, 6)
        assert other.finish(second, {cell: measured(1)})
        assert other.done(cell) == (6, 6)
        assert not store.finish(first, {cell: measured(0)})
        assert store.claim(cell) is None
        assert store.read("SELECT count(*) FROM samples")[0][0] == 6
        signs = store.read('SELECT cell, "check", sentence FROM findings')
        assert signs == [(cell, "check", "sentence")]
    with Store(path, must_exist=True) as again:
        assert again.done(cell) == (6, 6)


def test_a_block_that_fails_gives_its_claim_back(tmp_path: Path) -> None:
    with Store(tmp_path / "r.sqlite") as store:
        (cell,) = register(store, "a")
        claim = store.claim(cell)
        assert claim is not None
        with pytest.raises(ZeroDivisionError), store.held(claim):
            _ = 1 / 0
        assert store.claim(cell) == claim


def set_owner(store: Store, owner: str, expires: float) -> None:
    store.connection.execute("UPDATE chunks SET owner = ?, expires = ?", (owner, expires))


def test_a_claim_is_free_when_its_process_is_dead_or_its_lease_is_over(tmp_path: Path) -> None:
    with Store(tmp_path / "r.sqlite") as store:
        (cell,) = register(store, "a")
        host = store.owner.split("/")[0]
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        later = time.time() + 60
        set_owner(store, f"{host}/{os.getppid()}/x", later)  # alive
        assert store.claim(cell) is None
        set_owner(store, f"elsewhere/{child}/x", later)  # no one can tell
        assert store.claim(cell) is None
        set_owner(store, f"elsewhere/{child}/x", time.time() - 1)
        assert store.claim(cell) is not None
        set_owner(store, f"{host}/{child}/x", later)  # dead
        assert store.claim(cell) is not None


def test_a_claim_is_renewed_while_the_work_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Store(path, lease=2.0) as store, Store(path) as other:
        (cell,) = register(store, "a")
        claim = store.claim(cell)
        assert claim is not None
        other.claim(cell)
        with store.held(claim):
            time.sleep(4.5)
            assert other.claim(cell) is None
        assert store.finish(claim, {cell: measured(0)})


def test_a_lost_claim_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Store(path, lease=0.05) as sleeper, Store(path) as other:
        (cell,) = register(sleeper, "a")
        late = sleeper.claim(cell)
        assert late is not None
        time.sleep(0.1)
        taken = other.claim(cell)
        assert taken is not None
        assert taken.chunk == late.chunk
        assert not sleeper.finish(late, {cell: measured(0)})
        assert other.done(cell) == (0, 6)
        assert other.finish(taken, {cell: measured(0)})
        assert other.done(cell) == (4, 6)


def test_several_cells_measured_together_keep_what_one_of_them_had(tmp_path: Path) -> None:
    with Store(tmp_path / "r.sqlite") as store:
        one, two = register(store, "a", "b")
        claim = store.claim(one)
        assert claim is not None
        store.finish(claim, {one: measured(0)})
        claim = store.claim(two)
        assert claim is not None
        assert store.finish(claim, {one: measured(0), two: measured(0)})
        assert store.done(one) == store.done(two) == (4, 6)


def test_cells_measured_together_are_claimed_together(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    with Store(path) as store, Store(path) as other:
        cells = register(store, "a", "b", "c")
        first, second = store.claim(*cells), other.claim(*cells)
        assert first is not None
        assert second is not None
        assert (first.chunk, second.chunk) == (0, 1)
        assert store.claim(*cells) is None, "every chunk of them is being worked on"
        assert store.finish(first, {cell: measured(0) for cell in cells})
        assert store.claim(*cells) is None, "the other works on chunk 1 of all of them"
        assert other.finish(second, {cells[0]: measured(1)})
        third = store.claim(*cells)
        assert third is not None
        assert (third.cell, third.chunk) == (cells[1], 1)


def test_a_plan_registered_again_keeps_its_cells_and_drops_old_places(tmp_path: Path) -> None:
    with Store(tmp_path / "r.sqlite") as store:
        one, two = register(store, "a", "b")
        assert register(store, "b") == [two]
        assert store.read("SELECT cell FROM entries") == [(two,)]
        assert {row[0] for row in store.read("SELECT id FROM cells")} == {one, two}


def test_foreign_newer_and_missing_files_are_refused_untouched(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to look like something")
    with pytest.raises(StoreError, match="is no SQLite file"):
        Store(text)
    assert text.read_text().startswith("not a database")
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    before = foreign.read_bytes()
    with pytest.raises(StoreError, match="of another program"):
        Store(foreign)
    assert foreign.read_bytes() == before
    newer = tmp_path / "newer.sqlite"
    Store(newer).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="schema 99"):
        Store(newer)
    with pytest.raises(StoreError, match="clcnn evaluate"):
        Store(tmp_path / "missing.sqlite", must_exist=True)
    with pytest.raises(StoreError, match="is a folder; expected"):
        Store(tmp_path)


def full_store(path: Path) -> None:
    with Store(path) as store:
        cells = register(store, *[f"cell {k}" for k in range(60)])
        for cell in cells:
            while (claim := store.claim(cell)) is not None:
                store.finish(claim, {cell: measured(claim.chunk)})


CHANGES = {
    "rows lost": "DELETE FROM samples WHERE cell = 3 AND sample = 1",
    "parts lost": "DELETE FROM chunks WHERE cell = 3 AND number = 0",
    "a table lost": "DROP TABLE findings",
    "settings broken": "UPDATE cells SET settings = '{' WHERE id = 3",
    "manifest broken": "UPDATE runs SET manifest = ''",
    "more than right": "UPDATE samples SET correct = 7 WHERE cell = 3 AND sample = 1",
    "right and wrong": "UPDATE samples SET correct = 1 - correct WHERE cell = 3 AND sample = 1",
    "a column's name": "ALTER TABLE entries RENAME COLUMN threat TO thrmat",
    "answer of another kind": "UPDATE samples SET predicted = 'abc' WHERE cell = 3 AND sample = 1",
}


@pytest.mark.parametrize("damage", ["overwritten", "cut short", *CHANGES])
def test_a_damaged_store_is_refused_with_a_remedy(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "r.sqlite"
    full_store(path)
    Store(path).close()
    content = path.read_bytes()
    if damage == "overwritten":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + b"\xff" * 8192 + content[middle + 8192 :])
    elif damage == "cut short":
        path.write_bytes(content[: len(content) * 2 // 3])
    else:
        with sqlite3.connect(path) as connection:
            connection.execute(CHANGES[damage])
    words = r"is damaged .* Move it away, with .*-wal and .* run the evaluation"
    with pytest.raises(StoreError, match=words):
        Store(path)


def changed_values(store: sqlite3.Connection) -> list[tuple[str, str]]:
    """A change of one of each kind of value that anything rests on: its name, and a statement."""
    places = {
        "runs": "id = 1",
        "cells": "id = 3",
        "entries": "place = 59",
        "chunks": "cell = 3 AND number = 1",
        "samples": "cell = 3 AND sample = 5",
        "findings": "cell = 3",
    }
    new = {"INTEGER": "{0} + 1000", "REAL": "coalesce({0}, 0) * 3 + 1", "TEXT": "'{{}}'"}
    return [
        (
            f"{table}.{column}",
            f'UPDATE {table} SET "{column}" = '
            + new.get(kind, "x'00'").format(f'"{column}"')
            + f" WHERE {place}",
        )
        for table, place in places.items()
        for _, column, kind, *_ in store.execute(f"PRAGMA table_info({table})").fetchall()
        if column not in ("owner", "expires")  # who works on it
    ]


def test_every_value_that_is_changed_is_noticed(tmp_path: Path) -> None:
    path, copy = tmp_path / "r.sqlite", tmp_path / "copy.sqlite"
    full_store(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        statements = changed_values(connection)
    assert len(statements) > 40
    unnoticed = []
    for what, statement in statements:
        for old in tmp_path.glob("copy.sqlite*"):
            old.unlink()
        shutil.copyfile(path, copy)
        with closing(sqlite3.connect(copy)) as connection, connection:
            assert connection.execute(statement).rowcount == 1, what
        with suppress(StoreError):
            Store(copy).close()
            unnoticed.append(what)
    assert unnoticed == []


def test_bits_that_flip_are_noticed_or_change_nothing(tmp_path: Path) -> None:
    path, copy = tmp_path / "r.sqlite", tmp_path / "copy.sqlite"
    full_store(path)

    def contents(place: Path) -> list[object]:
        with Store(place) as store:
            tables = ("runs", "cells", "entries", "samples", "findings")
            parts = "SELECT cell, number, count, done, seconds, plain_seconds FROM chunks"
            return [store.read(f"SELECT * FROM {name}") for name in tables] + [store.read(parts)]

    sound = contents(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole, chance, refused = path.read_bytes(), random.Random(7), 0
    for _ in range(120):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        for old in tmp_path.glob("copy.sqlite*"):
            old.unlink()
        copy.write_bytes(flipped)
        try:
            assert contents(copy) == sound
        except StoreError:
            refused += 1
    assert refused > 20


def test_a_store_without_digests_gets_them(tmp_path: Path) -> None:
    path, older = tmp_path / "r.sqlite", tmp_path / "older.sqlite"
    full_store(path)
    tables = ("runs", "cells", "entries", "chunks", "findings")
    with closing(sqlite3.connect(path)) as connection, connection:
        expected = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
        rows = connection.execute("SELECT * FROM samples").fetchall()
    before = re.sub(r",\s*digest BLOB", "", re.sub("--.*", "", schema._TABLES))
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.executescript(before)
        for name, held in {**expected, "samples": rows}.items():
            values = [row if name == "samples" else row[:-1] for row in held]
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {name} VALUES ({marks})", values)
        connection.execute(f"PRAGMA application_id = {schema.APPLICATION}")
        connection.execute("PRAGMA user_version = 1")
    with Store(older) as store:
        assert {name: store.read(f"SELECT * FROM {name}") for name in tables} == expected
        assert store.read("PRAGMA user_version") == [(2,)]
    with closing(sqlite3.connect(older)) as connection, connection:
        connection.execute("UPDATE samples SET linf = 0.3 WHERE cell = 5 AND sample = 5")
    with pytest.raises(StoreError, match="part 1 of cell 5 is not what was written"):
        Store(older)


def test_text_that_is_none_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    full_store(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE cells SET hash = CAST(x'ff41' AS TEXT) WHERE id = 3")
    with pytest.raises(StoreError, match=r"is damaged .*text that is none.* Move it away"):
        Store(path)


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    path = tmp_path / "r.sqlite"
    path.touch()
    with Store(path) as store:
        assert register(store, "a") == [1]


class Refusing:
    """A connection that says so many times that the file is in use."""

    def __init__(self, times: int, code: int) -> None:
        self.left, self.code, self.asked = times, code, 0

    def execute(self, statement: str) -> None:
        assert statement == "PRAGMA journal_mode = WAL"
        self.asked += 1
        if self.asked <= self.left:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = self.code
            raise error


def test_two_processes_that_open_a_new_file_at_once_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    patient = Refusing(3, sqlite3.SQLITE_BUSY)
    schema._write_ahead(patient)  # type: ignore[arg-type]
    assert patient.asked == 4
    broken = Refusing(1, sqlite3.SQLITE_IOERR)
    with pytest.raises(sqlite3.OperationalError):
        schema._write_ahead(broken)  # type: ignore[arg-type]
    assert broken.asked == 1
    monkeypatch.setattr(schema, "_BUSY", 0.05)
    for_ever = Refusing(10**6, sqlite3.SQLITE_BUSY)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        schema._write_ahead(for_ever)  # type: ignore[arg-type]
    assert for_ever.asked > 1


@pytest.mark.parametrize("reads", [1, 2])
def test_tables_that_another_process_makes_while_a_file_is_checked_are_no_foreign_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    path = tmp_path / "r.sqlite"
    with sqlite3.connect(path) as connection:  # as far as another process may have come
        connection.execute("PRAGMA journal_mode = WAL")
    read, asked = schema._number, 0

    def overtaken(connection: sqlite3.Connection, pragma: str) -> int:
        nonlocal asked
        number = read(connection, pragma)
        asked += 1
        if asked == reads:
            schema.connect(path).close()
        return number

    monkeypatch.setattr(schema, "_number", overtaken)
    schema.check_file(path)
    assert asked > reads  # the other one has been there
    with Store(path) as store:
        assert register(store, "a") == [1]
