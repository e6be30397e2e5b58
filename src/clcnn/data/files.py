"""Files that are either whole or not there: write beside, then replace in one step."""

from __future__ import annotations

import errno
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clcnn.errors import ClcnnError

_SYSTEM = re.compile(r"No space left on device|\(os error \d+\)")
"""How safetensors words the system's errors, which it wraps in one of its own."""


class StorageError(ClcnnError, OSError):
    """A file cannot be written: the disk is full, or the folder does not allow it."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; it takes ``path``'s place when all went well.

    Whatever goes wrong in between (a full disk, a kill, Ctrl-C), what was at ``path`` before is
    still there, whole.
    """
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(f".{path.name}.partial", ".", path.parent)
        os.close(handle)
    partial = Path(name)
    try:
        with explained(path):
            yield partial
            with partial.open("rb+") as written:
                os.fsync(written.fileno())
            partial.chmod(0o644)
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's errors on writing into one that says what is lost and what to do."""
    try:
        yield
    except StorageError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and not _SYSTEM.search(str(error)):
            raise
        cause = "the disk is full" if _no_space(error) else str(error)
        kept = "The file of before is untouched" if path.exists() else "Nothing was left behind"
        raise StorageError(
            f"cannot write {path}: {cause}. {kept}: make room or choose another folder, then run "
            "the same command again."
        ) from error


def _no_space(error: Exception) -> bool:
    """Whether the disk is full."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return "No space left on device" in str(error)


def write_bytes(path: Path, content: bytes) -> None:
    """Put ``content`` at ``path``, whole or not at all."""
    with replacing(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, content: str) -> None:
    """Put ``content`` at ``path``, whole or not at all."""
    write_bytes(path, content.encode())
