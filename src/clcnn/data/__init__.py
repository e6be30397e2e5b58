"""Real images: CIFAR-10/100, MNIST, Fashion-MNIST, and a sample that needs no download."""

from clcnn.data.datasets import (
    HELDOUT,
    HELDOUT_SEED,
    Images,
    Split,
    cifar10,
    cifar100,
    default_root,
    fashion_mnist,
    load,
    mnist,
)
from clcnn.data.fetch import get
from clcnn.data.files import StorageError
from clcnn.data.sample import Sample, sample

__all__ = [
    "HELDOUT",
    "HELDOUT_SEED",
    "Images",
    "Sample",
    "Split",
    "StorageError",
    "cifar10",
    "cifar100",
    "default_root",
    "fashion_mnist",
    "get",
    "load",
    "mnist",
    "sample",
]
