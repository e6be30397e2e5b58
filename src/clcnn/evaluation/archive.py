"""A store of results as one compressed file, to be kept beside a text, sent or published.

It holds every measured sample, so that a report can be made of it and a run go on from it; the
adversarial examples and fits beside a store are not in it: they are made again when needed.
"""

from __future__ import annotations

import lzma
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from clcnn.data.files import replacing
from clcnn.evaluation.schema import PACKED, StoreError, check_file, explained

SUFFIX = ".xz"
_LISTED = "SELECT cell FROM entries"


def is_archive(path: Path) -> bool:
    """Whether ``path`` is a file that `pack` may have written."""
    if not path.is_file():
        return False
    with explained(path), path.open("rb") as file:
        return file.read(len(PACKED)) == PACKED


def pack(
    store: Path,
    out: Path | None = None,
    *,
    listed_only: bool = False,
    without: Sequence[str] = (),
) -> Path:
    """Write all that is stored at this moment to ``out`` (STORE.xz); runs may go on meanwhile.

    ``without`` names plans that the copy does not list: what is not finished, say.
    With ``listed_only`` without the cells that no plan lists any more: what older code or settings
    measured. That is refused while listed cells are not complete: a run that has begun no longer
    lists what it has yet to measure again.
    """
    if not store.exists():
        raise StoreError(
            f"there is no store {store} to pack; expected one that `clcnn evaluate` or `clcnn "
            "experiment` wrote (--store). Give its path."
        )
    check_file(store)
    if not store.stat().st_size:
        raise StoreError(f"{store} is empty: there is nothing to pack.")
    target = out or store.with_name(store.name + SUFFIX)
    if target.exists() and not is_archive(target):
        raise StoreError(
            f"{target} exists and is no archive: give another name, nothing was written."
        )
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy.sqlite"
        with explained(store), closing(sqlite3.connect(store)) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        with explained(copy), closing(sqlite3.connect(copy)) as connection:
            # who worked on what at this moment is nobody's claim in a copy
            connection.execute("UPDATE chunks SET owner = NULL, expires = NULL")
            _leave_out(store, connection, without)
            if listed_only:
                _refuse_incomplete(store, connection)
                for table in ("samples", "chunks", "findings"):
                    connection.execute(f"DELETE FROM {table} WHERE cell NOT IN ({_LISTED})")
                connection.execute(f"DELETE FROM cells WHERE id NOT IN ({_LISTED})")
            connection.commit()
            if listed_only:
                connection.execute("VACUUM")
        with (
            replacing(target) as partial,
            copy.open("rb") as source,
            lzma.open(partial, "wb") as file,
        ):
            shutil.copyfileobj(source, file)
    return target


def _leave_out(store: Path, connection: sqlite3.Connection, plans: Sequence[str]) -> None:
    there = [name for (name,) in connection.execute("SELECT DISTINCT plan FROM entries")]
    for plan in plans:
        if plan not in there:
            raise StoreError(
                f"{store} has no plan {plan!r} to leave out; expected one of "
                f"{', '.join(map(repr, there)) or 'none'}."
            )
        connection.execute("DELETE FROM entries WHERE plan = ?", (plan,))


def _refuse_incomplete(store: Path, connection: sqlite3.Connection) -> None:
    left = connection.execute(
        "SELECT plan, count(DISTINCT cell) FROM entries JOIN chunks USING (cell) "
        "WHERE NOT done GROUP BY plan"
    ).fetchall()
    if left:
        raise StoreError(
            f"{store} has cells that are not complete, of the plans "
            f"{', '.join(f'{plan!r} ({count})' for plan, count in left)}; expected none before "
            "older results are left behind. Let the runs end, leave these plans out (--without), "
            "or pack all of it."
        )


def unpack(archive: Path, store: Path | None = None) -> Path:
    """Make the store that `pack` saved, at ``store`` (the archive's name without .xz)."""
    if not archive.exists():
        raise StoreError(
            f"there is no file {archive} to unpack; expected one that `clcnn store pack` wrote. "
            "Give its path."
        )
    if not is_archive(archive):
        raise StoreError(f"{archive} is no archive of a store: give a file of `clcnn store pack`.")
    if store is None:
        if archive.suffix != SUFFIX:
            raise StoreError(f"{archive} does not end in {SUFFIX}: say where to unpack it.")
        store = archive.with_suffix("")
    there = [path for path in _files_of(store) if path.exists()]
    if there:
        raise StoreError(
            f"found {', '.join(map(str, there))}: move all of it away or unpack to another place, "
            "nothing was written."
        )
    with replacing(store) as partial:
        try:
            with lzma.open(archive) as source, partial.open("wb") as file:
                shutil.copyfileobj(source, file)
        except (lzma.LZMAError, EOFError) as error:
            raise StoreError(
                f"{archive} is damaged ({error}): get it again, nothing was written."
            ) from error
        try:
            check_file(partial, contents=False)  # which xz has sums of its own for
            whole = bool(partial.stat().st_size)
        except StoreError as error:
            reason = str(error).replace(str(partial), "what is in it")
            raise StoreError(f"{archive} holds no store that can be used: {reason}") from error
        if not whole:
            raise StoreError(f"{archive} holds an empty file and no store, nothing was written.")
    return store


def _files_of(store: Path) -> list[Path]:
    """The store, and what SQLite leaves beside it after a kill: read, it would change the store."""
    return [store.with_name(store.name + end) for end in ("", "-wal", "-shm", "-journal")]


@contextmanager
def readable(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """Stores as they are, archives unpacked into a folder of their own that goes at the end.

    A store that may not be written to is copied there: SQLite writes beside what it reads.
    """
    with tempfile.TemporaryDirectory() as folder:
        yield [
            _readable(path, Path(folder) / str(number))
            for number, path in enumerate(dict.fromkeys(paths))
        ]


def _readable(path: Path, folder: Path) -> Path:
    if is_archive(path):
        return unpack(path, folder / path.with_suffix("").name)
    if not path.is_file() or all(os.access(place, os.W_OK) for place in (path, path.parent)):
        return path
    copy = folder / path.name
    with explained(path):
        folder.mkdir()
        for part, own in zip(_files_of(path), _files_of(copy), strict=True):
            if part.exists() and not part.name.endswith("-shm"):  # which SQLite makes again
                shutil.copyfile(part, own)
    return copy
