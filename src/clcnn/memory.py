"""Memory that is kept: glibc need not fetch every large tensor from the system anew."""

from __future__ import annotations

import ctypes
import platform

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of malloc.h
_LARGEST = 2**31 - 1
_PAD = 64 * 2**20


def keep_memory() -> bool:
    """Let this process keep freed memory for its next tensors; False where there is no glibc.

    By default glibc maps every block of more than some megabytes by itself and unmaps it when it
    is freed, so that each activation of a batch is cleared by the system again, page by page. Kept,
    it is there. The process then never shrinks below its peak. No result changes. It holds
    for the whole process, so only the command line calls it; call it before long work of your own.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: _LARGEST, _TOP_PAD: _PAD}
    taken = [mallopt(name, value) for name, value in settings.items()]
    return all(taken)
