"""The fitting benchmark: what it says of each method, against NumPy and the kernel."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from clcnn.benchmarks import fitting
from clcnn.benchmarks.fitting import MATCHED, METHODS, UNIT, Basis, Job, measure
from clcnn.errors import DataError

linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark")


@pytest.fixture(scope="module")
def states():
    return fitting.synthetic(500, 220, seed=1).split([400, 100])


@pytest.fixture(scope="module")
def found(states):
    return measure(*states, ranks=(4, 9), rounds=2, memory=False)


def rows(found, rank):
    return {row["method"]: row for row in found["rows"] if row["rank"] == rank}


def test_every_method_at_every_rank_as_json(found):
    assert json.loads(json.dumps(found)) == found
    assert (found["n"], found["d"], found["n_heldout"], found["made_up"]) == (400, 220, 100, False)
    for rank in (4, 9):
        assert set(rows(found, rank)) == set(METHODS)
        unit = rows(found, rank)[UNIT]
        assert unit["ratio"] == unit["ratio_low"] == unit["cpu_ratio"] == 1
        assert all(row["seconds"] > 0 for row in rows(found, rank).values())


@pytest.mark.parametrize("rank", [4, 9])
def test_accuracy_against_an_svd(found, states, rank):
    x, rest = (part.double().numpy() for part in states)
    mean = x.mean(0)
    _, s, Vt = np.linalg.svd(x - mean, full_matrices=False)
    best = (s[:rank] ** 2).sum() / (s**2).sum()
    outside = ((rest - mean) @ Vt[:rank].T) ** 2
    measured = rows(found, rank)
    assert measured["clcnn exact"]["kept"] == pytest.approx(best, abs=1e-6)
    heldout = outside.sum() / ((rest - mean) ** 2).sum()
    assert measured["clcnn exact"]["kept_heldout"] == pytest.approx(heldout, abs=1e-6)
    assert measured["clcnn exact"]["subspace"] == pytest.approx(0, abs=1e-6)
    for row in measured.values():
        assert row["kept"] <= best + 1e-6
    assert measured[MATCHED]["kept"] >= measured[UNIT]["kept"] - 2e-5
    assert measured["clcnn randomised"]["passes"] == 4
    assert measured["clcnn exact"]["passes"] is None


def test_matching_takes_the_fewest_passes(states):
    x = states[0]
    passes = fitting._matched(x, 9, seed=0)
    target = fitting.kept(fitting.fit(Job(UNIT, 9, 0), x), x)
    fewer = fitting.kept(fitting.fit(Job(MATCHED, 9, 0, passes - 1), x), x)
    assert passes > 2
    assert fewer < target - 1e-5


def test_a_share_of_the_variance():
    V = torch.eye(3)[:, :1]
    x = torch.tensor([[3.0, 0.0, 4.0], [-3.0, 0.0, -4.0]])
    assert fitting.kept(Basis(V, torch.zeros(3)), x) == pytest.approx(9 / 25)


def test_a_distance_of_subspaces():
    angle = 0.3
    a = torch.eye(4)[:, :2]
    b = torch.tensor([[1.0, 0, 0, 0], [0, np.cos(angle), np.sin(angle), 0]]).T.float()
    assert fitting.subspace_distance(a, b) == pytest.approx(np.sin(angle) ** 2 / 2, rel=1e-5)
    assert fitting.subspace_distance(a, a.flip(1)) == 0


@linux
def test_the_peak_sees_torch_and_numpy():
    """In a young process, as `peak` asks for: one that has given memory back would reuse it."""
    code = """
import numpy as np, torch
from clcnn.benchmarks.memory import peak
size = 2**26
for allocate in (lambda: torch.ones(size // 4), lambda: np.ones(size // 8)):
    assert 0.97 * size <= peak(allocate) < 1.2 * size  # the kernel counts in lots of pages
assert peak(lambda: None) < size / 16
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@linux
def test_the_peak_of_a_fit_in_its_own_process(tmp_path):
    x = fitting.synthetic(3000, 4096, seed=0)  # 49 MB
    np.save(tmp_path / "states.npy", x.numpy())
    whole = fitting._peak_in_a_process(Job(UNIT, 8, 0), tmp_path / "states.npy")
    ours = fitting._peak_in_a_process(Job("clcnn randomised", 8, 0), tmp_path / "states.npy")
    # scikit-learn centres a copy of the states; a stream needs the basis and a block of rows.
    assert whole > 45e6
    assert ours < 25e6


def test_what_is_asked_wrongly():
    x = torch.zeros(5, 3)
    with pytest.raises(DataError, match="expected both, or neither"):
        measure(x)
    with pytest.raises(DataError, match=r"ranks=\(4,\); expected them within 1 and 3"):
        measure(x, x, ranks=(4,))
    with pytest.raises(DataError, match="rounds=0"):
        measure(x, x, ranks=(1,), rounds=0)


def test_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(DataError, match=r"scikit-learn.*pip install"):
        measure(quick=True)
