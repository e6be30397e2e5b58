"""Images that a network learns in seconds: the class is where the bright square lies."""

from __future__ import annotations

import torch

from clcnn.data.catalogue import Entry
from clcnn.data.datasets import Images

ENTRY = Entry("tiny", (3, 8, 8), 4, (), (), (0.3,) * 3, (0.3,) * 3, flips=False)


def tiny_images(count: int, seed: int) -> Images:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=generator)
    pixels = torch.randint(0, 120, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    for image, label in zip(pixels, labels.tolist(), strict=True):
        if label % 2:
            image[label // 2] += 120
        else:
            image[:, ::2, :] += 60 * (1 + label // 2)
    return Images(ENTRY, "train", pixels, labels)


def pair() -> tuple[Images, Images]:
    return tiny_images(80, 0), tiny_images(40, 1)
