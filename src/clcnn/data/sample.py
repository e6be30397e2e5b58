"""A sample of real images that comes with the package: PNG sprites, made by a seeded command."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clcnn.data.datasets import Split, load, lookup, to_unit
from clcnn.data.files import write_bytes, write_text
from clcnn.data.formats import Bytes, Labels
from clcnn.errors import DataError

SPRITES = Path(__file__).parent / "sprites"

_COLUMNS = 50


@dataclass(frozen=True)
class Sample:
    """``train`` and ``test``, each a pair (x, y): images in [0,1] and their int64 labels."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def sample(name: str = "cifar10") -> Sample:
    """The images that come with the package: 2,000 training and 1,000 test images of CIFAR-10.

    Its training images are never held-out ones. ``sample("fashion-mnist")`` is a smaller one.
    """
    return Sample(train=_read(name, "train"), test=_read(name, "test"))


def make(
    name: str, out: Path, train: int, test: int, seed: int, root: str | Path | None = None
) -> list[Path]:
    """Choose as many images of each class by ``seed`` and write sprites and labels to ``out``."""
    entry = lookup(name)
    written = []
    counts: dict[Split, int] = {"train": train, "test": test}
    for split, count in counts.items():
        images = load(entry.name, split, root)
        chosen = _choose(images.labels.numpy(), count, entry.num_classes, seed)
        facts = {
            "data": entry.name,
            "split": split,
            "seed": seed,
            "columns": _COLUMNS,
            "labels": images.labels[chosen].tolist(),
        }
        sprite, labels = (out / f"{entry.name}-{split}.{end}" for end in ("png", "json"))
        write_bytes(sprite, _encode(images.pixels[chosen].numpy()))
        write_text(labels, json.dumps(facts) + "\n")
        written += [sprite, labels]
    return written


def imaging() -> Any:
    """Pillow's ``Image``, with a clear error where it is not installed."""
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError("reading PNG images needs Pillow: pip install 'clcnn[data]'") from error
    return Image


def _choose(labels: Labels, count: int, classes: int, seed: int) -> Labels:
    """As many of each class, in a mixed order; `RandomState`'s stream never changes."""
    if count % classes:
        raise DataError(f"{count} images cannot be shared by {classes} classes: use a multiple")
    random = np.random.RandomState(seed)
    picked = [
        random.permutation(np.flatnonzero(labels == k))[: count // classes] for k in range(classes)
    ]
    return random.permutation(np.concatenate(picked)).astype(np.int64)


def _encode(pixels: Bytes) -> bytes:
    """Images side by side, 50 a row, as one PNG; the last row is filled up with black."""
    count, channels, height, width = pixels.shape
    rows = -(-count // _COLUMNS)
    sheet = np.zeros((rows * _COLUMNS, channels, height, width), dtype=np.uint8)
    sheet[:count] = pixels
    tiles = sheet.reshape(rows, _COLUMNS, channels, height, width).transpose(0, 3, 1, 4, 2)
    picture = tiles.reshape(rows * height, _COLUMNS * width, channels)
    out = io.BytesIO()
    imaging().fromarray(picture.squeeze(-1) if channels == 1 else picture).save(
        out, format="PNG", optimize=True
    )
    return out.getvalue()


def _read(name: str, split: str) -> tuple[Tensor, Tensor]:
    channels, height, width = lookup(name).shape
    stem = f"{lookup(name).name}-{split}"
    if not (SPRITES / f"{stem}.png").is_file():
        raise DataError(
            f"no sample of {name!r} comes with the package, expected one of "
            f"{', '.join(sorted(p.stem.removesuffix('-test') for p in SPRITES.glob('*-test.png')))}"
        )
    facts = json.loads((SPRITES / f"{stem}.json").read_text())
    with imaging().open(SPRITES / f"{stem}.png") as picture:
        sheet = np.asarray(picture)
    columns = facts["columns"]
    tiles = sheet.reshape(-1, height, columns, width, channels).transpose(0, 2, 4, 1, 3)
    pixels = tiles.reshape(-1, channels, height, width)[: len(facts["labels"])]
    return to_unit(torch.from_numpy(pixels.copy())), torch.tensor(facts["labels"])
