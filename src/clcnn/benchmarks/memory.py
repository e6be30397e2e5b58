"""How much memory a call takes, told by the kernel: what any library allocates counts."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak(run: Callable[[], object]) -> int | None:
    """Return max(resident bytes during ``run``) - (resident bytes before), None if nobody tells.

    The kernel's own high-water mark is set back before; only Linux allows that. Run it in a young
    process: memory that was freed before and not given back hides what is taken from it again.
    """
    gc.collect()
    try:
        _RESET.write_text("5")
        before = _kilobytes("VmRSS")
        run()
        return max(0, _kilobytes("VmHWM") - before) * 1024
    except OSError:
        return None


def _kilobytes(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise OSError(f"{field} is not in {_STATUS}")
