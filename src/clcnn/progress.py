"""A progress bar in a few lines: to stderr, and by default only where a person is watching."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self, TextIO

_WIDTH = 24


class Progress:
    """``label [#####.......] 12/50 note``, redrawn in place; use as a context manager.

    ``show=None`` draws if ``stream`` (stderr by default) is a terminal, True always, False never.
    """

    def __init__(
        self, label: str, total: int, show: bool | None = None, stream: TextIO | None = None
    ) -> None:
        self.label = label
        self.total = total
        self.stream = sys.stderr if stream is None else stream
        self.show = self.stream.isatty() if show is None else show
        self._length = 0
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        """Draw the empty bar."""
        self.update(0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the line, so that what is printed next stands on its own."""
        if self.show:
            self.stream.write("\n")
            self.stream.flush()

    def update(self, done: int, note: str = "") -> None:
        """Redraw the bar with ``done`` of ``total`` steps made."""
        if not self.show:
            return
        filled = _WIDTH * done // self.total if self.total else _WIDTH
        bar = "#" * filled + "." * (_WIDTH - filled)
        seconds = time.monotonic() - self._start
        line = f"{self.label} [{bar}] {done}/{self.total} {seconds:.0f} s {note}".rstrip()
        # Blanks cover what a longer line before left behind.
        self.stream.write("\r" + line.ljust(self._length))
        self.stream.flush()
        self._length = len(line)
