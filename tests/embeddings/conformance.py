"""What every embedding must do: a suite to run on your own, as test_conformance.py does.

A `Case` says how to make an unfitted embedding and its clean states; each function in `CHECKS`
takes a case and fails with an AssertionError where the contract of `clcnn.embeddings.base` is
broken.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from clcnn.embeddings import Embedding


@dataclass(frozen=True)
class Case:
    """An embedding under test: how it is made, and the shape and number of its states."""

    name: str
    make: Callable[[], Embedding]
    shape: tuple[int, ...]
    n: int = 60

    def states(self, dtype: torch.dtype = torch.float64) -> list[Tensor]:
        """Batches of clean states: a curved surface with two coordinates, and a little noise."""
        generator = torch.Generator().manual_seed(7)
        d = prod(self.shape)
        z = torch.randn(self.n, 2, generator=generator, dtype=torch.float64)
        features = torch.cat([z, z.square(), z.sin()], 1)
        mix = torch.randn(6, d, generator=generator, dtype=torch.float64)
        noise = 0.01 * torch.randn(self.n, d, generator=generator, dtype=torch.float64)
        x = (features @ mix + noise + 0.5).reshape(self.n, *self.shape)
        return list(x.to(dtype).split(17))

    def fit(self, dtype: torch.dtype = torch.float64) -> Embedding:
        """A fitted embedding of the caller's own."""
        return copy.deepcopy(_fitted(self, dtype))

    def some(self, dtype: torch.dtype = torch.float64) -> Tensor:
        """A few states off the manifold, all in general position."""
        generator = torch.Generator().manual_seed(11)
        clean = self.states(dtype)[0][:5]
        return clean + 0.3 * torch.randn(clean.shape, generator=generator, dtype=dtype)


@cache
def _fitted(case: Case, dtype: torch.dtype) -> Embedding:
    return case.make().fit(case.states(dtype))


def check_fit_returns_self(case: Case) -> None:
    embedding = case.make()
    assert embedding.fit(case.states()) is embedding


def check_use_before_fit_raises(case: Case) -> None:
    for method in ("project", "residual", "energy"):
        with pytest.raises(Exception):  # noqa: B017, PT011 (which one is the author's choice)
            getattr(case.make(), method)(case.some())


def check_wrong_shape_raises(case: Case) -> None:
    wrong = torch.zeros(5, *case.shape[:-1], case.shape[-1] + 3, dtype=torch.float64)
    for method in ("project", "residual", "energy"):
        with pytest.raises(Exception):  # noqa: B017, PT011
            getattr(case.fit(), method)(wrong)


def check_shape_and_dtype_are_kept(case: Case) -> None:
    for dtype in (torch.float32, torch.float64):
        embedding, x = case.fit(dtype), case.some(dtype)
        for batch in (x, x[:1], x[:0]):
            for value in (embedding(batch), embedding.project(batch), embedding.residual(batch)):
                assert (value.shape, value.dtype) == (batch.shape, dtype)
            assert embedding.energy(batch).shape == (len(batch),)
            assert embedding.energy(batch).dtype == dtype


def check_states_near_the_clean_ones_cost_less(case: Case) -> None:
    embedding, clean = case.fit(), torch.cat(case.states())
    generator = torch.Generator().manual_seed(3)
    noise = clean.std() * torch.randn(clean.shape, generator=generator, dtype=clean.dtype)
    assert embedding.energy(clean).mean() < embedding.energy(clean + noise).mean()


