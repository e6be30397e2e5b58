"""Kept memory: what is freed is not asked of the system again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from clcnn import memory

FAULTS = """
import resource, sys
import torch
from clcnn.memory import keep_memory

if sys.argv[1] == "kept":
    assert keep_memory()
for _ in range(3):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(2**24)  # 64 MB
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(kind: str) -> int:
    """Pages that the system had to hand out for ten tensors of 64 MB, one after the other."""
    words = [sys.executable, "-c", FAULTS, kind]
    return int(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc of another kind")
def test_large_tensors_are_served_from_what_was_freed() -> None:
    assert faults("kept") < 100
    assert faults("as it is") > 10 * 100  # what is to be avoided


def test_elsewhere_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("musl", "1.2"))
    assert not memory.keep_memory()
