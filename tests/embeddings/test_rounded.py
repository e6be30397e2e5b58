"""Products in bfloat16 while a solver iterates: near the others, and never in the answer."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor, nn

import clcnn
from clcnn import AutoencoderEmbedding, LinearEmbedding
from clcnn.dynamics.hooked import HookedDynamics
from clcnn.embeddings.base import Embedding
from clcnn.embeddings.rounded import multiplies_bfloat16
from clcnn.evaluation.centring import BatchCentred
from clcnn.evaluation.prefixes import prefixes


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
    assert quick.residual(z).dtype == quick.project(z).dtype == torch.float32
    torch.testing.assert_close(quick.project(z) - z, quick.residual(z), rtol=0.05, atol=0.02)
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


def test_what_wraps_one_rounds_with_it() -> None:
    E = LinearEmbedding(rank=4).fit([flat_states()])
    x = flat_states()[:8] + 0.3
    wrapped = BatchCentred(E)
    assert not torch.equal(wrapped.in_bfloat16().energy(x), wrapped.energy(x))
    torch.testing.assert_close(
        wrapped.in_bfloat16().energy(x), wrapped.energy(x), rtol=0.05, atol=1e-2
    )


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


def test_logits_are_those_of_the_networks_own_modules() -> None:
    robust = controlled()
    fast = robust.accelerate(bfloat16=True)
    x = flat_states()[:32] + 0.5 * torch.randn(32, 40)
    found = fast.solve(x)
    assert robust.dynamics is not None
    logits = robust.dynamics.rollout(x, lambda t, state: state + found.u[t])
    torch.testing.assert_close(found.logits, logits)


def test_all_iterates_are_compared_by_one_j() -> None:
    robust = controlled()
    fast = robust.accelerate(bfloat16=True)
    x = flat_states()[:64] + 0.5 * torch.randn(64, 40)
    found = fast.solve(x)
    without = fast.configure(solver=clcnn.PMP(iterations=0)).solve(x)
    assert bool((found.J <= without.J).all())
    torch.testing.assert_close(found.score, without.J)
    for count, prefix in prefixes(fast, x, (3, 8)).items():
        whole = fast.configure(solver=clcnn.PMP(iterations=count, lr=0.05)).solve(x)
        torch.testing.assert_close(prefix.solution.J, whole.J)
        torch.testing.assert_close(prefix.solution.logits, whole.logits)


def test_the_network_iterates_in_bfloat16_and_answers_in_its_own_dtype() -> None:
    robust = controlled()
    x = flat_states()[:16] + 0.5 * torch.randn(16, 40)
    cases: list[tuple[bool | Literal["embeddings"], torch.dtype]]
    cases = [(True, torch.bfloat16), ("embeddings", torch.float32)]
    for how, expected in cases:
        other = robust.accelerate(bfloat16=how)
        seen: set[torch.dtype] = set()
        assert isinstance(other.dynamics, HookedDynamics)
        assert other.dynamics.stand_in is not None
        module = other.dynamics.stand_in.module()
        module[0].register_forward_hook(lambda m, args, out, seen=seen: seen.add(out.dtype))  # type: ignore[operator]
        found = other.solve(x)
        assert {u.dtype for u in found.u} == {torch.float32}
        assert found.J.dtype == found.logits.dtype == torch.float32
        assert seen == {expected}
    assert {p.dtype for p in robust.model.parameters()} == {torch.float32}


def test_a_cut_after_the_input_is_reached_in_bfloat16_too() -> None:
    robust = clcnn.control(
        network(), ["2", "4"], embedding=LinearEmbedding(rank=5), solver=clcnn.PMP(iterations=3)
    ).fit(flat_states())
    x = flat_states()[:16] + 0.5 * torch.randn(16, 40)
    exact, fast = robust.solve(x), robust.accelerate(bfloat16=True).solve(x)
    torch.testing.assert_close(fast.J, exact.J, rtol=0.05, atol=0.01)


class KeepsFloat32(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(30)


class LosesDigits(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + 1e4) - 1e4


@pytest.mark.parametrize(
    ("part", "words"), [(KeepsFloat32, "does not run in bfloat16"), (LosesDigits, "changes by")]
)
def test_a_network_that_bfloat16_breaks_is_refused(part: type[nn.Module], words: str) -> None:
    layers = network()
    layers.insert(1, part().eval())  # type: ignore[operator]
    robust = clcnn.control(layers, ["input", "2"], embedding=LinearEmbedding(rank=5))
    robust = robust.fit(flat_states())
    with pytest.raises(clcnn.CutError, match=f"(?s){words}.*bfloat16='embeddings'"):
        robust.accelerate(bfloat16=True)
    robust.accelerate(bfloat16="embeddings").solve(flat_states()[:2])


@pytest.mark.parametrize("word", ["half", 1])
def test_another_word_for_bfloat16_is_refused(word: object) -> None:
    with pytest.raises(clcnn.SolveError, match=f"found bfloat16={word!r}"):
        controlled().accelerate(bfloat16=word)  # type: ignore[arg-type]


def test_a_copy_that_cannot_be_made_is_never_used() -> None:
    robust = controlled()
    fast, x = robust.accelerate(bfloat16=True), flat_states()[:4]
    with torch.no_grad():
        robust.model[0].weight.mul_(1e20).mul_(1e20)  # type: ignore[operator, union-attr]
    for _ in range(2):
        with pytest.raises(clcnn.CutError, match="chang"):
            fast.solve(x)


def test_weights_that_are_buffers_and_networks_that_choose_their_dtype() -> None:
    class Own(nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.register_buffer("weight", torch.eye(40, 40, dtype=dtype))
            self.next = nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.next(x.to(self.weight.dtype) @ self.weight)  # type: ignore[no-any-return]

    x = flat_states()[:8] + 0.5 * torch.randn(8, 40)
    for dtype in (torch.float32, torch.float64):
        robust = clcnn.control(
            Own(dtype).eval(),
            ["input", "next"],
            embedding=LinearEmbedding(rank=5),
            solver=clcnn.PMP(iterations=3),
        ).fit(flat_states())
        found = robust.accelerate(bfloat16=True).solve(x)
        assert [u.dtype for u in found.u] == [torch.float32, dtype]
        torch.testing.assert_close(found.J, robust.solve(x).J, rtol=0.05, atol=0.05)


def test_what_needs_exact_states_refuses_rounded_ones() -> None:
    fast = controlled().accelerate(bfloat16=True)
    with pytest.raises(clcnn.FitError, match="Fit first, then accelerate"):
        fast.fit(flat_states())
    with pytest.raises(clcnn.SolveError, match="Riccati expects exact ones"):
        fast.configure(solver=clcnn.Riccati()).solve(flat_states()[:2])


def test_switching_bfloat16_off_forgets_a_calibration_too() -> None:
    fast = controlled().accelerate(bfloat16=True).calibrate(flat_states())
    assert fast.detect(flat_states()[:2]).flagged.shape == (2,)
    with pytest.raises(clcnn.FitError, match="not calibrated"):
        fast.accelerate().detect(flat_states()[:2])


def test_one_pass_control_keeps_every_digit() -> None:
    robust = controlled().configure(solver=clcnn.Greedy())
    x = flat_states()[:8] + 0.5 * torch.randn(8, 40)
    exact, fast = robust.solve(x), robust.accelerate(bfloat16=True).solve(x)
    assert torch.equal(exact.J, fast.J)
    assert torch.equal(exact.logits, fast.logits)


def test_a_detector_is_to_be_calibrated_again() -> None:
    robust = controlled().calibrate(flat_states())
    with pytest.raises(clcnn.FitError, match="not calibrated"):
        robust.accelerate(bfloat16=True).detect(flat_states()[:4])
    assert robust.accelerate().detect(flat_states()[:4]).flagged.shape == (4,)


def test_an_exported_program_is_that_of_the_exact_embeddings() -> None:
    robust = controlled()
    x = flat_states()[:4] + 0.5 * torch.randn(4, 40)
    program = robust.accelerate(bfloat16=True).export(format="torch")
    torch.testing.assert_close(program.module()(x), robust(x), rtol=1e-4, atol=1e-4)


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
    fast.embeddings[0] = LinearEmbedding(rank=2).fit([flat_states()])
    rank_2 = fast.solve(x).u[0]
    other = controlled()
    other.embeddings[0] = fast.embeddings[0]
    assert torch.equal(rank_2, other.accelerate(bfloat16=True).solve(x).u[0])
    fast.double()
    assert fast.solve(x.double()).u[0].dtype == torch.float64


def unrolled_gradient(robust: clcnn.ControlledModule, x: Tensor) -> Tensor:
    (g,) = torch.autograd.grad(robust.configure(grad="unroll")(x).sum(), x)
    return g


def test_unrolled_gradients_go_through_the_rounded_products() -> None:
    x = flat_states()[:4].requires_grad_()
    g = unrolled_gradient(controlled().accelerate(bfloat16="embeddings"), x)
    expected = unrolled_gradient(controlled(), x)
    assert torch.cosine_similarity(g.flatten(), expected.flatten(), dim=0) > 0.9


def test_unrolled_gradients_go_through_the_rounded_network() -> None:
    # By plain ascent: Adam's first steps are signs, some of which rounding turns.
    robust = controlled().configure(solver=clcnn.PMP(iterations=8, lr=0.05, method="gradient"))
    x = (flat_states()[:64] + 0.5 * torch.randn(64, 40)).requires_grad_()
    g, expected = (unrolled_gradient(r, x) for r in (robust.accelerate(bfloat16=True), robust))
    assert float(torch.cosine_similarity(g, expected, dim=1).min()) > 0.99
    assert not torch.equal(g, expected)


@pytest.mark.parametrize(
    ("found", "expected"),
    [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx512_f": True}, False)],
)
def test_a_processor_says_whether_it_has_the_instructions(
    found: dict[str, bool], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: found, raising=False)
    assert multiplies_bfloat16(torch.device("cpu")) is expected
    assert not multiplies_bfloat16(torch.device("meta"))


def test_an_older_torch_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert not multiplies_bfloat16(torch.device("cpu"))
