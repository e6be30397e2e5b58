"""Loaders against files in the official formats, written here by independent code."""

from __future__ import annotations

import gzip
import hashlib
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from clcnn import data
from clcnn.data import catalogue, datasets
from clcnn.data.catalogue import CATALOGUE, Entry, Layout
from clcnn.errors import DataError


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def cifar_pickle(path: Path, pixels: np.ndarray, labels: list[int], key: bytes) -> None:
    """A batch as the official files hold it: byte keys, rows of R, G, B planes."""
    batch = {b"batch_label": b"one", key: labels, b"data": pixels, b"filenames": [b"a.png"]}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(batch, protocol=4))


def known(monkeypatch: pytest.MonkeyPatch, name: str, layout: Layout) -> None:
    """Put the tiny files' checksums in the place of the published ones."""
    old = CATALOGUE[name]
    entry = Entry(
        old.name, old.shape, old.classes, (layout,), old.sources, old.mean, old.std, old.flips
    )
    monkeypatch.setitem(CATALOGUE, name, entry)


@pytest.fixture
def cifar100(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, np.ndarray]:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (40, 3072), dtype=np.uint8)
    folder = tmp_path / "cifar-100-python"
    cifar_pickle(folder / "train", pixels, list(range(40, 80)), b"fine_labels")
    cifar_pickle(folder / "test", pixels[:10], list(range(10)), b"fine_labels")
    layout = Layout(
        ("cifar-100-python",),
        "cifar-pickle",
        {"train": md5(folder / "train")},
        {"test": md5(folder / "test")},
    )
    known(monkeypatch, "cifar100", layout)
    return tmp_path, pixels


def test_cifar100_reads_the_official_format(cifar100: tuple[Path, np.ndarray]) -> None:
    root, pixels = cifar100
    images = data.cifar100("test", root)
    assert images.labels.tolist() == list(range(10))
    x, y = images[3]
    assert y == 3
    # plane 0 is red, row by row
    assert x[0, 0, 1].item() == pytest.approx(pixels[3, 1] / 255)
    assert x[2, 31, 31].item() == pytest.approx(pixels[3, -1] / 255)
    whole, labels = images.tensors()
    assert whole.dtype == torch.float32
    assert whole.shape == (10, 3, 32, 32)
    assert labels.dtype == torch.int64
    assert torch.equal(whole[3], x)


def test_train_and_heldout_share_the_training_images(cifar100: tuple[Path, np.ndarray]) -> None:
    root, _ = cifar100
    train, heldout = data.cifar100("train", root), data.cifar100("heldout", root)
    assert len(heldout) == 4
    assert sorted(train.labels.tolist() + heldout.labels.tolist()) == list(range(40, 80))


def test_heldout_images_are_always_the_same() -> None:
    chosen = datasets.heldout_indices(50_000)
    assert len(chosen) == len(set(chosen.tolist())) == 5_000
    # the stream of numpy's RandomState is frozen: a change here would leak training images
    assert chosen[:5].tolist() == HELDOUT_FIRST
    assert hashlib.md5(chosen.astype("<i8").tobytes()).hexdigest() == HELDOUT_MD5


HELDOUT_FIRST = [8, 9, 17, 31, 39]
HELDOUT_MD5 = "a29994cde95c07d8d40974afaf383960"


def test_altered_file_is_refused(cifar100: tuple[Path, np.ndarray]) -> None:
    root, _ = cifar100
    path = root / "cifar-100-python" / "test"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"MD5 .* expected .*clcnn data get"):
        data.cifar100("test", root)


def test_missing_data_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="clcnn data get cifar10"):
        data.cifar10("test", tmp_path)


def test_unknown_names_and_splits(cifar100: tuple[Path, np.ndarray]) -> None:
    with pytest.raises(DataError, match=r"imagenet.*cifar10"):
        data.load("imagenet")
    with pytest.raises(DataError, match=r"validation.*train, heldout, test"):
        data.load("cifar100", "validation", cifar100[0])  # type: ignore[arg-type]


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(">BBBB", 0, 0, 8, array.ndim)
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_idx_files_plain_and_gzipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    images = random.integers(0, 256, (20, 28, 28), dtype=np.uint8)
    labels = (np.arange(20) % 10).astype(np.uint8)
    folder = tmp_path / "mnist"
    folder.mkdir()
    sums = {}
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            content = idx(array)
            name = f"{part}-{kind}-ubyte"
            sums[name] = hashlib.md5(content).hexdigest()
            if part == "train":
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    names = list(sums)
    layout = Layout(
        ("MNIST/raw", "mnist"),
        "idx",
        {n: sums[n] for n in names[:2]},
        {n: sums[n] for n in names[2:]},
    )
    known(monkeypatch, "mnist", layout)
    test = data.mnist("test", tmp_path)
    assert torch.equal(test.pixels[:, 0], torch.from_numpy(images))
    assert test[7][0].shape == (1, 28, 28)
    assert len(data.mnist("train", tmp_path)) == 18
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(DataError, match="cannot be read"):
        data.mnist("train", tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "IDX header"),
        (b"\0\0\x09\x01\0\0\0\0", "IDX header"),
        (b"\0\0\x08\x03\0\0", "3 axes"),
        (b"\0\0\x08\x01\0\0\0\x05abc", "bytes of data"),
    ],
)
def test_broken_idx(content: bytes, expected: str) -> None:
    from clcnn.data.formats import read_idx

    with pytest.raises(DataError, match=expected):
        read_idx(content, "file")


def test_cifar_binary_layout() -> None:
    from clcnn.data.formats import read_cifar_binary, write_cifar_binary

    content = bytes([7, *range(256), *([9] * (3072 - 256))])
    images, labels = read_cifar_binary(content, "file")
    assert labels.tolist() == [7]
    assert images[0, 0, 0, :4].tolist() == [0, 1, 2, 3]
    assert images[0, 0, 1, 0] == 32
    assert write_cifar_binary(images, labels) == content
    with pytest.raises(DataError, match=r"3,073"):
        read_cifar_binary(content[:-1], "file")


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.float32), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"labels": [0, 1]},
    ],
)
def test_pickles_of_another_shape(batch: dict[bytes, object]) -> None:
    from clcnn.data.formats import read_cifar_pickle

    with pytest.raises(DataError, match="does not hold"):
        read_cifar_pickle(pickle.dumps(batch), "file")


def test_labels_out_of_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cifar-100-python"
    pixels = np.zeros((2, 3072), np.uint8)
    cifar_pickle(folder / "train", pixels, [0, 100], b"fine_labels")
    cifar_pickle(folder / "test", pixels, [0, 100], b"fine_labels")
    sums = {n: md5(folder / n) for n in ("train", "test")}
    layout = Layout(
        ("cifar-100-python",), "cifar-pickle", {"train": sums["train"]}, {"test": sums["test"]}
    )
    known(monkeypatch, "cifar100", layout)
    with pytest.raises(DataError, match="labels from 0 to 100, expected 0 to 99"):
        data.cifar100("test", tmp_path)


def test_default_root_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLCNN_DATA", "/somewhere")
    assert data.default_root() == Path("/somewhere")
    monkeypatch.delenv("CLCNN_DATA")
    assert data.default_root().name == "clcnn"


def test_every_checksum_is_an_md5() -> None:
    for entry in catalogue.CATALOGUE.values():
        for layout in entry.layouts:
            assert layout.files
            for checksum in layout.files.values():
                assert len(bytes.fromhex(checksum)) == 16
