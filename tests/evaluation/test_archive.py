"""Stores as compressed files: everything comes back, and nothing damaged is taken."""

from __future__ import annotations

import json
import lzma
import sqlite3
from pathlib import Path

import pytest
from evaluation.test_store import measured, register

from clcnn import cli
from clcnn.evaluation import Store, StoreError
from clcnn.evaluation.archive import is_archive, pack, readable, unpack


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one chunk of two done."""
    path = tmp_path / "r.sqlite"
    with Store(path) as opened:
        (cell,) = register(opened, "a")
        claim = opened.claim(cell)
        assert claim is not None
        opened.finish(claim, {cell: measured(0)})
    return path


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(path) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
        return {
            name: connection.execute(f"SELECT * FROM {name}").fetchall()
            for name in names
            if not name.startswith("sqlite_")
        }


def test_an_archive_is_no_store_to_write_to(store: Path) -> None:
    archive = pack(store)
    before = archive.read_bytes()
    with pytest.raises(StoreError, match=r"is packed; .* `clcnn store unpack"):
        Store(archive)
    assert archive.read_bytes() == before


def test_what_is_no_store_cannot_be_packed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is a folder; expected a store of results"):
        pack(tmp_path)
    with pytest.raises(StoreError, match=r"there is no store .* Give its path"):
        pack(tmp_path / "no.sqlite")


def test_a_store_that_may_not_be_written_to_is_read_from_a_copy(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with readable([store]) as paths:
        assert paths == [store]
    # Who runs as root may write anywhere: the answer is made here.
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != store.parent)
    with Store(store):  # and somebody has it open, with a journal beside it
        before = sorted(p.name for p in store.parent.iterdir())
        with readable([store]) as (copy,):
            assert copy != store
            assert copy.name == store.name
            assert contents(copy) == contents(store)
        assert sorted(p.name for p in store.parent.iterdir()) == before
    assert not copy.exists()


def test_all_rows_come_back_and_a_run_goes_on(store: Path, tmp_path: Path) -> None:
    archive = pack(store)
    assert archive == tmp_path / "r.sqlite.xz"
    assert is_archive(archive)
    assert not is_archive(store)
    again = unpack(archive, tmp_path / "deep" / "again.sqlite")
    assert contents(again) == contents(store)
    assert contents(again)["samples"]
    with Store(again) as opened:
        (cell,) = register(opened, "a")
        assert opened.done(cell) == (4, 6)
        claim = opened.claim(cell)
        assert claim is not None
        assert claim.chunk == 1


def test_cells_that_no_plan_lists_stay_behind(store: Path, tmp_path: Path) -> None:
    with Store(store) as opened:
        (cell,) = register(opened, "b")  # takes the place of "a" in the plan
        with pytest.raises(
            StoreError, match=r"not complete, of the plans '.*' \(1\); expected none"
        ):
            pack(store, listed_only=True)
        for chunk in range(2):
            claim = opened.claim(cell)
            assert claim is not None
            opened.finish(claim, {cell: measured(chunk)})
    whole = contents(unpack(pack(store), tmp_path / "whole.sqlite"))
    archive = pack(store, tmp_path / "listed.xz", listed_only=True)
    listed = contents(unpack(archive, tmp_path / "listed.sqlite"))
    assert {row[0] for row in whole["samples"]} == {cell - 1, cell}
    for table, rows in listed.items():
        column = 0 if table in ("cells", "chunks", "samples", "findings") else None
        if column is not None:
            assert rows == [row for row in whole[table] if row[column] == cell]
        else:
            assert rows == whole[table]
    assert len(listed["samples"]) == 6


def test_plans_are_left_out_by_name(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plan,) = {row[0] for row in contents(store)["entries"]}
    with pytest.raises(
        StoreError, match=f"no plan 'others' to leave out; expected one of '{plan}'"
    ):
        pack(store, without=["others"])
    assert not (tmp_path / "r.sqlite.xz").exists()
    bare = contents(unpack(pack(store, without=[plan]), tmp_path / "bare.sqlite"))
    assert bare["entries"] == []
    assert bare["samples"] == contents(store)["samples"], "the cells may be used again"
    options = ["--listed-only", "--without", plan, "--out", str(tmp_path / "none.xz")]
    packed = tmp_path / "none.xz"
    # What is incomplete is left out.
    assert cli.run(["store", "pack", str(store), *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "written": str(packed),
        "bytes": packed.stat().st_size,
    }
    none = contents(unpack(tmp_path / "none.xz", tmp_path / "none.sqlite"))
    assert (none["cells"], none["samples"]) == ([], [])
    assert contents(store)["entries"], "the store itself stays as it is"


def test_a_store_in_use_is_packed_and_its_claims_stay_behind(store: Path, tmp_path: Path) -> None:
    with Store(store) as opened:
        (cell,) = register(opened, "a")
        claim = opened.claim(cell)
        assert claim is not None
        archive = pack(store, tmp_path / "meanwhile.xz")
        assert opened.finish(claim, {cell: measured(1)})
    with Store(unpack(archive, tmp_path / "other.sqlite")) as copy:
        assert copy.done(cell) == (4, 6)
        assert copy.read("SELECT owner FROM chunks WHERE owner NOT NULL") == []


def test_what_is_there_is_not_written_over(store: Path) -> None:
    archive = pack(store)
    before = store.read_bytes()
    with pytest.raises(StoreError, match=r"found .*r.sqlite: move all of it away"):
        unpack(archive)
    with pytest.raises(StoreError, match="exists and is no archive"):
        pack(store, store)
    assert store.read_bytes() == before
    assert pack(store) == archive  # an archive is replaced by a newer one


@pytest.mark.parametrize("end", ["-wal", "-shm", "-journal"])
def test_what_a_kill_left_is_not_mixed_with_an_archive(
    store: Path, tmp_path: Path, end: str
) -> None:
    archive = pack(store)
    target = tmp_path / "new.sqlite"
    left = tmp_path / f"new.sqlite{end}"
    left.write_bytes(b"of another store")
    with pytest.raises(StoreError, match=f"found .*new.sqlite{end}: move"):
        unpack(archive, target)
    assert left.read_bytes() == b"of another store"
    assert not target.exists()


def test_an_archive_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"there is no file .*none\.xz to unpack; expected one"):
        unpack(tmp_path / "none.xz")


def test_files_that_are_no_archives(store: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no archive"):
        unpack(store, tmp_path / "x.sqlite")
    (tmp_path / "empty.sqlite").touch()
    with pytest.raises(StoreError, match=r"empty.sqlite is empty"):
        pack(tmp_path / "empty.sqlite")
    with pytest.raises(StoreError, match="there is no store"):
        pack(tmp_path / "none.sqlite")
    archive = pack(store)
    renamed = archive.rename(tmp_path / "r.packed")
    with pytest.raises(StoreError, match="say where to unpack"):
        unpack(renamed)


@pytest.mark.parametrize("harm", ["cut", "changed"])
def test_a_damaged_archive_leaves_nothing(store: Path, tmp_path: Path, harm: str) -> None:
    archive = pack(store)
    content = bytearray(archive.read_bytes())
    if harm == "cut":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 255
    archive.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        unpack(archive, tmp_path / "x" / "x.sqlite")
    assert not list((tmp_path / "x").iterdir())


@pytest.mark.parametrize(
    ("content", "words"), [(b"hello", "what is in it is no SQLite file"), (b"", "an empty file")]
)
def test_a_foreign_file_inside_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    archive = tmp_path / "f.sqlite.xz"
    archive.write_bytes(lzma.compress(content))
    with pytest.raises(StoreError, match=rf"f.sqlite.xz holds .*{words}"):
        unpack(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["f.sqlite.xz"]


def test_readable_takes_both_and_cleans_up(store: Path) -> None:
    archive = pack(store)
    with readable([archive, store, archive]) as (unpacked, plain):
        assert plain == store
        assert unpacked.name == "r.sqlite"
        assert contents(unpacked) == contents(store)
    assert not unpacked.exists()


def test_the_commands(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["store", "pack", str(store)]) == 0
    assert "written: " in capsys.readouterr().out
    there = tmp_path / "there.sqlite"
    assert cli.run(["store", "unpack", f"{store}.xz", "--out", str(there)]) == 0
    assert contents(there) == contents(store)
    assert cli.run(["store", "unpack", f"{store}.xz"]) == 1
    assert "move all of it away" in capsys.readouterr().err
