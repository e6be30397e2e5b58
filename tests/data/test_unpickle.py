"""Pickles are read as data: whatever else they carry is refused before it runs."""

from __future__ import annotations

import builtins
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clcnn.data.unpickle import load_arrays
from clcnn.errors import DataError

# A batch as Python 2 and an old numpy wrote it: protocol 2, str keys, numpy.core.
PYTHON_2 = (
    b"\x80\x02}q\x01(U\x04dataq\x02cnumpy.core.multiarray\n_reconstruct\nq\x03cnumpy\nndarray\n"
    b"q\x04K\x00\x85U\x01b\x87Rq\x05(K\x01K\x01K\x03\x86cnumpy\ndtype\nq\x06U\x02u1K\x00K\x01\x87"
    b"Rq\x07(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x03abcq\x08tb"
    b"U\x06labelsq\x09]q\x0aK\x07au."
)


class Malicious:
    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call = call
        self.arguments = arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call, self.arguments


def test_malicious_pickle_does_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    content = pickle.dumps({b"data": Malicious(os.mkdir, str(mark)), b"labels": [1]})
    pickle.loads(content)  # the pickle is live: Python's own reader runs it
    assert mark.exists()
    mark.rmdir()
    with pytest.raises(DataError, match=r"posix\.mkdir.*Do not use this file"):
        load_arrays(content, "file")
    assert not mark.exists()


@pytest.mark.parametrize(
    "hidden",
    [
        Malicious(eval, "1"),
        Malicious(getattr, "x", "upper"),
        Malicious(builtins.__import__, "os"),
        Malicious(np.load, "x"),
        OrderedDict(a=1),
        np.float64,
    ],
)
def test_only_arrays_and_plain_containers(hidden: Any) -> None:
    for protocol in range(2, 6):
        with pytest.raises(DataError, match="expected numpy arrays and plain containers"):
            load_arrays(pickle.dumps([hidden], protocol=protocol), "file")


def test_a_dotted_name_cannot_reach_further() -> None:
    with pytest.raises(DataError):
        load_arrays(b"\x80\x04\x8c\x05numpy\x8c\x12ndarray.__class__\x93.", "file")


def test_arrays_of_python_2_and_3() -> None:
    old = load_arrays(PYTHON_2, "file")
    assert old[b"data"].tolist() == [[97, 98, 99]]
    assert old[b"labels"] == [7]
    new = load_arrays(pickle.dumps({"data": np.arange(3, dtype=np.uint8)}, protocol=4), "file")
    assert new[b"data"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("content", [b"", b"garbage", PYTHON_2[:60], pickle.dumps([1])])
def test_damaged_pickles(content: bytes) -> None:
    with pytest.raises(DataError, match="clcnn data get"):
        load_arrays(content, "file")
