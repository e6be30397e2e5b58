"""Read the official CIFAR pickles without running anything that they might carry."""

from __future__ import annotations

import io
import pickle
from typing import Any

from clcnn.errors import DataError

_ADMITTED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    # numpy 2 moved its private package; files of either age name one of the two.
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise DataError(
                f"the pickle asks for {module}.{name}, expected numpy arrays and plain containers "
                "only. Do not use this file: fetch the data again with `clcnn data get`."
            )
        if name == "_reconstruct":
            from numpy._core import multiarray

            return multiarray._reconstruct
        return super().find_class(module, name)


def load_arrays(content: bytes, what: str) -> dict[bytes, Any]:
    """The dictionary pickled in ``content``: keys are bytes, values arrays and containers."""
    try:
        value = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:
        # A damaged pickle fails in any way at all: EOFError, KeyError, UnpicklingError ...
        raise DataError(
            f"{what} is not a readable pickle ({error}). Delete it and fetch the data again with "
            "`clcnn data get`."
        ) from error
    if not isinstance(value, dict):
        raise DataError(
            f"{what} holds a {type(value).__name__}, expected the dictionary of a CIFAR batch. "
            "Delete it and fetch the data again with `clcnn data get`."
        )
    return {key.encode() if isinstance(key, str) else key: entry for key, entry in value.items()}
