"""The Python in the documents does what it says: it runs, from top to bottom, as printed."""

from __future__ import annotations

import re
import tomllib
import warnings
from pathlib import Path

import pytest

from clcnn.evaluation.plan import parse
from clcnn.evaluation.tables import Table

ROOT = Path(__file__).parents[1]


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    found = re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert found, document
    return found


def test_the_first_minute_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(blocks("README.md", "python")[0], {})
    assert "8 samples" in capsys.readouterr().out
    assert (tmp_path / "robust.safetensors").is_file()


def test_an_evaluation_as_documented(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what `report` warns of is for its own tests
        for block in blocks("docs/evaluation.md", "python"):
            exec(block, names)
    printed = capsys.readouterr().out
    shares = {
        threat: int(share)
        for threat, share in re.findall(r"^(oblivious|adaptive): (\d+) %", printed, re.M)
    }
    assert shares["adaptive"] <= shares["oblivious"]
    assert "reactive pgd adaptive" in printed
    assert re.search(r"^[+-]\d+ points \(", printed, re.MULTILINE)


def test_the_plan_as_documented() -> None:
    (text,) = blocks("docs/evaluation.md", "toml")
    plan = parse(Table("mine.toml", "", tomllib.loads(text)), Path())
    assert len(plan.entries) == 3 * (1 + 2 * 2 * 2)
