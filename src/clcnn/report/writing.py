"""Reports as files."""

from __future__ import annotations

from pathlib import Path

from clcnn.data.files import write_bytes, write_text
from clcnn.report.blocks import Document, ReportError
from clcnn.report.html import to_html
from clcnn.report.markdown import to_markdown


def write_html(document: Document, path: str | Path) -> None:
    """One file that needs no other and no network."""
    write_text(Path(path), to_html(document))


def write_markdown(document: Document, path: str | Path) -> list[Path]:
    """The text at ``path`` and its figures in a folder beside it; returns all files."""
    path = Path(path)
    folder = check_name(path)
    text, files = to_markdown(document, folder)
    written = []
    for name, content in files.items():
        write_bytes(path.parent / folder / name, content)
        written.append(path.parent / folder / name)
    write_text(path, text)
    return [path, *written]


def check_name(path: Path) -> str:
    """The folder of a Markdown file's figures; refuses a name that no link can hold."""
    folder = f"{path.stem}-figures"
    if not _is_plain(folder):
        raise ReportError(
            f"found {path.name!r}; expected letters, digits, dots, hyphens and underscores, as "
            "Markdown cannot link to figures beside any other name."
        )
    return folder


def _is_plain(name: str) -> bool:
    return all(c.isascii() and (c.isalnum() or c in ".-_") for c in name)
