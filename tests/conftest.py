"""Every test starts from the same seed, on one thread, with the global defaults it found.

Properties are tried on the same examples every time, however long a busy machine takes for one.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("clcnn", deadline=None, derandomize=True)
settings.load_profile("clcnn")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
