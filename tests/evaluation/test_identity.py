"""What makes one result differ from another: settings, weights, images and code."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tiny import TEXT, network, pictures, plan, workshop

import clcnn
from clcnn.evaluation import (
    Bench,
    Grid,
    Network,
    PlanError,
    Store,
    Workshop,
    defending,
    hashing,
    manifest,
    run,
    tune,
)
from clcnn.evaluation.kinds import Kind
from clcnn.evaluation.watch import Silent
from clcnn.persistence import fingerprint


def keys(text: str, shop: Workshop | None = None) -> dict[tuple[str, str, float, str], str]:
    bench = Bench(plan(text), shop or workshop(), Path("nowhere"), Silent())
    return {
        (c.entry.defence, c.entry.attack, c.entry.eps, c.entry.threat): c.key.hash
        for c in bench.cells()
    }


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("seed = 3", "seed = 4", "nothing"),
        ("chunk = 8", "chunk = 9", "nothing"),
        ("n = 20", "n = 21", "nothing"),
        ("energy = 0.8", "energy = 0.81", "none"),
        ("lr = 0.05", "lr = 0.051", "none"),
        ("iterations = 3", "iterations = 4", "none"),
        ("images = 60", "images = 61", "none"),
        ("images = 60", "images = 60, seed = 1", "none"),
        ("images = 60", "images = 60, correct_only = true", "none"),
        ('"head"]', '"head"]\nweights = "mean"', "none"),
        ('"head"]', '"head"]\nregularization = 0.1', "none"),
        ('"head"]', '"head"]\ncentring = "batch"', "none"),
        ('"head"]', '"head"]\naccelerate = true', "none"),
        ('"input", "middle"', '"input"', "none"),
        ('kind = "noise"', 'kind = "noise"\ntries = 2', "clean and fgsm"),
        ('kind = "noise"', 'kind = "noise"\nnorm = "l2"', "clean and fgsm"),
        ('"linear", energy = 0.8', '"linear", energy = 0.8, seed = 1', "none"),
        ('name = "tiny"', 'name = "other"', "all"),
        ("[defences.linear]", "[defences.linear] # a remark", "all"),
    ],
)
def test_a_changed_setting_never_reuses_a_result_and_others_stay(
    old: str, new: str, same: str
) -> None:
    assert old in TEXT
    before, after = keys(TEXT), keys(TEXT.replace(old, new))
    kept = {key for key in before if after.get(key) == before[key]}
    expected = {
        "nothing": set(),
        "none": {key for key in before if key[0] == "none"},
        "clean and fgsm": {key for key in before if key[1] != "noise"},
        "all": set(before),
    }[same]
    assert kept == expected


def test_weights_images_and_code_are_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys(TEXT)
    assert not set(before.values()) & set(keys(TEXT, workshop(seed=1)).values())
    images = {"train": pictures(80, 1), "test": pictures(40, 4)}
    other = Workshop(networks={"tiny": network()}, images={"mnist": images})
    assert not set(before.values()) & set(keys(TEXT, other).values())
    images = {"train": pictures(80, 9), "test": pictures(40, 3)}
    other = Workshop(networks={"tiny": network()}, images={"mnist": images})
    after = keys(TEXT, other)
    assert {key[0] for key in before if before[key] == after[key]} == {"none"}
    real = hashing.room_code
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == "solvers/loop" else real(r))
    after = keys(TEXT)
    assert {key[0] for key in before if before[key] == after[key]} == {"none"}
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == "attacks" else real(r))
    after = keys(TEXT)
    assert {key[1] for key in before if before[key] == after[key]} == {"none"}
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == "models/layers" else real(r))
    assert not set(before.values()) & set(keys(TEXT).values()), "no cell is without a network"


def test_a_defence_counts_the_files_that_it_goes_through_and_no_others() -> None:
    rooms = ("control", "embeddings", "solvers")
    found = set(hashing.through(rooms, clcnn.LinearEmbedding, clcnn.PMP))
    assert {"control", "embeddings/linear", "embeddings/principal", "embeddings/streams"} < found
    assert {"embeddings/base", "embeddings/rounded", "solvers/base", "solvers/pmp"} < found
    assert {"solvers/loop", "solvers/problem", "solvers/greedy"} < found
    assert not found & {"embeddings", "solvers", "embeddings/refined", "solvers/feedback"}
    nonlinear = set(hashing.through(rooms, clcnn.AutoencoderEmbedding))
    assert {"embeddings/linear", "embeddings/descent", "solvers"} < nonlinear  # its last cut
    assert hashing.through(rooms) == hashing.through(rooms, dict) == rooms
    one_pass = set(hashing.through(rooms, clcnn.SpectralEmbedding, clcnn.Feedback))
    assert {"solvers/feedback", "embeddings/spectral", "embeddings/spectrum"} < one_pass


def test_imports_that_are_followed_are_the_only_ones_in_the_shared_rooms() -> None:
    for room in ("embeddings", "solvers"):
        for path in (hashing._PACKAGE / room).rglob("*.py"):
            for line in ast.walk(ast.parse(path.read_text())):
                if isinstance(line, ast.Import):
                    assert not any(alias.name.startswith("clcnn") for alias in line.names), path
                if isinstance(line, ast.ImportFrom):
                    assert line.level == 0, path
                    assert line.module != "clcnn", path


@pytest.mark.parametrize(
    ("file", "same"), [("embeddings/refined", "all"), ("embeddings/principal", "none")]
)
def test_another_embeddings_code_leaves_results_as_they_are(
    file: str, same: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = keys(TEXT), hashing.room_code
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == file else real(r))
    after = keys(TEXT)
    kept = {key[0] for key in before if before[key] == after[key]}
    assert kept == ({"none", "linear"} if same == "all" else {"none"})


def test_a_file_apart_from_its_room_makes_only_its_own_results_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "attacks").mkdir()
    for name in ("pgd", "subspace"):
        (tmp_path / "attacks" / name).with_suffix(".py").write_text("step = 1\n")
    monkeypatch.setattr(hashing, "_PACKAGE", tmp_path)

    def codes() -> list[str]:
        return [hashing.room_code.__wrapped__(r) for r in ("attacks", "attacks/subspace")]

    before = codes()
    (tmp_path / "attacks" / "subspace.py").write_text("step = 2\n")
    room, file = codes()
    assert (room == before[0], file == before[1]) == (True, False)
    (tmp_path / "attacks" / "pgd.py").write_text("step = 2\n")
    assert codes()[0] != room


def test_results_of_a_file_apart_know_its_code_and_nothing_else_uses_it() -> None:
    assert len(Kind("subspacecw", {}).to_dict()["code"]) == 64
    assert "code" not in Kind("pgd", {}).to_dict()
    for name in hashing.APART:
        users = [
            str(path.relative_to(hashing._PACKAGE))
            for path in hashing._PACKAGE.rglob("*.py")
            if f"clcnn.{name.replace('/', '.')} import" in path.read_text()
        ]
        assert users == ["evaluation/kinds.py"]


def test_every_file_that_a_result_goes_through_is_hashed() -> None:
    """What the rooms import of the package counts itself, or is known to change no number."""
    counted = {*hashing.SHIPPED_ROOMS, *hashing.DEFENCE_ROOMS, *hashing.ATTACK_ROOMS}
    harmless = {"_version", "data", "detection", "errors", "progress", "statistics", "types"}
    harmless |= {"export", "models/cards", "models/shelf"}
    for room in counted - {"attacks"}:
        place = hashing._PACKAGE / room
        for path in place.rglob("*.py") if place.is_dir() else [place.with_suffix(".py")]:
            lines = ast.walk(ast.parse(path.read_text()))
            for module in {line.module or "" for line in lines if isinstance(line, ast.ImportFrom)}:
                _, _, used = module.partition("clcnn.")
                if not used or used == "models":  # whose modules are imported by their own names
                    continue
                parts = used.split(".")
                names = {parts[0], "/".join(parts[:2])}
                assert names & (counted | harmless), f"{path} uses {used}, which no hash counts"


def test_code_is_hashed_without_comments_docstrings_and_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashing, "_PACKAGE", tmp_path)
    codes = []
    for text in (
        'def f(x):\n    """One."""\n    return x + 1\n',
        'def f(x):\n    """Other words."""\n    return x + 1  # why\n',
        "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x + 1\n",
        'def f(x):\n    """One."""\n    return x + 2\n',
        "def f(x):\n    if x < 0:\n        x = 0\n    return x + 1\n",
        "def f(x):\n    if (x := x + 1) < 0:\n        raise ValueError\n    return x\n",
        "def f(x):\n    if x < 0:\n        raise\n    else:\n        x = 1\n    return x + 1\n",
        "def f(x):\n    if x < 0:\n        raise Signal\n    return x + 1\n",
        "def f(x):\n    try:\n        x = 1\n    except E:\n        x = 2\n    return x\n",
        "def f(x):\n    try:\n        if x:\n            raise AnError('no')\n        x = 1\n"
        "    except E:\n        x = 2\n    return x\n",
    ):
        (tmp_path / "room.py").write_text(text)
        codes.append(hashing.room_code.__wrapped__("room"))
    assert len(set(codes[:3])) == 1
    assert len(set(codes)) == 8


def test_whether_products_are_rounded_is_part_of_the_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.replace('"head"]', '"head"]\naccelerate = "bfloat16"')
    found = []
    for can in (True, False):
        monkeypatch.setattr(defending, "multiplies_bfloat16", lambda device, can=can: can)
        found.append(keys(text))
    assert {key[0] for key in found[0] if found[0][key] == found[1][key]} == {"none"}


def test_float32_gives_the_results_of_a_processor_without_bfloat16_on_one_that_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = plan(TEXT.replace('"head"]', '"head"]\naccelerate = "bfloat16"'))

    def bench(can: bool, float32: bool) -> tuple[set[str], bool]:
        for asked in (defending, manifest):
            monkeypatch.setattr(asked, "multiplies_bfloat16", lambda device: can)
        shop = workshop()
        shop.float32 = float32
        made = Bench(wanted, shop, tmp_path, Silent())
        entry = next(e for e in wanted.entries if e.defence != "none")
        robust = made.defences.ready(wanted, entry.network, entry.defence).robust
        assert robust is not None
        told = manifest.manifest(wanted, shop)["bfloat16"]
        assert told == robust.dynamics.rounds
        return {cell.key.hash for cell in made.cells()}, told

    without, rounds = bench(can=False, float32=False)
    assert not rounds
    assert bench(can=True, float32=True) == (without, False)
    assert bench(can=False, float32=True) == (without, False)
    with_it, rounds = bench(can=True, float32=False)
    assert rounds
    assert with_it != without


def test_a_store_that_holds_more_without_bfloat16_is_not_measured_anew_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = plan(TEXT.replace('"head"]', '"head"]\naccelerate = "bfloat16"'))
    samples = sum(entry.n for entry in wanted.entries)
    shared = sum(entry.n for entry in wanted.entries if entry.defence == "none")

    def measure(can: bool, float32: bool | None = None) -> set[int]:
        monkeypatch.setattr(defending, "multiplies_bfloat16", lambda device: can)
        shop = workshop()
        shop.float32 = float32
        return {result.cell for result in run(wanted, tmp_path / "r.sqlite", workshop=shop)}

    def listed() -> set[int]:
        with Store(tmp_path / "r.sqlite") as store:
            return {row[0] for row in store.read("SELECT cell FROM entries")}

    without = measure(can=False)
    assert measure(can=True, float32=True) == without
    said = rf"{samples} of the {samples} samples of {wanted.name} .* {shared} as this .*--float32"
    with pytest.raises(PlanError, match=said):
        measure(can=True)
    assert listed() == without  # what is there stays as it was
    rounded = measure(can=True, float32=False)
    assert listed() == rounded != without
    assert measure(can=True) == rounded  # as many as without: nothing would be measured anew


def test_a_grid_without_bfloat16_is_not_measured_anew_unasked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    defence = plan(TEXT.replace('"head"]', '"head"]\naccelerate = "bfloat16"')).defences["linear"]
    grid = Grid(iterations=(1, 2), lr=(0.05,), energy=(0.8,))

    def choose(can: bool, float32: bool | None = None) -> None:
        monkeypatch.setattr(defending, "multiplies_bfloat16", lambda device: can)
        shop = workshop()
        shop.float32 = float32
        with Store(tmp_path / "r.sqlite") as store:
            tune(Network("tiny", "mnist"), store, defence=defence, grid=grid, n=8, workshop=shop)

    choose(can=False)
    choose(can=True, float32=True)
    with pytest.raises(PlanError, match="--float32"):
        choose(can=True)


class Bent(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module, shift: float = 0.0) -> None:
        super().__init__()
        self.inner, self.shift = inner, shift

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x + self.shift)


class BentOtherwise(Bent):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x - self.shift)


def test_code_and_constants_of_ones_own_network_are_part_of_the_hash() -> None:
    def keys_of(module: torch.nn.Module) -> set[str]:
        images = {"train": pictures(80, 1), "test": pictures(40, 3)}
        shop = Workshop(networks={"tiny": module.eval()}, images={"mnist": images})
        return set(keys(TEXT, shop).values())

    tanh, relu = Bent(network()), Bent(network())
    tanh.act, relu.act = torch.tanh, torch.relu  # type: ignore[assignment]
    shifted = [Bent(network()) for _ in range(6)]
    for place, bent in enumerate(shifted[:2]):
        bent.register_buffer("mean", torch.full((3,), float(place)), persistent=False)
    shifted[2].plain = torch.ones(2)  # type: ignore[assignment]
    shifted[3]._hidden = {"mean": [torch.ones(2)]}  # type: ignore[assignment]
    shifted[4].config = SimpleNamespace(mean=1)  # type: ignore[assignment]
    shifted[5].register_forward_hook(lambda module, given, answer: answer + 1)
    others = [
        *shifted,
        Bent(network()),
        Bent(network(), 0.5),
        BentOtherwise(network()),
        tanh,
        relu,
        network(),
    ]
    found = [keys_of(module) for module in others]
    for place, one in enumerate(found):
        assert not any(one & other for other in found[:place]), place
    assert keys_of(Bent(network())) == found[6]
    again = Bent(network())
    again.config = SimpleNamespace(mean=1)  # type: ignore[assignment]
    assert keys_of(again) == found[4], "where an object lies in memory decides nothing"


def test_a_densenet_is_measured_with_its_channels_last_and_its_hash_says_so() -> None:
    given = clcnn.models.load("densenet40-cifar10")
    text = TEXT.replace('weights = "tiny"', 'weights = "mine"')
    trained = Workshop(networks={"mine": given}).network(plan(text), "tiny")
    last, before = trained.module.stem[1].weight, given.stem[1].weight
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert before.is_contiguous()  # the caller's own is left as it was
    assert torch.equal(last, before)
    assert trained.fingerprint == f"{fingerprint(given)} channels last"