def check_each_sample_by_itself(case: Case) -> None:
    embedding, x = case.fit(), case.some()
    for method in ("project", "residual", "energy"):
        function = getattr(embedding, method)
        alone = torch.cat([function(x[i : i + 1]) for i in range(len(x))])
        torch.testing.assert_close(function(x), alone, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(function(x.flip(0)), alone.flip(0), rtol=1e-10, atol=1e-10)


def check_memory_format_does_not_matter(case: Case) -> None:
    embedding, x = case.fit(), case.some()
    if x.ndim == 4:
        other = x.to(memory_format=torch.channels_last)
    else:
        other = x.repeat_interleave(2, 0)[::2]
    assert other.stride() != x.stride()
    other, x = other.requires_grad_(), x.requires_grad_()
    torch.testing.assert_close(embedding.project(other), embedding.project(x))
    (a,) = torch.autograd.grad(embedding.energy(other).sum(), other)
    (b,) = torch.autograd.grad(embedding.energy(x).sum(), x)
    torch.testing.assert_close(a, b)


def check_residual_and_energy_follow_from_project(case: Case) -> None:
    embedding, x = case.fit(), case.some()
    residual = embedding.project(x) - x
    torch.testing.assert_close(embedding.residual(x), residual, rtol=1e-9, atol=1e-9)
    energy = residual.flatten(1).square().sum(1)
    torch.testing.assert_close(embedding.energy(x), energy, rtol=1e-9, atol=1e-9)


def check_gradients_by_finite_differences(case: Case) -> None:
    embedding, x = case.fit(), case.some()[:2].requires_grad_()
    assert torch.autograd.gradcheck(embedding.project, x, fast_mode=True)
    assert torch.autograd.gradcheck(embedding.energy, x, fast_mode=True)
    assert torch.autograd.gradgradcheck(embedding.energy, x, fast_mode=True)


def check_no_gradient_for_what_was_learned(case: Case) -> None:
    embedding = case.fit()
    embedding.energy(case.some().requires_grad_()).sum().backward()
    assert all(parameter.grad is None for parameter in embedding.parameters())


def check_fit_is_deterministic(case: Case) -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    again = case.make().fit(case.states())
    assert torch.equal(again.project(case.some()), case.fit().project(case.some()))


def check_global_random_state_is_untouched(case: Case) -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), np.random.random(), torch.rand(()).item()

    def seed() -> None:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)

    seed()
    expected = draw()
    seed()
    case.make().fit(case.states()).energy(case.some())
    assert draw() == expected


def check_states_are_not_changed(case: Case) -> None:
    states, x = case.states(), case.some()
    before, x_before = [batch.clone() for batch in states], x.clone()
    embedding = case.make().fit(states)
    embedding.project(x), embedding.residual(x), embedding.energy(x)
    assert all(map(torch.equal, states, before))
    assert torch.equal(x, x_before)


def check_batches_may_be_overwritten(case: Case) -> None:
    states = case.states()[:-1]  # all of one size

    class OneBuffer:
        def __iter__(self):
            buffer = torch.empty_like(states[0])
            for batch in states:
                yield buffer.copy_(batch)

    torch.testing.assert_close(
        case.make().fit(OneBuffer()).project(case.some()),
        case.make().fit(states).project(case.some()),
    )


def check_config_and_tensors_restore_it(case: Case) -> None:
    for dtype in (torch.float32, torch.float64):
        embedding, x = case.fit(dtype), case.some(dtype)
        config = json.loads(json.dumps(embedding.config()))
        tensors = load(save({k: v.contiguous() for k, v in embedding.state_dict().items()}))
        twin = type(embedding)(**config).restore(tensors, case.shape)
        assert torch.equal(twin.project(x), embedding.project(x))
        assert torch.equal(twin.energy(x), embedding.energy(x))
        assert json.loads(json.dumps(twin.config())) == config
        assert all(not parameter.requires_grad for parameter in twin.parameters())
        twin.restore(tensors, case.shape)  # a second time too
        assert torch.equal(twin.project(x), embedding.project(x))


def check_no_grad_and_inference_mode(case: Case) -> None:
    x = case.some()
    expected = case.fit().project(x)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            states = [batch + 0 for batch in case.states()]
            with torch.inference_mode(False):  # as `clcnn.control(...).fit` does
                embedding = case.make().fit(states)
            assert torch.equal(embedding.project(x), expected)
            assert torch.equal(embedding.energy(x), case.fit().energy(x))
            assert torch.equal(embedding.residual(x), case.fit().residual(x))
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(embedding.energy(leaf).sum(), leaf)
        assert gradient.abs().sum() > 0


def check_dtype_can_be_moved(case: Case) -> None:
    embedding, x = case.fit(torch.float32), case.some(torch.float32)
    expected = embedding.project(x)
    torch.testing.assert_close(
        embedding.to(torch.float64).project(x.double()).float(), expected, rtol=1e-4, atol=1e-4
    )


def check_train_mode_changes_nothing(case: Case) -> None:
    embedding, x = case.fit(), case.some()
    expected = embedding.project(x)
    nn.Sequential(embedding).train()
    assert torch.equal(embedding.project(x), expected)
    assert torch.equal(embedding.project(x), expected)  # and no running statistic moved


def check_prototype_stays_unfitted(case: Case) -> None:
    prototype = case.make()
    fresh = prototype.for_cut(0, 3)
    assert fresh is not prototype
    assert fresh.fit(case.states()).project(case.some()).shape == (5, *case.shape)
    assert not prototype.state_dict()


CHECKS = [check for name, check in sorted(globals().items()) if name.startswith("check_")]
