"""One store for all tests that only read it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from report.made import fill, workshop

from clcnn.report import Document, make_report


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole store of three plans; not to be changed."""
    return fill(tmp_path_factory.mktemp("stores") / "s.sqlite", "table1", "table3", "adaptive")


@pytest.fixture
def store(shared: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(shared.parent, tmp_path / "copy")
    return tmp_path / "copy" / shared.name


@pytest.fixture(scope="session")
def document(shared: Path) -> Document:
    """The report of the shared store, with pictures."""
    return make_report([shared], workshop=workshop())
