"""A file is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from clcnn.data.files import StorageError, explained, replacing, write_bytes, write_text


def _write_half(path: Path, error: BaseException) -> None:
    with replacing(path) as partial:
        partial.write_text("half")
        raise error


def test_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_text(path, "one")
    write_bytes(path, b"two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ZeroDivisionError, SystemExit])
def test_an_interruption_keeps_the_old_file(tmp_path: Path, stop: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(stop):
        _write_half(path, stop())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_full_disk(tmp_path: Path, error: Exception) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(StorageError, match=r"disk is full\. The file of before is untouched"):
        _write_half(path, error)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_other_errors_of_the_system_that_a_library_wraps(tmp_path: Path) -> None:
    path = tmp_path / "file"
    error = RuntimeError("Error while serializing: I/O error: File too large (os error 27)")
    with pytest.raises(StorageError, match=r"File too large .*Nothing was left behind"):
        _write_half(path, error)
    with pytest.raises(RuntimeError, match="a fault of ours"):
        _write_half(path, RuntimeError("a fault of ours"))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_a_really_full_device() -> None:
    full = Path("/dev/full")
    with pytest.raises(StorageError, match="disk is full"), explained(full):
        full.write_bytes(b"x" * 100_000)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="cannot write"):
        write_text(tmp_path / "file" / "below", "text")
