"""Whole trainings, tiny: they learn, resume bit for bit, and lose nothing when stopped."""

from __future__ import annotations

import csv
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_images import pair, tiny_images

from clcnn.data import StorageError
from clcnn.errors import ClcnnError, DataError, LoadError
from clcnn.models import read_weights
from clcnn.models.weights import read_file
from clcnn.training import METHODS, Row, Settings, TrainingError, checkpoint, train

TINY = Settings("resnet20", "tiny", epochs=3, batch_size=16, lr=0.05)


class StopError(Exception):
    pass


class StopsAt:
    """Stops a run as a kill would: in the middle of an epoch."""

    def __init__(self, epoch: int, step: int) -> None:
        self.where = (epoch, step)
        self.rows: list[Row] = []

    def step(self, epoch: int, step: int, steps: int) -> None:
        if (epoch, step) == self.where:
            raise StopError

    def epoch(self, row: Row) -> None:
        self.rows.append(row)

    def done(self, weights: Path) -> None:
        assert weights.is_file()


def rows(run: Path) -> list[dict[str, str]]:
    timings = ("seconds", "images_per_second")
    with (run / "log.csv").open() as file:
        return [{k: v for k, v in r.items() if k not in timings} for r in csv.DictReader(file)]


@pytest.mark.parametrize("method", METHODS)
def test_resume_is_bit_exact(tmp_path: Path, method: str) -> None:
    moving = {"eps_start": 12, "sizes": "4x1"} if method == "fgsm" else {}
    settings = replace(TINY, method=method, **moving)
    whole = train(settings, tmp_path / "whole", images=pair())
    with pytest.raises(StopError):
        train(settings, tmp_path / "parts", images=pair(), watch=StopsAt(1, 3))
    assert len(rows(tmp_path / "parts")) == 1
    torch.rand(7)  # the global random state is none of its business
    with pytest.raises(StopError):
        train(settings, tmp_path / "parts", images=pair(), resume=True, watch=StopsAt(2, 1))
    watch = StopsAt(-1, -1)
    parts = train(settings, tmp_path / "parts", images=pair(), resume=True, watch=watch)
    assert [row["epoch"] for row in watch.rows] == [3]
    assert parts.read_bytes() == whole.read_bytes()
    assert rows(tmp_path / "parts") == rows(tmp_path / "whole")
    names = sorted(p.name for p in (tmp_path / "parts").iterdir())
    assert names == ["checkpoint.safetensors", "log.csv", "weights.safetensors"]


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    one = replace(TINY, epochs=1)
    first = train(one, tmp_path / "a", images=pair()).read_bytes()
    assert train(one, tmp_path / "b", images=pair()).read_bytes() == first
    assert train(replace(one, seed=1), tmp_path / "c", images=pair()).read_bytes() != first


def test_it_learns(tmp_path: Path) -> None:
    settings = replace(TINY, epochs=8)
    images = tiny_images(160, 0), tiny_images(80, 1)
    weights = train(settings, tmp_path, images=images)
    log = rows(tmp_path)
    assert float(log[-1]["heldout_accuracy"]) > 90
    network, facts = read_weights(weights)
    x, y = images[1].tensors()
    measured = 100 * (network(x).argmax(1) == y).float().mean().item()
    assert measured == pytest.approx(float(log[-1]["heldout_accuracy"]))
    assert facts["name"] == "resnet20-tiny"
    assert facts["settings"]["epochs"] == 8


def test_an_old_run_is_not_overwritten(tmp_path: Path) -> None:
    settings = replace(TINY, epochs=1)
    train(settings, tmp_path, images=pair())
    with pytest.raises(TrainingError, match="--resume"):
        train(settings, tmp_path, images=pair())


def test_resuming_another_training(tmp_path: Path) -> None:
    train(replace(TINY, epochs=1), tmp_path, images=pair())
    before = (tmp_path / "checkpoint.safetensors").read_bytes()
    with pytest.raises(LoadError, match=r"lr was 0\.05, now 0\.1"):
        train(replace(TINY, epochs=1, lr=0.1), tmp_path, images=pair(), resume=True)
    with pytest.raises(LoadError, match="network was 'resnet20', now 'densenet40'"):
        train(replace(TINY, epochs=1, network="densenet40"), tmp_path, images=pair(), resume=True)
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == before


def test_a_corrupt_checkpoint(tmp_path: Path) -> None:
    train(replace(TINY, epochs=1), tmp_path, images=pair())
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(LoadError, match="truncated"):
        train(replace(TINY, epochs=1), tmp_path, images=pair(), resume=True)
    path.write_bytes((tmp_path / "weights.safetensors").read_bytes())
    with pytest.raises(LoadError, match="not a checkpoint"):
        train(replace(TINY, epochs=1), tmp_path, images=pair(), resume=True)


