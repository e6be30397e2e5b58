"""Data sets as tensors in [0,1]: `cifar10`, `cifar100`, `mnist`, `fashion_mnist`."""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from clcnn.data.catalogue import CATALOGUE, Entry, Layout
from clcnn.data.formats import Bytes, Labels, read_cifar_binary, read_cifar_pickle, read_idx
from clcnn.errors import DataError

Split = Literal["train", "heldout", "test"]

HELDOUT = 5_000
"""Training images kept from every training and fit, for tuning, validation and calibration."""

HELDOUT_SEED = 2021


class Images(Dataset[tuple[Tensor, int]]):
    """Images and labels, map-style: ``data[i]`` is (x, y) with x in [0,1] of shape (C, H, W).

    ``pixels`` (N, C, H, W) are the bytes themselves, a quarter of the memory of `tensors`;
    ``labels`` (N,) are int64.
    """

    def __init__(self, entry: Entry, split: str, pixels: Tensor, labels: Tensor) -> None:
        self.entry = entry
        self.split = split
        self.pixels = pixels
        self.labels = labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return to_unit(self.pixels[index]), int(self.labels[index])

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All images in [0,1] and all labels, as two tensors."""
        return to_unit(self.pixels), self.labels

    def __repr__(self) -> str:
        return f"Images({self.entry.name!r}, split={self.split!r}, {len(self)} images)"


def to_unit(pixels: Tensor) -> Tensor:
    """Bytes as float32 in [0,1]."""
    return pixels.to(torch.float32).div_(255)


def cifar10(split: Split = "train", root: str | Path | None = None) -> Images:
    """CIFAR-10, 3 x 32 x 32: ``split`` is "train" (45,000), "heldout" (5,000) or "test"."""
    return load("cifar10", split, root)


def cifar100(split: Split = "train", root: str | Path | None = None) -> Images:
    """CIFAR-100 with its fine labels, 3 x 32 x 32; splits as in `cifar10`."""
    return load("cifar100", split, root)


def mnist(split: Split = "train", root: str | Path | None = None) -> Images:
    """MNIST, 1 x 28 x 28: ``split`` is "train" (55,000), "heldout" (5,000) or "test"."""
    return load("mnist", split, root)


def fashion_mnist(split: Split = "train", root: str | Path | None = None) -> Images:
    """Fashion-MNIST, 1 x 28 x 28; splits as in `mnist`."""
    return load("fashion-mnist", split, root)


def load(name: str, split: Split = "train", root: str | Path | None = None) -> Images:
    """The data set called ``name``, from the files at ``root`` (default: `default_root`)."""
    entry = lookup(name)
    if split not in get_args(Split):
        raise DataError(f"split {split!r} is unknown, expected one of {', '.join(get_args(Split))}")
    layout, folder = locate(entry, root)
    pixels, labels = _read(layout, folder, "test" if split == "test" else "train")
    _check(entry, pixels, labels, folder)
    if split != "test":
        chosen = heldout_indices(len(labels))
        if split == "train":
            chosen = np.setdiff1d(np.arange(len(labels)), chosen)
        pixels, labels = pixels[chosen], labels[chosen]
    return Images(entry, split, torch.from_numpy(pixels.copy()), torch.from_numpy(labels))


def lookup(name: str) -> Entry:
    """The catalogue's entry; underscores and hyphens are the same."""
    entry = CATALOGUE.get(name.replace("_", "-"))
    if entry is None:
        raise DataError(f"data set {name!r} is unknown, expected one of {', '.join(CATALOGUE)}")
    return entry


def default_root() -> Path:
    """Where data lie unless told otherwise: $CLCNN_DATA, else ~/.cache/clcnn."""
    return Path(os.environ.get("CLCNN_DATA") or "~/.cache/clcnn").expanduser()


def heldout_indices(total: int) -> Labels:
    """The images held out of ``total`` training images, sorted; the same on every machine.

    ``RandomState`` is the generator whose stream numpy has frozen for good.
    """
    count = min(HELDOUT, total // 10)
    chosen = np.random.RandomState(HELDOUT_SEED).permutation(total)[:count]
    return np.sort(chosen).astype(np.int64)


def locate(entry: Entry, root: str | Path | None = None) -> tuple[Layout, Path]:
    """The first folder below ``root`` that has all of the files, and how they lie there."""
    base = default_root() if root is None else Path(root).expanduser()
    tried = []
    for layout in entry.layouts:
        for name in layout.folders:
            folder = base / name
            tried.append(name)
            if all(_existing(folder, file) for file in layout.files):
                return layout, folder
    raise DataError(
        f"{entry.name} was not found below {base} (looked for the files of {', '.join(tried)}). "
        f"Fetch it with `clcnn data get {entry.name} --root {base}`, or give the root under which "
        "the official files lie."
    )


def _existing(folder: Path, file: str) -> Path | None:
    return next((p for p in (folder / file, folder / f"{file}.gz") if p.is_file()), None)


def _read(layout: Layout, folder: Path, part: Literal["train", "test"]) -> tuple[Bytes, Labels]:
    files = layout.train if part == "train" else layout.test
    contents = [(checked(folder, file, md5), str(folder / file)) for file, md5 in files.items()]
    if layout.reader == "idx":
        images, labels = (read_idx(content, what) for content, what in contents)
        return images[:, None], labels.astype(np.int64)
    read = read_cifar_pickle if layout.reader == "cifar-pickle" else read_cifar_binary
    batches = [read(content, what) for content, what in contents]
    return np.concatenate([b[0] for b in batches]), np.concatenate([b[1] for b in batches])


def checked(folder: Path, file: str, md5: str) -> bytes:
    """The content of a file (unzipped if need be) once its checksum is the known one."""
    path = _existing(folder, file)
    if path is None:
        raise DataError(f"{folder / file} is missing. Fetch it with `clcnn data get`.")
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{path} cannot be read ({error}). Delete it and fetch the data again with "
            "`clcnn data get`."
        ) from error
    verify(content, md5, str(path))
    return content


def verify(content: bytes, md5: str, what: str) -> None:
    """Fail unless ``content`` has the checksum ``md5``."""
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(
            f"{what} has MD5 {found}, expected {md5}: it is truncated, altered or another file. "
            "Delete it and fetch the data again with `clcnn data get`."
        )


def _check(entry: Entry, pixels: Bytes, labels: Labels, folder: Path) -> None:
    if pixels.shape[1:] != entry.shape or len(pixels) != len(labels):
        raise DataError(
            f"{folder} holds {len(labels)} labels and images of shape {pixels.shape}, expected "
            f"as many images of {entry.shape}"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < entry.num_classes:
        raise DataError(
            f"{folder} holds labels from {labels.min()} to {labels.max()}, expected 0 to "
            f"{entry.num_classes - 1}"
        )
