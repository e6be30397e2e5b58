"""The official file formats: bytes of a file -> uint8 images (N, C, H, W) and labels (N,)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from clcnn.data.unpickle import load_arrays
from clcnn.errors import DataError

Bytes = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]

_IDX_UINT8 = 0x08


def read_cifar_pickle(content: bytes, what: str) -> tuple[Bytes, Labels]:
    """A batch of ``cifar-10-batches-py`` or ``cifar-100-python`` (its fine labels)."""
    batch = load_arrays(content, what)
    data: Any = batch.get(b"data")
    labels: Any = batch.get(b"labels", batch.get(b"fine_labels"))
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.shape[1:] == (3072,)):
        raise _unexpected(what, "an array `data` of N x 3072 bytes")
    if not isinstance(labels, list) or len(labels) != len(data):
        raise _unexpected(what, f"a list of {len(data)} labels")
    return data.reshape(-1, 3, 32, 32), np.asarray(labels, dtype=np.int64)


def read_cifar_binary(content: bytes, what: str) -> tuple[Bytes, Labels]:
    """A batch of ``cifar-10-batches-bin``: records of one label byte and 3,072 pixels."""
    if not content or len(content) % 3073:
        raise _unexpected(what, "records of 3,073 bytes")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0].astype(np.int64)


def write_cifar_binary(images: Bytes, labels: Labels) -> bytes:
    """The inverse of `read_cifar_binary`."""
    pixels = images.reshape(len(images), 3072)
    return np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1).tobytes()


def read_idx(content: bytes, what: str) -> Bytes:
    """An IDX array of bytes: two zeros, the type, the number of axes, their lengths, the data."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != _IDX_UINT8:
        raise _unexpected(what, "an IDX header for unsigned bytes")
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise _unexpected(what, f"the lengths of {axes} axes")
    shape = struct.unpack(f">{axes}I", content[4:start])
    if len(content) - start != np.prod(shape, dtype=np.int64):
        raise _unexpected(what, f"{shape} bytes of data")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _unexpected(what: str, expected: str) -> DataError:
    return DataError(
        f"{what} does not hold {expected}. Delete it and fetch the data again with "
        "`clcnn data get`."
    )
