"""Plans: what they say, and what is said of those that say it wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny import TEXT, plan

from clcnn.evaluation import Defence, PlanError, read_plan
from clcnn.evaluation.defence import from_settings
from clcnn.evaluation.plan import Entry


def test_a_plan_is_the_product_of_its_grid_in_order() -> None:
    entries = plan().entries
    assert entries[:3] == (
        Entry("tiny", "none", "none", 0.0, "none", 20),
        Entry("tiny", "none", "fgsm", 20.0, "oblivious", 20),
        Entry("tiny", "none", "fgsm", 40.0, "oblivious", 20),
    )
    assert len(entries) == 2 * (1 + 2 * 2)
    assert {entry.defence for entry in entries} == {"none", "linear"}


def test_grids_follow_each_other_and_no_cell_is_there_twice() -> None:
    more = '[[grid]]\nattacks = ["fgsm"]\neps = 20\nthreats = ["oblivious", "adaptive"]\nn = 20\n'
    entries = plan(TEXT + more).entries
    assert len(entries) == len(set(entries)) == 12
    assert [e.threat for e in entries[-2:]] == ["adaptive"] * 2


def test_a_defence_has_every_default_written_out_and_survives_json() -> None:
    linear = plan().defences["linear"]
    settings = json.loads(json.dumps(linear.settings()))
    assert settings["solver"]["beta1"] == 0.9
    assert settings["embedding"]["energy"] == 0.8
    assert from_settings(settings, "file") == linear


def test_paper_literal_is_nothing_beside_a_choice() -> None:
    text = TEXT + '[defences.literal]\npaper_literal = true\ntuned = "choice.json"\n'
    with pytest.raises(PlanError, match="found tuned beside it; expected one of them"):
        plan(text)
    with pytest.raises(PlanError, match="at most 4294967295"):
        plan(TEXT.replace("seed = 3", "seed = 5000000000"))


def test_paper_literal_switches_on_the_authors_ways_and_each_alone() -> None:
    literal = plan(TEXT + "[defences.literal]\npaper_literal = true\n").defences["literal"]
    assert literal.embedding.settings["singular"] == 0.99
    assert (literal.weights, literal.centring) == ("mean", "batch")
    text = TEXT + '[defences.literal]\npaper_literal = true\ncentring = "fitted"\n'
    other = plan(text).defences["literal"]
    assert (other.weights, other.centring) == ("mean", "fitted")
    assert (Defence().weights, Defence().centring) == ("sum", "fitted")


def test_quick_is_smaller_on_the_shipped_sample_under_another_name() -> None:
    quick = plan(TEXT + "[quick]\nn = 5\nfit = 30\n").quick()
    assert quick.name == "tiny-quick"
    assert quick.sample
    assert {entry.n for entry in quick.entries} == {5}
    assert quick.chunk == 5
    assert quick.defences["linear"].fit.images == 30


def test_stealth_is_left_out_where_the_attacker_knows_of_no_control() -> None:
    text = TEXT + '[attacks.hidden]\nkind = "stealth"\n[[grid]]\nattacks = ["hidden"]\neps = 8\n'
    assert not [e for e in plan(text).entries if e.attack == "hidden"]
    both = plan(text + 'threats = ["oblivious", "adaptive"]\n').entries
    assert {e.threat for e in both if e.attack == "hidden"} == {"adaptive"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seed = 3", "sed = 3", ["plan.toml", "'sed'", "Did you mean 'seed'?"]),
        ('kind = "fgsm"', 'kind = "fgms"', ["[attacks.fgsm]", "kind", "Did you mean 'fgsm'?"]),
        ("iterations = 3", "iteration = 3", ["[defences.linear.solver]", "'iterations'"]),
        ("iterations = 3", "iterations = -3", ["[defences.linear.solver]", "refused"]),
        ("energy = 0.8", "energy = 8", ["[defences.linear.embedding]", "share in (0, 1]"]),
        ('kind = "pmp"', 'kind = "sgd"', ["greedy", "pmp", "riccati"]),
        ("images = 60", 'images = "60"', ["[defences.linear.fit]", "images", "a whole number"]),
        ("images = 60", "images = 1", ["[defences.linear.fit]", "images", "at least 2"]),
        ("n = 20", "n = true", ["n", "True (a truth value)", "a whole number"]),
        ("n = 20", "n = 0", ["found 0", "at least 1"]),
        ("eps = [20, 40]", "eps = [0.0314]", ["[grid 1]", "eps", "8 for 8/255"]),
        ("eps = [20, 40]", "eps = [nan]", ["[grid 1]", "eps", "nan", "from 0.1"]),
        ("eps = [20, 40]", "eps = [inf]", ["[grid 1]", "eps", "inf", "from 0.1"]),
        ("eps = [20, 40]", "eps = [1e300]", ["[grid 1]", "eps", "1e+300", "from 0.1"]),
        ("eps = [20, 40]", "eps = [20, 300]", ["[grid 1]", "eps", "300 for attack", "at most 255"]),
        ("eps = [20, 40]", "eps = [20]\ndefences = []", ["[grid 1]", "defences", "an empty list"]),
        ("eps = [20, 40]", "eps = [20]\nthreats = []", ["[grid 1]", "threats", "an empty list"]),
        ('["none", "fgsm", "noise"]', "[]", ["[grid 1]", "attacks", "an empty list"]),
        ("fit = {", "weights = [nan, 1.0]\nfit = {", ["[defences.linear], weights", "above 0"]),
        ("fit = {", "weights = -1\nfit = {", ["[defences.linear], weights", "above 0"]),
        ("fit = {", "weights = [1]\nfit = {", ["[defences.linear], weights", "each of the 3 cuts"]),
        ("fit = {", "regularization = nan\nfit = {", ["regularization", "finite and at least 0"]),
        ("fit = {", "regularization = -1\nfit = {", ["regularization", "finite and at least 0"]),
        ("lr = 0.05", "lr = inf", ["[defences.linear.solver], lr", "a finite number"]),
        ("[defences.linear]", "[defences.none]\nx = 1\n[defences.linear]", ["'x'", "by itself"]),
        ("eps = [20, 40]", "", ["eps", "found nothing"]),
        ('"none", "fgsm"', '"none", "fgms"', ["[grid 1]", "attacks", "Did you mean 'fgsm'?"]),
        ('data = "mnist"', "data = 3", ["[networks.tiny]", "data", "a string"]),
        ('weights = "tiny"', "", ["[networks.tiny]", "weights", "found nothing"]),
        ("[[grid]]", "[grid]", ["grid", "[[grid]]"]),
        ("[networks.tiny]", "[network.tiny]", ["networks", "found none"]),
        ('name = "tiny"', "", ["name", "found nothing"]),
        ('name = "tiny"', 'name = " "', ["name", "found ' '", "a name for the plan"]),
        ("[attacks.noise]", "[attacks.none]", ["[attacks.none]", "taken"]),
        ('kind = "noise"', 'kind = "noise"\nbatch_size = 3', ["'batch_size'"]),
        ('kind = "noise"', 'kind = "manifold"\nembedding_of = "linaer"', ["'linear'?"]),
        ("fit = {", 'accelerate = "half"\nfit = {', ["accelerate", "'half'", '"bfloat16"']),
        ('kind = "noise"', 'kind = "worst"', ["[attacks.noise]", "of", "found nothing"]),
        ('kind = "noise"', 'kind = "worst"\nof = ["noise"]', ["expected one of fgsm"]),
        ('kind = "noise"', 'kind = "corruption"', ["[attacks.noise]", "of", "found nothing"]),
        ('kind = "noise"', 'kind = "corruption"\nof = "forst"', ["Did you mean 'frost'?"]),
        ('kind = "noise"', 'kind = "corruption"\nof = "fog"', ["[grid 1]", "eps", "from 1 to 5"]),
        ('kind = "noise"', 'kind = "corruption"\nof = "fog"\nnorm = "l2"', ["the key 'norm'"]),
    ],
)
def test_an_error_names_file_table_and_key(old: str, new: str, words: list[str]) -> None:
    assert old in TEXT
    with pytest.raises(PlanError) as error:
        plan(TEXT.replace(old, new, 1))
    assert "plan.toml" in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_files_that_are_no_plans(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="there is no file"):
        read_plan(tmp_path / "nothing.toml")
    (tmp_path / "bad.toml").write_text("name = ")
    with pytest.raises(PlanError, match="is no TOML file"):
        read_plan(tmp_path / "bad.toml")
    (tmp_path / "plan.toml").write_text(TEXT)
    assert read_plan(tmp_path / "plan.toml").entries == plan().entries


def test_a_tuned_defence_needs_a_choice(tmp_path: Path) -> None:
    text = TEXT + '[defences.tuned]\ntuned = "choice.json"\n'
    with pytest.raises(PlanError, match="there is no file"):
        plan(text, tmp_path)
    (tmp_path / "choice.json").write_text("[]")
    with pytest.raises(PlanError, match="`clcnn tune` wrote"):
        plan(text, tmp_path)
    (tmp_path / "choice.json").write_text("{}")
    with pytest.raises(PlanError, match="not a choice"):
        plan(text, tmp_path)
