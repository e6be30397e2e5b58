"""A choice is held to its promise on more clean images than its grid had."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import network, pictures, plan, workshop

from clcnn.evaluation import Choice, Grid, PlanError, Store, Workshop, confirm, tune
from clcnn.evaluation.choice import best
from clcnn.evaluation.plan import Network

GRID = Grid(iterations=(1, 2, 4), lr=(0.02, 0.3), energy=(0.7,), eps=(30,), most_lost=1.0)
N, MORE = 12, 40


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Choice, Path]:
    path = tmp_path_factory.mktemp("confirm") / "t.sqlite"
    with Store(path) as store:
        defence = plan().defences["linear"]
        choice = tune(
            Network("tiny", "mnist"), store, defence=defence, grid=GRID, n=N, workshop=shop()
        )
    return choice, path


def shop() -> Workshop:
    """All clean images are held-out ones: there are no test images to look at."""
    images = {"train": pictures(80, 1), "heldout": pictures(MORE, 2)}
    return Workshop(networks={"tiny": network()}, images={"mnist": images})


def losses(choice: Choice) -> dict[tuple[float, int], float]:
    """What each combination loses on all images, solved one by one."""
    import clcnn

    x, y = pictures(MORE, 2)
    model = network()
    plain = (model(x).argmax(1) == y).double().mean().item()
    found = {}
    for point in choice.points:
        robust = clcnn.control(
            model,
            choice.defence.cuts,
            embedding=clcnn.LinearEmbedding(energy=point.energy),
            solver=clcnn.PMP(iterations=point.iterations, lr=point.lr),
        ).fit(pictures(80, 1)[0])
        right = (robust(x).argmax(1) == y).double().mean().item()
        found[point.lr, point.iterations] = plain - right
    return found


def confirmed(made: tuple[Choice, Path], most_lost: float) -> Choice:
    choice, path = made
    bounded = replace(choice, grid=replace(choice.grid, most_lost=most_lost))
    with Store(path) as store:
        return confirm(bounded, store, n=MORE, workshop=shop())


def test_the_first_candidate_that_keeps_the_clean_accuracy_stands(
    made: tuple[Choice, Path],
) -> None:
    choice, _ = made
    lost = losses(choice)
    first = best(choice.points, N)
    at_first = lost[first.lr, first.iterations]
    assert len({round(value, 6) for value in lost.values()}) > 1, "else there is nothing to choose"
    stood = confirmed(made, at_first)
    assert stood.chosen == first
    (only,) = stood.confirmed
    assert (only.kept, only.n, only.lost) == (True, MORE, pytest.approx(at_first))
    bound = min(lost.values())
    moved = confirmed(made, bound)
    left = list(choice.points)
    for tried in moved.confirmed[:-1]:
        expected = best(left, N)
        assert (tried.lr, tried.iterations) == (expected.lr, expected.iterations)
        assert tried.lost == pytest.approx(lost[tried.lr, tried.iterations])
        assert not tried.kept
        left = [p for p in left if p.lr != tried.lr or p.iterations < tried.iterations]
    last = moved.confirmed[-1]
    assert last.kept
    assert moved.chosen.feasible
    assert (moved.chosen.lr, moved.chosen.iterations) == (last.lr, last.iterations)
    assert moved.defence.solver.settings["lr"] == last.lr
    assert moved.defence.solver.settings["iterations"] == last.iterations


def test_where_all_fail_the_one_that_lost_least_is_taken_and_marked(
    made: tuple[Choice, Path],
) -> None:
    found = confirmed(made, -1.0)
    least = min(found.confirmed, key=lambda one: one.lost)
    assert not any(one.kept for one in found.confirmed)
    assert (found.chosen.lr, found.chosen.iterations) == (least.lr, least.iterations)
    assert not found.chosen.feasible
    assert not found.to_dict()["feasible"]


def test_a_choice_is_read_as_it_was_written(made: tuple[Choice, Path], tmp_path: Path) -> None:
    choice = confirmed(made, 0.0)
    choice.write(tmp_path / "choice.json")
    again = Choice.read(tmp_path / "choice.json")
    facts = json.loads((tmp_path / "choice.json").read_text())
    assert json.loads(json.dumps(again.to_dict())) == facts
    assert (again.grid, again.confirmed) == (choice.grid, choice.confirmed)
    assert again.defence.settings() == choice.defence.settings()
    for broken in (
        {k: v for k, v in facts.items() if k != "points"},
        {**facts, "grid": []},
        {**facts, "chosen": {"lr": 1}},
    ):
        (tmp_path / "broken.json").write_text(json.dumps(broken))
        with pytest.raises(PlanError, match="no whole choice of settings"):
            Choice.read(tmp_path / "broken.json")


def test_it_takes_more_images_than_the_grid_had(made: tuple[Choice, Path]) -> None:
    choice, path = made
    with Store(path) as store, pytest.raises(PlanError, match="made on 12; expected more"):
        confirm(choice, store, n=N, workshop=workshop())


def test_a_grid_without_a_feasible_point_has_nothing_to_confirm(
    made: tuple[Choice, Path],
) -> None:
    choice, path = made
    none = tuple(replace(point, feasible=False) for point in choice.points)
    with Store(path) as store:
        same = confirm(replace(choice, points=none), store, n=MORE, workshop=shop())
    assert same.confirmed == ()
    assert same.chosen == choice.chosen
