"""The progress bar: what it writes, and when it keeps quiet."""

from __future__ import annotations

import io

import pytest

from clcnn.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def drawn(stream, **settings):
    with Progress("fit", 4, stream=stream, **settings) as bar:
        bar.update(2, "a long note")
        bar.update(4)
    return stream.getvalue()


def test_only_a_terminal_is_drawn_on_unless_asked():
    assert drawn(io.StringIO()) == ""
    assert drawn(Terminal(), show=False) == ""
    assert drawn(io.StringIO(), show=True) == drawn(Terminal()) != ""


def test_each_drawing_covers_the_one_before():
    empty, half, full = drawn(Terminal()).removesuffix("\n").split("\r")[1:]
    assert empty.startswith("fit [........................] 0/4")
    assert half.startswith("fit [############............] 2/4")
    assert half.endswith("a long note")
    assert full.startswith("fit [########################] 4/4")
    assert len(full) == len(half)


def test_the_line_ends_even_after_an_error():
    stream = Terminal()
    with pytest.raises(KeyError), Progress("fit", 4, stream=stream):
        raise KeyError
    assert stream.getvalue().endswith("\n")


def test_nothing_to_do_is_done():
    with Progress("fit", 0, stream=(stream := Terminal())):
        pass
    assert "] 0/0" in stream.getvalue()
