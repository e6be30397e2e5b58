"""A list of stages as dynamics."""

from __future__ import annotations

import pytest
import torch
from networks import build, inputs
from torch import nn

import clcnn
from clcnn import CutError, StagedDynamics


def test_stages_and_hooks_give_the_same_controls() -> None:
    model = build("mlp")
    x = inputs(model, 30)
    staged = StagedDynamics([model.stem, model.hidden, model.head], names=model.cuts)
    kwargs = {"embedding": clcnn.LinearEmbedding(rank=2), "regularization": 0.1}
    by_stages = clcnn.control(staged, **kwargs).fit(x).solve(x[:5])
    by_hooks = clcnn.control(model, model.cuts, **kwargs).fit(x).solve(x[:5])
    for a, b in zip(by_stages.u, by_hooks.u, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    torch.testing.assert_close(by_stages.logits, by_hooks.logits)


def test_a_sequential_names_its_cuts() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).eval()
    dynamics = StagedDynamics(model)
    assert dynamics.cuts == ("input", "1", "2")
    x = torch.rand(2, 3)
    assert torch.equal(dynamics.rollout(x, lambda t, s: s), model(x))
    assert dynamics.inspect(x) == ((3,), (4,), (4,))


def test_callables_may_be_stages_and_are_moved_and_checked() -> None:
    stem = nn.Linear(3, 4).eval()
    dynamics = StagedDynamics([stem, torch.tanh, nn.Linear(4, 2).eval()])
    assert len(list(dynamics.model.parameters())) == 4
    x = torch.rand(2, 3)
    assert torch.equal(dynamics.model(x), dynamics.rollout(x, lambda t, s: s))
    stem.train()
    with pytest.raises(CutError, match="train mode"):
        dynamics.inspect(x)


def test_bad_lists_are_refused() -> None:
    with pytest.raises(CutError, match="no stage"):
        StagedDynamics([])
    with pytest.raises(CutError, match="names a, b for 1 stages"):
        StagedDynamics([torch.tanh], names=["a", "b"])
    with pytest.raises(CutError, match="names a, a for 2 stages; expected a distinct"):
        StagedDynamics([torch.tanh, torch.tanh], names=["a", "a"])
    with pytest.raises(CutError, match="a stage is a int"):
        StagedDynamics([3])
    with pytest.raises(CutError, match="returned a tuple of 2"):
        StagedDynamics([lambda x: (x, x)]).inspect(torch.rand(2, 3))
    with pytest.raises(CutError, match="names its own cuts"):
        clcnn.control(StagedDynamics([torch.tanh]), at=["elsewhere"])
