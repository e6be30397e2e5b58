"""Cached examples and fits: found again, and made again when their files are damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import TEXT, plan, workshop

from clcnn.attacks.flags import Finding
from clcnn.evaluation import ExampleCache, Examples, run
from clcnn.evaluation.defending import Defences

KEY = {"attack": {"kind": "fgsm", "eps": 2.0}, "seed": 3}


class Maker:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Examples:
        self.calls += 1
        x = torch.full((3, 2), 0.25 * self.calls)
        return Examples(x, 1.5, (Finding("a", "b: c"),), ["clean", None, "PGD"])


def test_examples_come_back_with_all_that_is_known_of_them(tmp_path: Path) -> None:
    make, like = Maker(), torch.zeros(3, 2)
    made = ExampleCache(tmp_path).get(KEY, like, make)
    found = ExampleCache(tmp_path).get(KEY, like, make)
    assert make.calls == 1
    assert torch.equal(found.x, made.x)
    assert (found.seconds, found.findings) == (made.seconds, made.findings)
    assert found.broken_by == made.broken_by
    ExampleCache(tmp_path).get({**KEY, "seed": 4}, like, make)
    assert make.calls == 2


@pytest.mark.parametrize("damage", ["cut short", "a byte changed", "empty", "of other settings"])
def test_a_damaged_file_is_said_so_and_made_again(tmp_path: Path, damage: str) -> None:
    said: list[str] = []
    make, like = Maker(), torch.zeros(3, 2)
    cache = ExampleCache(tmp_path, said.append)
    cache.get(KEY, like, make)
    path = cache.path(KEY)
    content = path.read_bytes()
    if damage == "cut short":
        path.write_bytes(content[:-5])
    elif damage == "a byte changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        other = {**KEY, "seed": 4}
        cache.get(other, like, make)
        path.write_bytes(cache.path(other).read_bytes())
    before = make.calls
    again = cache.get(KEY, like, make)
    assert make.calls == before + 1
    assert float(again.x[0, 0]) == 0.25 * make.calls
    assert "is damaged" in said[0]
    assert cache.get(KEY, like, make).x.equal(again.x)
    assert make.calls == before + 1


def test_a_fit_is_shared_by_solvers_and_made_again_when_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = []
    original = Defences._fit
    monkeypatch.setattr(Defences, "_fit", lambda *a: fits.append(1) or original(*a))
    second = '\n[defences.greedy]\nsolver = { kind = "greedy" }\n'
    text = TEXT.replace("[attacks.fgsm]", second + "[attacks.fgsm]", 1)
    text = text.replace(
        "[defences.greedy]\n",
        '[defences.greedy]\ncuts = ["input", "middle", "head"]\n'
        'embedding = { kind = "linear", energy = 0.8 }\nfit = { images = 60 }\n',
    ).replace('"none", "fgsm", "noise"', '"none"')
    said: list[str] = []

    class Watch:
        def cell(self, *arguments: object) -> None: ...
        def samples(self, *arguments: object) -> None: ...
        def say(self, sentence: str) -> None:
            said.append(sentence)

    run(plan(text), tmp_path / "r.sqlite", workshop=workshop(), watch=Watch())
    assert len(fits) == 1
    run(plan(text.replace("lr = 0.05", "lr = 0.04")), tmp_path / "r.sqlite", workshop=workshop())
    assert len(fits) == 1
    (file,) = (tmp_path / "r.files" / "fits").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-3])
    text = text.replace("lr = 0.05", "lr = 0.03")
    run(plan(text), tmp_path / "r.sqlite", workshop=workshop(), watch=Watch())
    assert len(fits) == 2
    assert any("the fit" in sentence and "is damaged" in sentence for sentence in said)
