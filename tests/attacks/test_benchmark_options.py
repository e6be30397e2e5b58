"""The script that measures the attacks refuses counts that measure nothing."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attacks.py"


@pytest.mark.parametrize("option", ["--n", "--repeats", "--speed-images", "--art"])
@pytest.mark.parametrize("value", ["0", "-3", "many"])
def test_counts(
    option: str,
    value: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), f"{option}={value}"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 2
    assert f"expected a whole number >= 1, got '{value}'" in capsys.readouterr().err
