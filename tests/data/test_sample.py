"""The sample that comes with the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from clcnn import data
from clcnn.data.catalogue import CATALOGUE, Entry
from clcnn.data.datasets import Images
from clcnn.data.sample import SPRITES
from clcnn.data.sample import sample as sample_module_function
from clcnn.errors import DataError

sample_room = sys.modules["clcnn.data.sample"]


def test_cifar10() -> None:
    sample = data.sample()
    for (x, y), count in ((sample.train, 2000), (sample.test, 1000)):
        assert x.shape == (count, 3, 32, 32)
        assert x.dtype == torch.float32
        assert x.min() == 0
        assert x.max() == 1
        assert y.bincount().tolist() == [count // 10] * 10
    # natural images: neighbouring pixels agree far better than distant ones
    x = sample.test[0]
    near = (x[..., 1:] - x[..., :-1]).abs().mean()
    far = (x[..., 16:] - x[..., :-16]).abs().mean()
    assert near < 0.3 * far


def test_size() -> None:
    assert sum(path.stat().st_size for path in SPRITES.iterdir()) <= 8e6


def test_unknown() -> None:
    with pytest.raises(DataError, match="expected one of cifar10, fashion-mnist"):
        data.sample("mnist")


@pytest.mark.parametrize("channels", [1, 3])
def test_what_is_made_is_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    entry = Entry("tiny", (channels, 4, 6), 3, (), (), (0.5,) * channels, (0.5,) * channels)
    monkeypatch.setitem(CATALOGUE, "tiny", entry)
    pixels = torch.randint(0, 256, (300, channels, 4, 6), dtype=torch.uint8)
    images = Images(entry, "test", pixels, torch.arange(300) % 3)
    asked = []

    def load(name: str, split: str, root: object) -> Images:
        asked.append(split)
        return images

    monkeypatch.setattr(sample_room, "load", load)
    monkeypatch.setattr(sample_room, "SPRITES", tmp_path)
    sample_room.make("tiny", tmp_path, 60, 9, 5)
    assert asked == ["train", "test"]  # never the held-out images
    made = sample_module_function("tiny")
    x, y = made.train
    assert y.bincount().tolist() == [20, 20, 20]
    pairs = zip(pixels, images.labels, strict=True)
    originals = {bytes(image.flatten().tolist()): int(label) for image, label in pairs}
    for image, label in zip(x, y, strict=True):
        found = bytes((image * 255).round().to(torch.uint8).flatten().tolist())
        assert originals[found] == int(label)
    assert len(made.test[1]) == 9
    first = (tmp_path / "tiny-train.png").read_bytes()
    sample_room.make("tiny", tmp_path, 60, 9, 5)
    assert (tmp_path / "tiny-train.png").read_bytes() == first
    sample_room.make("tiny", tmp_path, 60, 9, 6)
    assert (tmp_path / "tiny-train.png").read_bytes() != first
    with pytest.raises(DataError, match="multiple"):
        sample_room.make("tiny", tmp_path, 61, 9, 5)