def test_a_full_disk_keeps_the_checkpoint_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(TINY, tmp_path / "whole", images=pair())
    run = tmp_path / "run"
    real = checkpoint.save_file
    calls = []

    def full(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        calls.append(path)
        if len(calls) == 2:
            path.write_bytes(b"half a checkpoint")
            raise RuntimeError("I/O error: No space left on device (os error 28)")
        real(tensors, path, metadata=metadata)

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(StorageError, match=r"disk is full.*of before is untouched"):
        train(TINY, run, images=pair())
    assert read_file(run / "checkpoint.safetensors")[0]["epoch"] == 1
    assert sorted(p.name for p in run.iterdir()) == ["checkpoint.safetensors", "log.csv"]
    after = train(TINY, run, images=pair(), resume=True)
    assert after.read_bytes() == whole.read_bytes()


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"epoch 1: lower --lr"):
        train(replace(TINY, lr=1e30), tmp_path, images=pair())
    assert list(tmp_path.iterdir()) == []


def test_a_batch_larger_than_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="80 training images cannot fill a batch of 128"):
        train(replace(TINY, batch_size=128), tmp_path, images=pair())


def test_sizes_that_are_not_smaller(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not smaller than the images of tiny, which are of 8 x 8"):
        train(replace(TINY, sizes="8x1"), tmp_path, images=pair())
    assert not list(tmp_path.iterdir())


def test_starting_from_weights(tmp_path: Path) -> None:
    first = train(replace(TINY, epochs=4), tmp_path / "first", images=pair())
    settings = replace(TINY, epochs=1, method="fgsm", lr=1e-6)
    second = train(settings, tmp_path / "second", images=pair(), start=first)
    facts, tensors = read_file(second)
    assert facts["settings"]["started_from"] == str(first)
    assert f"--from {first}" in facts["command"]
    _, before = read_file(first)
    assert torch.allclose(tensors["head.2.weight"], before["head.2.weight"], atol=1e-4)
    again = train(settings, tmp_path / "second", images=pair(), start=first, resume=True)
    assert read_file(again)[0] == facts
    with pytest.raises(LoadError, match="start from other weights"):
        train(replace(settings, network="densenet40"), tmp_path / "x", images=pair(), start=first)


def test_every_error_is_one_of_ours() -> None:
    assert issubclass(TrainingError, ClcnnError)
    assert issubclass(StorageError, ClcnnError)


SCRIPT = """
import shutil
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tiny_images import pair
from clcnn.training import Settings, train

run, other = Path(sys.argv[2]), Path(sys.argv[3])

class Copies:
    def step(self, epoch, step, steps): pass
    def epoch(self, row):
        if row["epoch"] == 1:
            other.mkdir()
            shutil.copy(run / "checkpoint.safetensors", other)
    def done(self, weights): pass

settings = Settings(
    "resnet20", "tiny", "fgsm", epochs=2, batch_size=16, lr=0.05, processes=2
)
watch = None if sys.argv[4:] else Copies()
train(settings, run, images=pair(), accelerator="cpu", watch=watch, resume=True)
"""


def test_two_processes_and_a_resumed_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run, other = tmp_path / "run", tmp_path / "other"
    for arguments in ([run, other], [other, run, "resumed"]):
        done = subprocess.run(
            [sys.executable, str(script), str(Path(__file__).parent), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    facts, _ = read_file(run / "checkpoint.safetensors")
    assert facts["epoch"] == 2
    assert facts["settings"]["processes"] == 2
    # both processes counted: 80 images in 5 batches of 16, and all 40 held-out ones
    log = rows(run)
    assert (float(log[0]["train_accuracy"]) * 80 / 100) % 1 == pytest.approx(0, abs=1e-4)
    # what is logged is of the weights that are stored, the first process's batch statistics too
    network, _ = read_weights(run / "weights.safetensors")
    x, y = pair()[1].tensors()
    right = int((network(x).argmax(1) == y).sum())
    assert float(log[1]["heldout_accuracy"]) == pytest.approx(100 * right / 40)
    stored = (run / "weights.safetensors").read_bytes()
    assert (other / "weights.safetensors").read_bytes() == stored
    assert rows(other) == log


def test_a_log_that_was_lost_is_written_again(tmp_path: Path) -> None:
    train(TINY, tmp_path, images=pair())
    whole = (tmp_path / "log.csv").read_text()
    (tmp_path / "log.csv").unlink()
    train(TINY, tmp_path, images=pair(), resume=True)
    assert (tmp_path / "log.csv").read_text() == whole


def test_a_folder_that_cannot_be_made_is_noticed_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    watch = StopsAt(0, 1)
    with pytest.raises(StorageError, match="cannot write"):
        train(TINY, tmp_path / "file" / "run", images=pair(), watch=watch)


def test_an_accelerator_that_is_not_here(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="--device abacus"):
        train(TINY, tmp_path, images=pair(), accelerator="abacus")


@pytest.mark.parametrize("harm", ["header", "momentum", "shape"])
def test_a_checkpoint_that_lacks_something(tmp_path: Path, harm: str) -> None:
    train(replace(TINY, epochs=1), tmp_path, images=pair())
    path = tmp_path / "checkpoint.safetensors"
    facts, tensors = read_file(path)
    names = [name for name in tensors if name.startswith("momentum.")]
    if harm == "header":
        del facts["history"]
    elif harm == "momentum":
        del tensors[names[0]]
    else:
        tensors[names[0]] = tensors[names[0]][:1]
    checkpoint.write_tensors(path, tensors, facts)
    with pytest.raises(LoadError, match="it is damaged"):
        train(replace(TINY, epochs=1), tmp_path, images=pair(), resume=True)
