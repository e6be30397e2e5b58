"""Products in bfloat16 while a solver iterates: near the others, and never in the answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import clcnn
from clcnn import AutoencoderEmbedding, LinearEmbedding
from clcnn.embeddings.base import Embedding
from clcnn.embeddings.rounded import multiplies_bfloat16


def flat_states() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(400, 6, generator=generator) @ torch.randn(6, 40, generator=generator)


def image_states() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(120, 3, 1, 1, generator=generator).expand(-1, -1, 8, 8).contiguous()


CASES = {
    "linear": (lambda: LinearEmbedding(rank=4), flat_states),
    "dense": (lambda: AutoencoderEmbedding(epochs=2, progress=False), flat_states),
    "convolutional": (lambda: AutoencoderEmbedding(epochs=2, progress=False), image_states),
}


@pytest.mark.parametrize("case", CASES)
def test_residual_energy_and_gradient_are_near_those_of_the_original(case: str) -> None:
    make, states = CASES[case]
    x = states()
    E = make().fit([x])
    quick = E.in_bfloat16()
    z = (x[:16] + 0.3 * torch.randn(x[:16].shape)).requires_grad_()
    scale = float(x.std())
    assert quick.residual(z).dtype == torch.float32
    gap = (quick.residual(z) - E.residual(z)).detach().abs().max()
    assert 0 < float(gap) < 0.05 * scale  # bfloat16 has 8 bits: it rounds, and not by much
    torch.testing.assert_close(quick.energy(z), E.energy(z), rtol=0.05, atol=1e-3)
    exact, rounded = (torch.autograd.grad(e.energy(z).sum(), z)[0].flatten() for e in (E, quick))
    assert torch.cosine_similarity(exact, rounded, dim=0) > 0.99


@pytest.mark.parametrize("case", CASES)
def test_the_original_stays_as_it_was(case: str) -> None:
    make, states = CASES[case]
    E = make().fit([states()])
    before = {name: value.clone() for name, value in E.state_dict().items()}
    E.in_bfloat16()
    assert all(torch.equal(value, before[name]) for name, value in E.state_dict().items())
    assert {value.dtype for value in E.state_dict().values()} == {v.dtype for v in before.values()}


def test_what_has_no_such_form_is_itself() -> None:
    E: Embedding = clcnn.FrequencyEmbedding(energy=0.9).fit([image_states()])
    assert E.in_bfloat16() is E


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(40, 30), nn.Tanh(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 3)]
    return nn.Sequential(*layers).eval()


def controlled() -> clcnn.ControlledModule:
    return clcnn.control(
        network(),
        ["input", "2", "4"],
        embedding=LinearEmbedding(rank=5),
        solver=clcnn.PMP(iterations=8, lr=0.05),
    ).fit(flat_states())


def test_j_of_the_answer_is_that_of_the_exact_embeddings() -> None:
    robust = controlled()
    fast = robust.accelerate(bfloat16=True)
    x = flat_states()[:32] + 0.5 * torch.randn(32, 40)
    found = fast.solve(x)
    u = list(found.u)
    total = torch.zeros(32)
    assert robust.dynamics is not None

    def steer(t: int, state: Tensor) -> Tensor:
        z = state + u[t]
        total.add_(robust.embeddings[t].energy(z))  # type: ignore[operator]
        return z

    logits = robust.dynamics.rollout(x, steer)
    torch.testing.assert_close(found.J, total, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found.logits, logits)


def test_the_controls_do_nearly_as_well() -> None:
    robust = controlled()
    x = flat_states()[:64] + 0.5 * torch.randn(64, 40)
    exact, fast = robust.solve(x), robust.accelerate(bfloat16=True).solve(x)
    assert not torch.equal(exact.u[0], fast.u[0])
    assert float((fast.J / exact.J - 1).abs().max()) < 0.05


def test_each_sample_is_solved_by_itself() -> None:
    fast = controlled().accelerate(bfloat16=True)
    x = flat_states()[:8] + 0.5 * torch.randn(8, 40)
    alone = torch.cat([fast(x[i : i + 1]) for i in range(8)])
    torch.testing.assert_close(fast(x), alone, rtol=0.02, atol=0.02)


def test_copies_follow_their_originals() -> None:
    robust = controlled()
    fast = robust.accelerate(bfloat16=True)
    x = flat_states()[:4]
    before = fast.solve(x).u[0]
    with torch.no_grad():
        robust.embeddings[0].V.zero_()  # type: ignore[operator, union-attr]
    assert not torch.equal(before, fast.solve(x).u[0])
    fast.double()
    assert fast.solve(x.double()).u[0].dtype == torch.float64


def test_unrolled_gradients_go_through_the_rounded_products() -> None:
    fast = controlled().accelerate(bfloat16=True).configure(grad="unroll")
    x = flat_states()[:4].requires_grad_()
    (g,) = torch.autograd.grad(fast(x).sum(), x)
    exact = controlled().configure(grad="unroll")
    (expected,) = torch.autograd.grad(exact(x).sum(), x)
    assert torch.cosine_similarity(g.flatten(), expected.flatten(), dim=0) > 0.9


def test_a_processor_says_whether_it_has_the_instructions() -> None:
    assert multiplies_bfloat16(torch.device("cpu")) in (True, False)
    assert not multiplies_bfloat16(torch.device("meta"))
