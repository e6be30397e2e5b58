"""`clcnn demo`: the table, the page, and that a second run only shows what is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from small import shrink, workshop

from clcnn import cli
from clcnn.evaluation import Store
from clcnn.experiments import demo

demo_module = sys.modules["clcnn.cli.demo"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shrink(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module, "make_workshop", lambda *arguments: workshop())
    return tmp_path


def test_table_and_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["demo"]) == 0
    text = capsys.readouterr().out
    for words in ("uncontrolled", "reactive", "PMP", "oblivious", "adaptive", "clean", "noise"):
        assert words in text
    assert "What to try next" in text
    page = (here / "demo" / "report.html").read_text()
    assert page.count("data:image/png") >= 4
    assert cli.run(["demo", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    places = {(r["defence"], r["attack"], r["threat"]) for r in found["results"]}
    assert places == {
        (defence, attack, threat)
        for defence in demo.DEFENCES
        for attack in demo.ATTACKS
        for threat in (("none",) if attack == "none" else demo.THREATS)
    }
    with Store("demo/demo.sqlite") as store:
        assert store.read("SELECT count(*) FROM cells")[0][0] == len(places)


def test_adaptive_is_never_above_oblivious(here: Path) -> None:
    with Store("demo.sqlite") as store:
        shown = demo.run(store, workshop=workshop())
    at = {(r.defence, r.attack, r.threat): r.accuracy for r in shown.found}
    for defence, attack, threat in at:
        if threat == "adaptive":
            assert at[defence, attack, threat] <= at[defence, attack, "oblivious"]
    lines = shown.lines()
    assert lines[0].split() == ["threat", "uncontrolled", "reactive", "PMP", "feedback"]
    assert len(lines) == 1 + 1 + 2 * 3 + 1
