"""A progress bar that is drawn only where a person is watching."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, ProgressColumn


class TerminalBar:
    """A console, and a bar on it while in context: None if the console is no terminal."""

    def __init__(
        self, console: Console, columns: list[ProgressColumn], watched: bool, **fields: Any
    ) -> None:
        self.console = console
        self.bar: Progress | None = None
        if watched:
            self.bar = Progress(*columns, console=console, transient=True)
            self.task = self.bar.add_task("", total=None, **fields)

    def __enter__(self) -> Self:
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.stop()
