"""Tuning: prefixes of one run, energies of one fit, the choice, and where it may look."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import TEXT, network, pictures, plan, workshop

import clcnn
from clcnn.errors import FitError, SolveError
from clcnn.evaluation import (
    BatchCentred,
    Choice,
    Defence,
    Grid,
    Kind,
    PlanError,
    Point,
    Store,
    Workshop,
    plans,
    results,
    run,
    tune,
)
from clcnn.evaluation.choice import best
from clcnn.evaluation.plan import Network
from clcnn.evaluation.prefixes import prefixes
from clcnn.evaluation.truncation import truncated

GRID = Grid(iterations=(1, 2, 4), lr=(0.02, 0.1), energy=(0.7, 0.9), eps=(30,))


def controlled(lr: float, iterations: int, **settings: object) -> clcnn.ControlledModule:
    return clcnn.control(
        network(),
        ["input", "middle", "head"],
        embedding=clcnn.LinearEmbedding(energy=0.8),
        solver=clcnn.PMP(iterations=iterations, lr=lr, **settings),
    ).fit(pictures(60, 1)[0])


@pytest.mark.parametrize("lr", [0.02, 3.0, 1e30])
def test_one_run_gives_what_shorter_runs_find(lr: float) -> None:
    x = pictures(12, 5)[0]
    robust = controlled(lr, 6)
    found = prefixes(robust, x, (0, 1, 3, 6))
    assert sorted(found) == [0, 1, 3, 6]
    for count, prefix in found.items():
        alone = robust.configure(solver=replace(robust.solver, iterations=count)).solve(x)
        assert torch.allclose(prefix.solution.J, alone.J, rtol=1e-5)
        assert torch.allclose(prefix.solution.logits, alone.logits, atol=1e-4)
        for u, v in zip(prefix.solution.u, alone.u, strict=True):
            assert torch.allclose(u, v, atol=1e-5)


@pytest.mark.parametrize("settings", [{"tolerance": 0.1}, {"start": "greedy"}])
def test_solvers_whose_shorter_runs_are_no_prefixes_are_refused(settings: dict) -> None:
    with pytest.raises(SolveError, match="tolerance 0"):
        prefixes(controlled(0.1, 3, **settings), pictures(2, 5)[0], (1,))


@pytest.mark.parametrize("energy", [0.3, 0.7, 0.85, 0.9])
def test_a_lower_energy_is_the_start_of_a_higher_one(energy: float) -> None:
    x = pictures(60, 1)[0]
    high = clcnn.LinearEmbedding(energy=0.9).fit([x])
    cut, fresh = truncated(high, energy), clcnn.LinearEmbedding(energy=energy).fit([x])
    assert cut.rank_ == fresh.rank_
    assert cut.explained_ == pytest.approx(fresh.explained_, abs=1e-5)
    assert torch.allclose(cut.project(x), fresh.project(x), atol=1e-5)
    assert cut.config() == fresh.config()


def tuned(path: Path, shop: Workshop | None = None, **settings: object) -> Choice:
    defence = plan().defences["linear"]
    with Store(path) as store:
        return tune(
            Network("tiny", "mnist"),
            store,
            **{"defence": defence, "grid": GRID, "n": 20, "chunk": 12, **settings},
            workshop=shop or workshop(),
        )


@pytest.fixture(scope="module")
def choice(tmp_path_factory: pytest.TempPathFactory) -> Choice:
    images = {"train": pictures(80, 1), "heldout": pictures(40, 2)}  # there are no test images
    shop = Workshop(networks={"tiny": network()}, images={"mnist": images})
    return tuned(tmp_path_factory.mktemp("tune") / "t.sqlite", shop)


def test_the_grid_is_what_a_plan_on_the_held_out_images_measures(
    choice: Choice, tmp_path: Path
) -> None:
    assert len(choice.points) == 3 * 2 * 2
    point = choice.points[-1]
    settings = f"iterations = {point.iterations}, lr = {point.lr}"
    text = TEXT.replace("iterations = 3, lr = 0.05", settings).replace("0.8", str(point.energy))
    text = text.replace("n = 20", 'n = 20\nsplit = "heldout"').replace("seed = 3", "seed = 0")
    text = text.replace("chunk = 8", "chunk = 12").replace('"noise"\n', '"pgd"\n')
    text = text.replace("[20, 40]", "[30]")
    found = run(plan(text), tmp_path / "r.sqlite", workshop=workshop())
    controlled = [r.accuracy for r in found if r.defence == "linear"]
    assert controlled == list(point.accuracies.values())
    assert [r.accuracy for r in found if r.defence == "none"] == list(choice.plain.values())
    assert point.objective == pytest.approx(sum(controlled) / 3)
    assert point.lost == pytest.approx(choice.plain["none"] - point.clean)


def point(objective: float, lost: float, iterations: int = 5, lr: float = 0.1) -> Point:
    return Point(iterations, lr, 0.9, {"none": 0.9 - lost}, objective, lost, lost <= 0.04)


def test_the_best_point_keeps_the_clean_accuracy_and_is_cheap() -> None:
    n = 10_000
    assert best([point(0.8, 0.05), point(0.5, 0.04), point(0.4, 0.0)], n).objective == 0.5
    assert best([point(0.5, 0.0, 10), point(0.5, 0.0, 5)], n).iterations == 5
    assert best([point(0.5, 0.0, lr=0.2), point(0.5, 0.0, lr=0.1)], n).lr == 0.1
    least = best([point(0.8, 0.2), point(0.3, 0.1)], n)
    assert (least.objective, least.feasible) == (0.3, False)


def test_what_the_images_cannot_tell_apart_is_decided_by_cost() -> None:
    costly, cheap, better = point(0.60, 0.0, 50), point(0.58, 0.0, 10), point(0.59, 0.0, 10, 0.2)
    error = costly.standard_error(100)
    assert error == pytest.approx(0.03)  # sqrt(0.9 * 0.1 / 100)
    assert best([costly, cheap], 100) == cheap
    assert best([costly, cheap], 400) == costly  # 0.015 is less than what lies between them
    assert best([costly, cheap, better], 100) == better
    more = replace(cheap, energy=0.99, objective=0.59)
    assert best([costly, cheap, more], 100) == cheap  # as many iterations, fewer components
    both = replace(costly, accuracies={"none": 0.9, "fgsm 2": 0.5})
    assert both.standard_error(100) == pytest.approx((0.03 + 0.05) / 2)


def test_the_choice_is_a_file_that_plans_use(choice: Choice, tmp_path: Path) -> None:
    choice.write(tmp_path / "choice.json")
    facts = json.loads((tmp_path / "choice.json").read_text())
    assert (facts["split"], facts["n"]) == ("heldout", 20)
    assert len(facts["points"]) == 12
    text = TEXT.replace(
        'embedding = { kind = "linear", energy = 0.8 }', 'tuned = "choice.json"'
    ).replace("solver = { kind", "# solver = { kind")
    used = plan(text, tmp_path).defences["linear"]
    assert used.settings() == choice.defence.settings()
    assert used.solver.settings["iterations"] == choice.chosen.iterations
    other = text.replace("# solver = { kind", 'solver = { kind = "greedy" } # {')
    assert plan(other, tmp_path).defences["linear"].solver.kind == "greedy"
    text = text.replace('"none", "fgsm", "noise"', '"none"')
    (_, result) = run(plan(text, tmp_path), tmp_path / "r.sqlite", workshop=workshop())
    assert result.findings == ()
    with pytest.raises(PlanError, match="chosen for other weights"):
        run(plan(text, tmp_path), tmp_path / "s.sqlite", workshop=workshop(seed=1))
    each = text.replace('"choice.json"', '{ tiny = "choice.json" }')
    assert plan(each, tmp_path).defences["linear"].on("tiny").settings() == used.settings()
    wrong = text.replace('"choice.json"', '{ tinny = "choice.json" }')
    with pytest.raises(PlanError, match="Did you mean 'tiny'"):
        plan(wrong, tmp_path)


def test_a_choice_on_test_images_is_marked_wherever_it_is_used(tmp_path: Path) -> None:
    small = Grid(iterations=(1,), lr=(0.1,), energy=(0.7,), eps=(30,), most_lost=0.0)
    made = tuned(tmp_path / "t.sqlite", grid=small, split="test", n=12)
    assert made.split == "test"
    replace(made, chosen=replace(made.chosen, feasible=False)).write(tmp_path / "choice.json")
    text = TEXT.replace(
        'embedding = { kind = "linear", energy = 0.8 }', 'tuned = "choice.json"'
    ).replace('"none", "fgsm", "noise"', '"none"')
    (_, result) = run(plan(text, tmp_path), tmp_path / "r.sqlite", workshop=workshop())
    assert {f.check for f in result.findings} == {"tuned on test images", "clean accuracy"}


def test_what_was_chosen_on_test_images_is_said_of_that_defence_alone(tmp_path: Path) -> None:
    small = Grid(iterations=(1,), lr=(0.1,), energy=(0.7,), eps=(30,), most_lost=0.0)
    made = tuned(tmp_path / "t.sqlite", grid=small, n=12)
    made = replace(made, chosen=replace(made.chosen, feasible=True))
    for name in ("heldout", "test"):
        replace(made, split=name).write(tmp_path / f"{name}.json")
    head, rest = TEXT.split("[attacks.fgsm]")
    defences = "".join(f'[defences.{n}]\ntuned = "{n}.json"\n' for n in ("heldout", "test"))
    text = head.split("[defences.linear]")[0] + defences + "[attacks.fgsm]" + rest
    text = text.replace('"none", "fgsm", "noise"', '"none"')
    for order in (text, text.replace("[[grid]]", '[[grid]]\ndefences = ["test", "heldout"]')):
        found = run(plan(order, tmp_path), tmp_path / "r.sqlite", workshop=workshop())
        with Store(tmp_path / "r.sqlite") as store:
            assert [r.findings for r in results(store, "tiny")] == [r.findings for r in found]
        checks = {r.defence: [f.check for f in r.findings] for r in found}
        assert checks["heldout"] == []
        assert checks["test"] == ["tuned on test images"]


def test_every_grid_has_a_name_of_its_own(tmp_path: Path) -> None:
    small = Grid(iterations=(1,), lr=(0.1,), energy=(0.7,), eps=(30,))
    first = tuned(tmp_path / "t.sqlite", grid=small, n=8)
    tuned(tmp_path / "t.sqlite", grid=replace(small, lr=(0.2,)), n=8)
    with Store(tmp_path / "t.sqlite") as store:
        assert len(plans(store)) == 2
        tuned(tmp_path / "t.sqlite", grid=replace(small, whole=False), n=8)
        assert len(plans(store)) == 2, "a grid in part is called as the whole"
    assert first.manifest["plan"]["grid"]["most_lost"] == 0.04


def test_a_second_tuning_adds_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = replace(GRID, lr=(0.1,), energy=(0.7,))
    first = tuned(tmp_path / "t.sqlite", grid=replace(small, iterations=(1, 2)))
    calls = []
    original = prefixes
    module = sys.modules["clcnn.evaluation.tune"]  # the name is the function's, too
    monkeypatch.setattr(module, "prefixes", lambda *a: calls.append(1) or original(*a))
    again = tuned(tmp_path / "t.sqlite", grid=replace(small, iterations=(1, 2)))
    assert not calls
    assert again.points == first.points
    more = tuned(tmp_path / "t.sqlite", grid=replace(small, iterations=(1, 2, 4)))
    assert calls
    assert more.points[:2] == first.points


def test_settings_that_clean_images_rule_out_meet_no_attack(choice: Choice, tmp_path: Path) -> None:
    lost = sorted(point.lost for point in choice.points)
    for most_lost in (lost[len(lost) // 2], lost[0] - 0.01):  # some may stay; none may
        whole = tuned(tmp_path / "w.sqlite", grid=replace(GRID, most_lost=most_lost))
        part = tuned(
            tmp_path / f"{most_lost}.sqlite", grid=replace(GRID, most_lost=most_lost, whole=False)
        )
        assert part.chosen == whole.chosen
        assert part.plain == whole.plain
        for own, full in zip(part.points, whole.points, strict=True):
            if own.feasible or own.lost == part.chosen.lost:
                assert own == full
            else:
                assert own.objective is None
                assert own.accuracies == {"none": full.clean}


def test_embeddings_without_an_energy_are_tuned_as_they_are(tmp_path: Path) -> None:
    settings = clcnn.AutoencoderEmbedding(epochs=1, progress=False).config()
    defence = replace(plan().defences["linear"], embedding=Kind("autoencoder", settings))
    small = Grid(iterations=(1,), lr=(0.02,), eps=(30,))
    made = tuned(tmp_path / "t.sqlite", defence=defence, grid=small, n=8)
    assert [p.energy for p in made.points] == [None]
    assert made.defence.embedding.settings["epochs"] == 1


def test_wrong_grids_are_refused(tmp_path: Path) -> None:
    for wrong in ({"iterations": ()}, {"lr": (math.nan,)}, {"lr": (math.inf,)}, {"eps": (0.0,)}):
        with pytest.raises(PlanError, match="expected finite numbers above 0"):
            Grid(**wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="shares in"):
        Grid(energy=(95.0,))
    with pytest.raises(PlanError, match="'energy' or 'singular'"):
        Grid(rule="rank")
    closed = replace(Defence(), solver=Kind("greedy", {"c": None}))
    with pytest.raises(PlanError, match="no iterations or learning rate"):
        tuned(tmp_path / "t.sqlite", defence=closed)


def test_batch_centring_projects_around_the_mean_of_the_batch() -> None:
    x = pictures(60, 1)[0]
    inner = clcnn.LinearEmbedding(rank=5).fit([x])
    centred = BatchCentred(inner)
    batch = pictures(7, 2)[0] + 0.3
    rows = batch.flatten(1)
    m, V = rows.mean(0), inner.V
    expected = m + (rows - m) @ V @ V.T
    assert torch.allclose(centred.project(batch).flatten(1), expected, atol=1e-5)
    energy = (expected - rows).square().sum(1)
    assert torch.allclose(centred.energy(batch), energy, atol=1e-4)
    alone = centred.energy(batch[:1])
    assert float(alone) == pytest.approx(0, abs=1e-8)  # on a batch of one it never controls
    assert float(inner.energy(batch[:1])) > 0.1
    with pytest.raises(FitError, match="expected a fitted linear embedding"):
        BatchCentred(clcnn.LinearEmbedding())


def test_batch_centring_changes_what_a_defence_answers(tmp_path: Path) -> None:
    text = TEXT.replace('"none", "fgsm", "noise"', '"none"') + 'defences = ["linear"]\n'
    (fitted,) = run(plan(text), tmp_path / "r.sqlite", workshop=workshop())
    text = text.replace('"head"]', '"head"]\ncentring = "batch"')
    (batch,) = run(plan(text), tmp_path / "r.sqlite", workshop=workshop())
    with Store(tmp_path / "r.sqlite") as store:
        costs = [
            [row[0] for row in store.read("SELECT cost FROM samples WHERE cell = ?", r.cell)]
            for r in (fitted, batch)
        ]
    assert len(costs[0]) == len(costs[1]) == 20
    assert costs[0] != costs[1]
