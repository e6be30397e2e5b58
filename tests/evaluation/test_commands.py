"""`clcnn evaluate` and `clcnn tune`: help, exit codes, output, Ctrl-C, progress."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
import typer
from safetensors.torch import save_file
from tiny import TEXT, pictures, workshop

from clcnn import cli
from clcnn.evaluation import Store, Workshop, runner
from clcnn.evaluation.plan import Entry
from clcnn.models.weights import build, header

PLAN = TEXT.replace('"none", "fgsm", "noise"', '"none", "noise"').replace("[20, 40]", "[40]")
evaluate_module = sys.modules["clcnn.cli.evaluate"]
tune_module = sys.modules["clcnn.cli.tune"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plan.toml").write_text(PLAN)
    monkeypatch.chdir(tmp_path)
    for module in (evaluate_module, tune_module):
        monkeypatch.setattr(module, "make_workshop", lambda *arguments: workshop())
    return tmp_path


@pytest.mark.parametrize("command", ["evaluate", "tune"])
def test_help_has_one_line_and_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"Example: clcnn {command} " in text


def test_evaluate_prints_a_table_and_writes_csv(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["evaluate", "plan.toml", "--csv", "out/r.csv"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "tiny"
    assert lines[1].split()[:3] == ["network", "defence", "attack"]
    assert lines[2].split()[:6] == ["tiny", "none", "none", "0", "none", "20"]
    assert "cell 1/4: tiny, none, none" in captured.err
    rows = (here / "out" / "r.csv").read_text().splitlines()
    assert len(rows) == 5
    assert cli.run(["evaluate", "plan.toml", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    printed = json.loads(captured.out)
    accuracies = [float(r.split(",")[6]) for r in rows[1:]]
    assert [row["accuracy"] for row in printed["results"]] == accuracies
    assert {type(row["n"]) for row in printed["results"]} == {int}
    assert {row["network"] for row in printed["results"]} == {"tiny"}
    assert printed["warnings"] == []
    assert cli.run(["evaluate", "plan.toml", "--seed", "9", "--json"]) == 0
    with Store("results.sqlite") as store:
        assert store.read("SELECT count(*) FROM cells")[0][0] == 8
        listed = store.read("SELECT plan, count(*) FROM entries GROUP BY plan ORDER BY plan")
    assert listed == [("tiny", 4), ("tiny-seed-9", 4)]  # neither takes the other's place


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["evaluate", "wrong.toml"], 2),
        (["tune", "nobody", "--data", "mnist", "--out", "c.json"], 2),
        (["tune", "tiny", "--data", "mnist", "--cut", "nowhere", "--out", "c.json"], 2),
        (["tune", "tiny", "--data", "mnist", "--images", "41", "--out", "c.json"], 2),
    ],
)
def test_what_cannot_be_run_leaves_no_store_behind(
    here: Path, arguments: list[str], code: int
) -> None:
    text = (here / "plan.toml").read_text()
    (here / "wrong.toml").write_text(text.replace('weights = "tiny"', 'weights = "nobody"'))
    assert cli.run([*arguments, "--store", "new.sqlite"]) == code
    assert not (here / "new.sqlite").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["evaluate", "plan.toml", "--csv", "results.sqlite"],
        ["evaluate", "plan.toml", "--csv", "./plan.toml"],
        ["evaluate", "plan.toml", "--csv", "other.sqlite"],
        ["report", "results.sqlite", "--out", "other.sqlite"],
        ["report", "results.sqlite", "--out", "results.sqlite"],
        ["report", "results.sqlite", "--out", "r.md", "--markdown", "./r.md"],
        ["report", "results.sqlite", "--notes", "plan.toml", "--out", "plan.toml"],
        ["report", "results.sqlite", "--markdown", "r #1.md"],
        ["experiment", "toy", "--csv", "results.sqlite"],
        ["tune", "tiny", "--out", "other.sqlite"],
        ["tune", "tiny", "--out", "w.safetensors"],
        ["tune", "w.safetensors", "--out", "./w.safetensors"],
        ["evaluate", "plan.toml", "--csv", "w.safetensors"],
        ["evaluate", "plan.toml", "--csv", "choice.json"],
        ["evaluate", "plan.toml", "--csv", "results.files"],
        ["experiment", "table1", "--csv", "choice.json"],
        ["attack", "resnet20-cifar10", "--out", "w.safetensors"],
        ["bench", "--quick", "--out", "choice"],
        ["experiment", "toy", "--csv", "part.csv"],
    ],
)
def test_no_output_takes_the_place_of_a_store_or_of_what_is_read(
    arguments: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("results.sqlite", "other.sqlite"):
        Store(name).close()
    save_file({"x": torch.zeros(2)}, "w.safetensors")
    Path("choice.json").write_text('{\n "kind": "clcnn choice",\n "network": "tiny"\n}')
    save_file({"x": torch.zeros(2)}, "part-states.csv")  # whatever it is called
    before = {path.name: path.read_bytes() for path in here.glob("*.*")}
    assert cli.run(arguments) == 2
    assert "expected" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in here.glob("*.*")} == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["evaluate"], 2, "Missing argument"),
        (["evaluate", "plan.toml", "--threads", "0"], 2, "threads"),
        (["evaluate", "no.toml"], 2, "PlanError: there is no file"),
        (["evaluate", "plan.toml", "--store", "plan.toml"], 1, "StoreError: plan.toml is no SQL"),
        (["evaluate", "plan.toml", "--store", "."], 1, "StoreError: . is a folder; expected"),
        (["evaluate", "plan.toml", "--csv", "."], 2, ". is a folder; expected a file"),
        (["tune", "tiny", "--out", "."], 2, ". is a folder; expected a file"),
        (["experiment", "table1", "--csv", "."], 2, ". is a folder; expected a file"),
        (["demo", "--out", "plan.toml"], 1, "StorageError: cannot write plan.toml"),
        (["tune", "tiny"], 2, "--out"),
        (["tune", "tiny", "--out", "c.json", "--split", "train"], 2, "train"),
        (["tune", "tiny", "--out", "c.json", "--paper-literal", "--embedding", "auto"], 2, "leave"),
        (
            ["tune", "tiny", "--out", "c.json", "--embedding", "spectral", "--energy", "0.9"],
            2,
            "nothing that 'spectral'",
        ),
        (["tune", "tiny", "--out", "c.json", "--lr", "-1"], 2, "found lr"),
        (["tune", "tiny", "--out", "c.json", "--lr", "nan"], 2, "expected finite numbers above 0"),
        (["tune", "tiny", "--out", "c.json", "--energy", "2"], 2, "shares in (0, 1]"),
        (["tune", "tiny", "--out", "c.json", "--confirm", "500"], 2, "more images than the 500"),
        (["tune", "tiny", "--out", "c.json", "--embedding", "liner"], 2, "Did you mean 'linear'"),
    ],
)
def test_exit_codes(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    assert cli.run(arguments) == code
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error
    if code == 1:
        assert error.count("\n") == 1


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="--device nonsense cannot be used"):
        evaluate_module.make_workshop(None, "nonsense", None)


@pytest.mark.parametrize(
    "arguments",
    [["evaluate", "plan.toml"], ["tune", "tiny", "--data", "mnist", "--out", "c.json"]],
)
def test_ctrl_c_says_how_to_go_on(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    def interrupted(*anything: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Bench, "measure", interrupted)
    small = ["--images", "8", "--fit", "60", "--cut", "input", "--cut", "head"]
    arguments = arguments + (small if arguments[0] == "tune" else [])
    assert cli.run([*arguments, "--store", "mine.sqlite"]) == 130
    assert "kept in mine.sqlite. Repeat the same command" in capsys.readouterr().err
    with Store("mine.sqlite") as store:  # no claim is left behind
        assert store.read("SELECT count(*) FROM chunks WHERE owner IS NOT NULL")[0][0] == 0


def test_ctrl_c_before_there_is_a_store_names_none(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner.Bench, "check", interrupted)
    assert cli.run(["evaluate", "plan.toml", "--store", "mine.sqlite"]) == 130
    said = "Stopped; nothing was measured yet. Repeat the same command to go on.\n"
    assert capsys.readouterr().err == said


def test_tune_confirms_its_choice(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "tune tiny --data mnist --out c.json --images 8 --chunk 8 --fit 60 --cut input"
    words += " --cut head --iterations 1 --lr 0.1 --energy 0.8 --confirm 20"
    assert cli.run(words.split()) == 0
    said = capsys.readouterr().out
    (tried,) = json.loads((here / "c.json").read_text())["confirmed"]
    assert tried["n"] == 20
    assert f"on 20: 1 iterations, lr 0.1, energy 0.8: clean {100 * tried['clean']:.2f} %" in said
    assert said.count("kept") == 1
    assert ("not kept" in said) != tried["kept"]


def test_tune_writes_a_choice(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "tune tiny --data mnist --out c.json --images 8 --chunk 8 --fit 60 --cut input"
    words += " --cut head --iterations 1 --iterations 2 --lr 0.1 --energy 0.8"
    assert cli.run(words.split()) == 0
    out = capsys.readouterr().out
    assert "lr 0.1, energy 0.8: mean" in out
    assert "on 8 heldout images" in out
    assert "written: c.json" in out
    facts = json.loads((here / "c.json").read_text())
    assert facts["defence"]["cuts"] == ["input", "head"]
    assert {point["iterations"] for point in facts["points"]} == {1, 2}
    assert cli.run([*words.split(), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["points"] == facts["points"]
    literal = ["--paper-literal", "--split", "test", "--energy", "0.9"]
    assert cli.run([*words.split(), *literal]) == 0
    assert "chosen on test images" in capsys.readouterr().out
    facts = json.loads((here / "c.json").read_text())["defence"]
    assert (facts["weights"], facts["centring"]) == ("mean", "batch")
    assert "singular" in facts["embedding"]


def test_bars_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with cli.Bars() as bars:
        assert bars.bar is not None
        bars.cell(0, 3, Entry("net", "linear", "pgd", 2.0, "oblivious", 10))
        bars.samples(5, 30, 100.0)
        task = bars.bar.tasks[0]
        assert (task.completed, task.total) == (5, 30)
        assert task.fields["cell"] == "cell 1/3: net, linear, pgd, eps 2, oblivious"
        assert task.fields["left"] == "2 min left"
        bars.say("a word")
    assert evaluate_module.time_left(None) == "time left not known yet"
    assert evaluate_module.time_left(20.4) == "20 s left"
    assert evaluate_module.time_left(3 * 3600.0) == "3.0 h left"


def test_a_resnet_on_the_shipped_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {"network": "resnet20", "in_channels": 3, "num_classes": 10, "name": "fresh"}
    save_file(build("resnet20").state_dict(), tmp_path / "w.safetensors", metadata=header(facts))
    (tmp_path / "plan.toml").write_text(
        """
        name = "sample"
        [quick]
        n = 3
        fit = 12
        [networks.fresh]
        weights = "w.safetensors"
        [defences.reactive]
        cuts = ["input", "head"]
        embedding = { kind = "linear", rank = 8 }
        solver = { kind = "reactive" }
        [attacks.pgd]
        kind = "pgd"
        steps = 2
        [[grid]]
        eps = 2
        """
    )
    store = str(tmp_path / "r.sqlite")
    command = ["evaluate", str(tmp_path / "plan.toml"), "--store", store, "--quick", "--json"]
    assert cli.run(command) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [(r["defence"], r["attack"], r["n"]) for r in rows] == [
        ("none", "none", 3),
        ("none", "pgd", 3),
        ("reactive", "none", 3),
        ("reactive", "pgd", 3),
    ]
    with Store(store) as opened:
        manifest = json.loads(opened.read("SELECT manifest FROM runs")[0][0])
    assert manifest["plan"]["sample"] is True
    assert manifest["packages"]["torch"]
    assert set(manifest["weights"]) == {"fresh"}


@pytest.mark.parametrize("name", ["table1", "robust-quick", "table3-most-5", "tune mine"])
def test_names_of_our_experiments_are_taken(
    name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = here / "plan.toml"
    plan.write_text(plan.read_text().replace('name = "tiny"', f'name = "{name}"'))
    assert cli.run(["evaluate", "plan.toml"]) == 2
    assert f"found name = '{name}'" in capsys.readouterr().err


def test_a_cut_that_no_network_has_is_refused_before_anything_is_measured(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (here / "plan.toml").read_text()
    (here / "plan.toml").write_text(text.replace('"middle"', '"nowhere"'))
    assert cli.run(["evaluate", "plan.toml"]) == 2
    assert "PlanError: [defences.linear], on 'tiny': " in (error := capsys.readouterr().err)
    assert "nowhere" in error
    with Store("results.sqlite") as store:
        assert store.read("SELECT count(*) FROM cells")[0][0] == 0


def test_images_that_a_network_cannot_take_are_refused_with_the_option_to_use(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wide = torch.nn.Sequential(torch.nn.Conv2d(7, 1, 1), torch.nn.Flatten()).eval()
    images = {"train": pictures(80, 1), "test": pictures(40, 3)}
    other = Workshop(networks={"tiny": wide}, images={"mnist": images})
    monkeypatch.setattr(evaluate_module, "make_workshop", lambda *arguments: other)
    assert cli.run(["evaluate", "plan.toml"]) == 2
    error = capsys.readouterr().err
    assert "network 'tiny' cannot take the images of 'mnist', " in error
    assert "--data" in error
