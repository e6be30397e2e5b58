"""Tiny runs of every kind of experiment on untrained networks, and what is said when one lacks."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from small import NETWORKS, network, pictures, shrink, workshop

from clcnn import cli
from clcnn.attacks import Manifold
from clcnn.control import control
from clcnn.embeddings import LinearEmbedding
from clcnn.errors import DataError
from clcnn.evaluation import PlanError, Store, Workshop, hashing
from clcnn.evaluation.results import COLUMNS, results
from clcnn.evaluation.watch import Silent
from clcnn.experiments import detector, manifold, theorem, tuning
from clcnn.experiments.blueprints import FOLDER, blueprint, ready
from clcnn.experiments.choices import made_otherwise
from clcnn.experiments.run import ORDER, PLANS, Request, form_of, plan_of, run

CUTS = ["input", "layer1", "layer2", "layer3", "head"]
experiment_module = sys.modules["clcnn.cli.experiment"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shrink(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(experiment_module, "make_workshop", lambda *arguments: workshop())
    return tmp_path


def test_every_plan_has_its_file_and_its_name() -> None:
    assert {path.stem for path in FOLDER.glob("*.toml")} == {*PLANS, "common", "demo"}
    assert {*ORDER, "all", "tune"} == {str(name) for name in cli.Experiment}


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_parses_in_both_forms(name: str, tmp_path: Path) -> None:
    quick = ready(blueprint(name, quick=True), workshop(), tmp_path, quick=True)
    assert quick.plan.name == f"{name}-quick"
    assert quick.plan.sample
    assert not quick.missing
    assert max(entry.n for entry in quick.plan.entries) <= 32
    for network_name, defence in blueprint(name).pairs():
        made = quick.plan.defences[defence].on(network_name)
        assert made.fit.images <= 1500
    if name in ORDER[ORDER.index("feedback") :]:  # nothing to choose
        assert ready(blueprint(name), workshop(), tmp_path).plan.name == name
        return
    with pytest.raises(PlanError, match=f"Choose them: clcnn experiment tune --only {name}"):
        ready(blueprint(name), workshop(), tmp_path)


def test_full_forms_have_the_counts_that_were_promised() -> None:
    for name in PLANS:
        for grid in blueprint(name).values["grid"]:
            slow = 256 if "adaptive" in (name, *grid.get("threats", ())) else 1000
            slow = 500 if name == "literal" else slow
            assert grid["n"] >= slow, name
    assert blueprint("adaptive").attacks["square"]["queries"] <= 200
    one_pass = [g for g in blueprint("table1").values["grid"] if g["attacks"] == ["none", "fgsm"]]
    assert [grid["n"] for grid in one_pass] == [10000]


def test_a_network_of_its_own_kind_gets_its_own_cuts(tmp_path: Path) -> None:
    plan = ready(blueprint("adaptive", quick=True), workshop(), tmp_path, quick=True).plan
    nonlinear = plan.defences["nonlinear"]
    assert nonlinear.on("densenet40-cifar10").cuts == ("input", "layer1", "head")
    assert nonlinear.on("resnet20-cifar10").cuts == tuple(CUTS)


def test_reactive_and_layerwise_share_the_embedding_of_linear(tmp_path: Path) -> None:
    for name, other in (("table3", "reactive"), ("table5", "layerwise")):
        plan = ready(blueprint(name, quick=True), workshop(), tmp_path, quick=True).plan
        first, second = (
            plan.defences[d].on("resnet20-cifar10").settings() for d in ("linear", other)
        )
        assert first.pop("solver") != second.pop("solver")
        assert first == second


def test_literal_switches_change_one_thing_each(tmp_path: Path) -> None:
    plan = ready(blueprint("literal", quick=True), workshop(), tmp_path, quick=True).plan
    # Their attacks meet the first, Table 4's the second; the third is there for its subspace alone.
    no_switch = {"nonlinear", "literal-longer", "literal-input"}
    on = {
        name: d.on("resnet20-cifar10").settings()
        for name, d in plan.defences.items()
        if name not in no_switch
    }
    changed = {
        name: {key for key in settings if settings[key] != on["linear"][key]}
        for name, settings in on.items()
    }
    assert changed == {
        "linear": set(),
        "literal-digits": {"accelerate"},
        "literal-centring": {"centring"},
        "literal-rank": {"embedding"},
        "literal-reactive": {"embedding", "solver"},
        "literal-layerwise": {"embedding", "solver"},
        "literal-more": {"solver"},
        "literal-rank-more": {"embedding", "solver"},
        "literal-weights": {"weights"},
        "literal-fit": {"correct_only"},  # the count is the sample's in both
        "literal-tuning": set(),  # its settings are chosen elsewhere
        "literal": {"centring", "embedding", "weights", "correct_only", "accelerate"},
    }
    assert on["literal-reactive"]["embedding"] == on["literal-rank"]["embedding"]
    assert on["literal-layerwise"]["embedding"] == on["literal-rank"]["embedding"]
    assert plan.attacks["manifold-literal"].embedding_of == "literal"
    assert plan.defences["literal-input"].on("densenet40-cifar10").cuts == ("input",)
    assert {e.eps for e in plan.entries if e.attack == "manifold-nearest"} == {8.0}


def test_a_missing_network_is_said_and_the_others_run(here: Path) -> None:
    some = workshop("resnet20-cifar10-pgd")
    with Store("r.sqlite") as store:
        found = run("table2", store, Request(quick=True), workshop=some)
    assert {row["network"] for row in found.rows} == {"resnet20-cifar10-pgd"}
    assert len(found.missing) == 2
    assert "found no weights called 'resnet20-cifar10-fgsm'" in found.missing[0]
    assert "expected them for that network's rows" in found.missing[0]
    assert "clcnn train resnet20 --data cifar10 --method fgsm" in found.missing[0]
    nothing = Workshop(networks={"other": network()})
    with Store("r.sqlite") as store, pytest.raises(PlanError, match="'densenet40-cifar10'"):
        run("table4", store, Request(quick=True), workshop=nothing)


def test_what_was_not_chosen_yet_is_said_and_the_others_run(here: Path) -> None:
    there = workshop("resnet20-cifar10-pgd", "resnet20-cifar10-fgsm")
    chosen = Path(__file__).parents[2] / "results" / "choices" / "resnet20-cifar10-linear.json"
    facts = json.loads(chosen.read_text())
    facts["defence"]["solver"]["iterations"] = 20  # stated are 5
    (here / "resnet20-cifar10-pgd-linear.json").write_text(json.dumps(facts))
    made = ready(blueprint("table2"), there, here)
    assert len(made.missing) == 2  # the third network, and the choice for the second
    assert "found no" in made.missing[1]
    assert "resnet20-cifar10-fgsm-linear.json" in made.missing[1]
    assert "clcnn experiment tune --only table2" in made.missing[1]
    cells = {(e.network, e.defence, e.attack) for e in made.plan.entries}
    attacks = {"none", "fgsm", "pgd", "manifold", "cw"}
    known, unknown = "resnet20-cifar10-pgd", "resnet20-cifar10-fgsm"
    assert cells == {
        *((known, defence, attack) for defence in ("none", "linear") for attack in attacks),
        *((unknown, "none", attack) for attack in attacks - {"manifold"}),  # in its embedding
    }
    chosen_for = made.plan.defences["linear"].on(known)
    assert chosen_for.solver.settings["iterations"] == 20
    assert chosen_for.accelerate == "bfloat16"  # whatever the choice was made with


def test_table3_has_differences_on_the_same_images(here: Path) -> None:
    with Store("r.sqlite") as store:
        found = run("table3", store, Request(quick=True), workshop=workshop())
    assert found.columns == COLUMNS
    by = {(r["defence"], r["attack"]): float(r["accuracy"]) for r in found.rows}
    attacks = {attack for _, attack in by}
    assert attacks == {"none", "manifold", "fgsm", "pgd", "cw"}
    for attack in attacks:
        expected = by["linear", attack] - by["reactive", attack]
        assert by["linear-reactive", attack] == pytest.approx(expected)
    for row in found.rows:
        assert float(row["low"]) <= float(row["accuracy"]) <= float(row["high"])


def test_robust_begins_with_differences_to_no_control(here: Path) -> None:
    with Store("r.sqlite") as store:
        found = run("robust", store, Request(quick=True), workshop=workshop())
    keys = ("network", "defence", "attack", "eps", "threat")
    by = {tuple(row[key] for key in keys): float(row["accuracy"]) for row in found.rows}
    first = [at for at in by if at[1] == "feedback-strong-none"]
    assert {at[4] for at in first} == {"none", "oblivious", "adaptive"}
    assert list(by)[: len(first)] == first
    for network_name, _, *place in first:
        with_, without = (by[network_name, d, *place] for d in ("feedback-strong", "none"))
        assert by[network_name, "feedback-strong-none", *place] == pytest.approx(with_ - without)


def test_growth_is_the_projection_onto_the_complement(here: Path) -> None:
    x, y = pictures(40, 5)
    robust = control(network(), CUTS, embedding=LinearEmbedding(rank=12)).fit(x)
    x_eps = Manifold(4 / 255, embedding=robust.embeddings[0], steps=3)(network(), x[:6], y[:6])
    found = manifold.growth(robust, x[:6], x_eps)
    clean, moved = x[:6], x_eps
    stages = [network().stem, network().layer1, network().layer2, network().layer3]
    data = x
    with torch.no_grad():
        for t in range(5):
            centred = data.flatten(1).double().numpy()
            centred = centred - centred.mean(0)
            V = np.linalg.svd(centred, full_matrices=False)[2][:12].T
            d = (moved - clean).flatten(1).double().numpy()
            off = np.linalg.norm(d - d @ V @ V.T, axis=1)
            np.testing.assert_allclose(found.off[:, t].numpy(), off, rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(found.whole[:, t], np.linalg.norm(d, axis=1), rtol=1e-4)
            if t < 4:
                data, clean, moved = (stages[t](z) for z in (data, clean, moved))
    rounded = robust.accelerate(bfloat16=True)
    assert torch.equal(manifold.growth(rounded, x[:6], x_eps).off, found.off)
    assert (found.off[:, 0] < 1e-5).all(), "a manifold attack starts on the manifold"
    assert found.off[:, 1:].min() > 20 * found.off[:, 0].max(), "and leaves it"


def test_manifold_rows(here: Path) -> None:
    with Store("r.sqlite") as store:
        found = run("manifold", store, Request(quick=True), workshop=workshop())
        table = run("table1", store, Request(quick=True), workshop=workshop())
    assert [row["cut"] for row in found.rows] == CUTS
    assert [float(row["paper"]) for row in found.rows] == [0, 0.016, 0.0438, 0.0107, 0.0552]
    assert {row["n"] for row in found.rows} == {"4"}
    for row in found.rows:
        assert tuple(row) == manifold.COLUMNS
        norm, d = float(row["norm"]), int(row["dimension"])
        assert float(row["root_mean_square"]) == pytest.approx(norm / d**0.5, rel=1e-4)
        assert 0 <= float(row["share"]) <= 1
    cell = {name: found.rows[0][name] for name in COLUMNS}
    assert cell in table.rows, "the accuracy beside it is that of the paper's first table"


def test_detector_rows(here: Path) -> None:
    with Store("r.sqlite") as store:
        found = run("detector", store, Request(quick=True), workshop=workshop())
    assert {tuple(row) for row in found.rows} == {detector.COLUMNS}
    clean, *others = found.rows
    assert (clean["attack"], clean["n"], clean["auroc"]) == ("none", "4", "")
    assert {row["attack"] for row in others} == {"gaussian", "fgsm", "pgd", "cw", "stealth"}
    noise = next(row for row in others if row["attack"] == "gaussian")
    assert float(noise["auroc_low"]) <= float(noise["auroc"]) <= float(noise["auroc_high"])
    assert float(noise["flagged"]) == 100.0, "noise of 0.08 is far from smooth images"


def test_theory_rows_hold_the_theorem() -> None:
    rows = list(theorem.run(theorem.Settings(depth=4, width=8, rank=2, samples=5)))
    assert {row["varied"] for row in rows} == {"t", "c", "r"}
    for row in rows:
        assert tuple(row) == theorem.COLUMNS
        assert (row["defence"], row["accuracy"], row["n"]) == ("greedy", "", "5")
        assert float(row["largest_ratio"]) <= 1 + 1e-9
        if row["network"] == "orthogonal":
            assert float(row["error"]) == pytest.approx(float(row["bound"]), rel=1e-8)
    loose = [row for row in rows if row["network"] != "orthogonal" and row["t"] != "1"]
    assert any(float(row["largest_ratio"]) < 0.999 for row in loose)


def test_adaptive_is_never_above_oblivious(here: Path) -> None:
    only = workshop("resnet20-cifar10")
    with Store("r.sqlite") as store:
        found = run("adaptive", store, Request(quick=True, most=3), workshop=only)
    by = {(r["defence"], r["attack"], r["threat"]): float(r["accuracy"]) for r in found.rows}
    for (defence, attack, threat), accuracy in by.items():
        if threat == "adaptive":
            assert accuracy <= by[defence, attack, "oblivious"]
    assert ("linear", "worst", "adaptive") in by
    assert ("nonlinear", "worst", "adaptive") in by


def test_choices_are_made_once_and_used(here: Path) -> None:
    folder = here / "choices"
    with Store("t.sqlite") as store:
        (short,) = tuning.run(["table3"], store, folder, whole=False, workshop=workshop())
        assert not list(tuning.run(["table3"], store, folder, whole=False, workshop=workshop()))
        made = list(tuning.run(["table3"], store, folder, workshop=workshop()))
        assert [task.file.name for task, _ in made] == ["resnet20-cifar10-linear.json"]
        assert made[0][1].chosen == short[1].chosen
        assert all(point.objective is not None for point in made[0][1].points)
        assert not list(tuning.run(["table3"], store, folder, workshop=workshop()))
        with pytest.raises(PlanError, match="'toy', which has no settings"):
            list(tuning.run(["toy"], store, folder, workshop=workshop()))
        with pytest.raises(PlanError, match="strength have no settings to choose"):
            list(tuning.run(["strength"], store, folder, workshop=workshop()))
    chosen = json.loads((folder / "resnet20-cifar10-linear.json").read_text())
    assert (chosen["split"], chosen["n"]) == ("heldout", 4)
    plan = ready(blueprint("table3"), workshop(), folder).plan
    linear, reactive = (plan.defences[d].on("resnet20-cifar10") for d in ("linear", "reactive"))
    assert linear.solver.settings["lr"] == 0.01, "the stated one is 0.002"
    assert linear.settings()["embedding"] == chosen["defence"]["embedding"]
    assert (reactive.embedding, reactive.solver.kind) == (linear.embedding, "reactive")
    with Store("r.sqlite") as store:
        found = run("table3", store, Request(choices=folder), workshop=workshop())
    assert found.name == "table3"
    assert len(found.rows) == 15
    assert not any("is used, but" in sentence for sentence in found.warnings)


def test_fewer_images_or_another_seed_have_results_of_their_own(here: Path) -> None:
    def named(**options: int) -> str:
        return plan_of("table3", Request(quick=True, **options), workshop())[0].name

    assert named() == named(most=4) == named(seed=0) == "table3-quick"
    assert named(most=2) == "table3-quick-most-2"
    assert named(most=2, seed=3) == "table3-quick-most-2-seed-3"
    assert form_of("table3-quick-most-2-seed-3") == (
        "table3",
        ("at most 2 images a cell", "seed 3"),
    )
    assert form_of("mine-seed-3") == ("mine-seed-3", ())
    with Store("r.sqlite") as store:
        full = run("table3", store, Request(quick=True), workshop=workshop())
        part = run("table3", store, Request(quick=True, most=2), workshop=workshop())
        assert (full.name, part.name) == ("table3-quick", "table3-quick-most-2")
        assert {r.n for r in results(store, full.name)} == {4}
        assert {r.n for r in results(store, part.name)} == {2}


def test_a_choice_that_was_made_otherwise_is_not_used_without_a_word(here: Path) -> None:
    folder = here / "choices"
    with Store("t.sqlite") as store:
        list(tuning.run(["table3"], store, folder, most=2, workshop=workshop()))
    said: list[str] = []
    watch = Silent()
    watch.say = said.append  # type: ignore[method-assign]
    with Store("r.sqlite") as store:
        request = Request(choices=folder, most=1)
        found = run("table3", store, request, workshop=workshop(), watch=watch)
    (warning,) = [sentence for sentence in found.warnings if "is used, but" in sentence]
    assert said.count(warning) == 1
    assert "it was made on 2 images, not on 4" in warning
    assert f"clcnn experiment tune --only table3 --choices {folder}" in warning


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("n", 2, "on 2 images, not on 4"),
        ("split", "test", "on test images, not on heldout ones"),
        ("fingerprint", "x", "for other weights"),
        ("grid", {"whole": True}, "its grid is another"),
        ("defence", {"weights": "mean"}, "it is of another defence"),
    ],
)
def test_a_choice_that_was_made_otherwise_is_made_again(
    here: Path, key: str, value: object, words: str
) -> None:
    said: list[str] = []
    watch = Silent()
    watch.say = said.append  # type: ignore[method-assign]
    file = here / "choices" / "resnet20-cifar10-linear.json"
    with Store("t.sqlite") as store:
        list(tuning.run(["table3"], store, file.parent, workshop=workshop()))
        before = json.loads(file.read_text())
        changed = {**before[key], **value} if isinstance(value, dict) and key != "grid" else value
        file.write_text(json.dumps({**before, key: changed}))
        (again,) = tuning.run(["table3"], store, file.parent, workshop=workshop(), watch=watch)
        assert again[1].chosen.lr == before["chosen"]["lr"]
        assert words in "".join(said)
        more = tuning.run(["table3"], store, file.parent, most=2, workshop=workshop())
        assert not list(more), "one made on more images than asked for will do"
        file.write_text("{")
        with pytest.raises(PlanError, match="is no JSON file"):
            list(tuning.run(["table3"], store, file.parent, workshop=workshop()))


def test_a_choice_from_before_is_confirmed_without_its_grid(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    watch = Silent()
    watch.say = said.append  # type: ignore[method-assign]
    file = here / "choices" / "resnet20-cifar10-linear.json"
    with Store("t.sqlite") as store:
        ((_, made),) = tuning.run(["table3"], store, file.parent, workshop=workshop())
        assert made.chosen.feasible == any(one.kept for one in made.confirmed)
        assert {one.n for one in made.confirmed} == {6}
        facts = json.loads(file.read_text())
        assert len(facts["confirmed"]) == len(made.confirmed) > 0
        file.write_text(json.dumps({k: v for k, v in facts.items() if k != "confirmed"}))
        plan = ready(blueprint("table3"), workshop(), file.parent).plan
        assert plan.name == "table3"
        (sentence,) = made_otherwise("table3", file.parent, workshop())
        assert "it was not confirmed on 6 clean images" in sentence
        monkeypatch.setattr(tuning, "tune", None)  # a grid would be an error
        ((_, again),) = tuning.run(["table3"], store, file.parent, workshop=workshop(), watch=watch)
        assert (again.chosen, again.confirmed) == (made.chosen, made.confirmed)
        assert "to be confirmed on clean images" in said[0]
        assert not list(tuning.run(["table3"], store, file.parent, workshop=workshop()))
    assert not made_otherwise("table3", file.parent, workshop())


def test_all_goes_on_where_data_lack(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lacking(name: str, *rest: object) -> tuple[str, ...]:
        if name == "fashion":
            raise DataError("there are no images")
        return ()

    monkeypatch.setattr(experiment_module, "_run", lacking)
    assert cli.run(["experiment", "all"]) == 1
    assert capsys.readouterr().err.count("not run: fashion: there are no images") == 1


def test_status_counts_what_todays_code_would_not_measure_again(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["experiment", "manifold", "--quick", "--status"]
    assert cli.run(ask) == 1
    assert "found no store results.sqlite" in capsys.readouterr().err
    assert not (here / "results.sqlite").exists()
    assert cli.run(["experiment", "manifold", "--quick"]) == 0
    capsys.readouterr()
    assert cli.run(ask) == 0
    whole = capsys.readouterr().out
    assert cli.run([*ask, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["complete"] == facts["cells"] > 0
    assert facts["stored"] == facts["samples"] > 0
    assert f"{facts['cells']} of {facts['cells']} cells" in whole
    real = hashing.room_code
    monkeypatch.setattr(hashing, "room_code", lambda r: "new" if r == "attacks" else real(r))
    assert cli.run([*ask, "--json"]) == 0
    changed = json.loads(capsys.readouterr().out)
    assert (changed["complete"], changed["stored"]) == (0, 0)
    assert changed["samples"] == facts["samples"]
    assert cli.run(["experiment", "all", "--status"]) == 0  # without a single choice
    lines = capsys.readouterr().out.splitlines()
    assert "table2: 0 of 0 cells, 0 of 0 samples, and what is missing:" in lines


def test_the_command_writes_csv_and_says_what_lacks(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only = workshop("resnet20-cifar10-labelsmooth")
    monkeypatch.setattr(experiment_module, "make_workshop", lambda *arguments: only)
    assert cli.run(["experiment", "table2", "--quick"]) == 1
    captured = capsys.readouterr()
    assert "written: results/table2-quick-part.csv" in captured.out
    assert "missing: found no weights called 'resnet20-cifar10-pgd'" in captured.err
    with (here / "results" / "table2-quick-part.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 10
    assert cli.run(["experiment", "table2", "--quick", "--json", "--csv", "t.csv"]) == 1
    captured = capsys.readouterr()
    assert captured.err.count("missing: found no weights called") == 2
    facts = json.loads(captured.out)
    for shown, row in zip(facts["rows"], rows, strict=True):
        for column in ("eps", "n", "accuracy", "low", "high", "seconds"):
            assert shown[column] == float(row[column])
        assert [shown[name] for name in COLUMNS[:3]] == [row[name] for name in COLUMNS[:3]]
    assert len(facts["missing"]) == 2
    assert (here / "t.csv").is_file()
    assert cli.run(["experiment", "tune", "--only", "table2", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("found no weights called") == 2
    assert [json.loads(line)["written"] for line in captured.out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["experiment"], 2, "Missing argument"),
        (["experiment", "table9"], 2, "table9"),
        (["experiment", "all", "--csv", "x.csv"], 2, "writes several"),
        (["experiment", "table1", "--only", "table1"], 2, "goes with tune"),
        (["experiment", "tune", "--quick"], 2, "no --quick"),
        (["experiment", "tune", "--status"], 2, "--status goes with"),
        (["experiment", "toy", "--status"], 2, "--status goes with"),
        (["experiment", "detector", "--status"], 2, "--status goes with"),
        (["experiment", "table1", "--status", "--csv", "x.csv"], 2, "measures nothing"),
        (["experiment", "tune", "--seed", "3"], 2, "no --seed"),
        (["experiment", "table1", "--seed", "5000000000"], 2, "4294967295"),
        (["demo", "--seed", "5000000000"], 2, "4294967295"),
        (["experiment", "table1"], 1, "UnpreparedError: found no results/choices/resnet20-cifar10"),
        (["experiment", "toy", "--weights", "nowhere"], 2, "found no weights in nowhere"),
    ],
)
def test_exit_codes(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert cli.run(arguments) == code
    error = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert words in error
    assert "Traceback" not in error


def test_choices_that_cannot_be_made_leave_no_store_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["experiment", "tune", "--only", "table1", "--root", "nowhere"]) == 1
    assert "DataError: cifar10 was not found below nowhere" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["experiment", "--help"]) == 0
    assert "Example: clcnn experiment table1 --quick" in " ".join(capsys.readouterr().out.split())
    assert set(NETWORKS) >= {"resnet20-cifar10", "densenet40-cifar10", "resnet20-fashion-mnist"}


def test_a_defence_like_another_has_what_the_network_asks_of_that_other() -> None:
    drawn, name = blueprint("literal"), "densenet40-cifar10"
    stated, fixed, choice = drawn.defence(name, "literal-longer")
    assert stated["cuts"] == drawn.networks[name]["defences"]["nonlinear"]["cuts"]
    assert stated["cuts"] != drawn.defences["nonlinear"]["cuts"]
    assert choice == "nonlinear"
    assert fixed == {"solver": stated["solver"]}
