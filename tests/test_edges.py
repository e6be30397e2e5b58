"""Networks, data and calls that are out of the ordinary, each with what must come of it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.autograd.forward_ad as fwad
from torch import Tensor, nn

import clcnn
from clcnn import MSA, PMP, Greedy, Riccati, Status
from clcnn.errors import CutError, DataError, FitError, GradientError, SolveError


def clean(n: int = 200, d: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(3, d, generator=generator)
    return torch.randn(n, 3, generator=generator) @ mix


def perturbed(n: int = 5) -> Tensor:
    return clean(n) + 0.2 * torch.randn(n, 8, generator=torch.Generator().manual_seed(1))


def mlp(inplace: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(8, 6), nn.ReLU(inplace), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)]
    return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("solver", [PMP(iterations=5), MSA(iterations=3)], ids=str)
def test_in_place_stages_are_as_good_as_others(solver: clcnn.Solver) -> None:
    in_place = clcnn.control(clcnn.StagedDynamics(mlp(True)), solver=solver).fit(clean())
    out_of_place = clcnn.control(clcnn.StagedDynamics(mlp()), solver=solver).fit(clean())
    hooked = clcnn.control(mlp(True), ["input", "1", "2", "3", "4"], solver=solver).fit(clean())
    for robust in (in_place, hooked):
        torch.testing.assert_close(robust.embeddings[1].mean, out_of_place.embeddings[1].mean)
        torch.testing.assert_close(robust(perturbed()), out_of_place(perturbed()))


class Preprocessing(nn.Module):
    """Normalises its own input in place, as some networks do."""

    def __init__(self, inplace: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inplace = inplace
        self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x.sub_(0.5).div_(0.25) if self.inplace else (x - 0.5) / 0.25
        return self.b(torch.tanh(self.a(x)))


@pytest.mark.parametrize("memory", [2**30, 1000])
@pytest.mark.parametrize("at", [["a", "b"], ["input", "b"], None])
def test_a_network_that_changes_its_input_in_place(at: list[str] | None, memory: int) -> None:
    data, x = clean(), perturbed()
    robust = clcnn.control(Preprocessing(True).eval(), at).fit(data, memory=memory)
    twin = clcnn.control(Preprocessing(False).eval(), at).fit(clean(), memory=memory)
    torch.testing.assert_close(robust(x), twin(x))
    assert torch.equal(data, clean())
    assert torch.equal(x, perturbed())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [0.0, 1e-8, 1e-3, 0.5])
def test_greedy_with_a_number_and_with_the_same_diagonal(rho: float, dtype: torch.dtype) -> None:
    robust = clcnn.control(
        mlp().to(dtype),
        ["input", "2", "4"],
        embedding=clcnn.LinearEmbedding(rank=2),
        solver=Greedy(),
    ).fit(clean().to(dtype))
    x = perturbed().to(dtype)
    number = robust.configure(regularization=rho).solve(x)
    diagonal = [torch.full(shape, rho) for shape in robust.shapes]
    same = robust.configure(regularization=diagonal).solve(x)
    for a, b in zip(number.u, same.u, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_riccati_without_R_in_single_precision() -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 3)).eval()
    robust = clcnn.control(
        linear, ["input", "1", "2"], embedding=clcnn.LinearEmbedding(rank=2), solver=Riccati()
    ).fit(clean())
    found = robust.solve(perturbed()).J
    plain = robust.configure(solver=PMP(iterations=0)).solve(perturbed()).J
    assert found.max() < 1e-8 * plain.max()


def test_riccati_refuses_a_kink_that_only_the_data_meets() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    model[0].bias.data += 20
    robust = clcnn.control(
        model,
        ["input", "2"],
        embedding=clcnn.LinearEmbedding(rank=2),
        solver=Riccati(),
        regularization=0.1,
    ).fit(30 * clean().double())
    with pytest.raises(SolveError, match="from 'input' to '2' is not affine"):
        robust.solve(30 * perturbed().double())


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 4)
        self.hidden = nn.Linear(24, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.embed(x).flatten(1))))


def test_integer_inputs_behind_named_cuts() -> None:
    x = torch.randint(0, 20, (200, 6))
    robust = clcnn.control(
        Tokens().eval(),
        ["hidden", "head"],
        embedding=clcnn.LinearEmbedding(rank=3),
        regularization=0.5,
    ).fit(x)
    assert robust(x[:4]).shape == (4, 3)
    diagonal = [torch.full(shape, 0.5) for shape in robust.shapes]
    same = robust.configure(regularization=diagonal)
    torch.testing.assert_close(same.solve(x[:4]).J, robust.solve(x[:4]).J)
    with pytest.raises(DataError, match=r"int32; expected torch.int64.*x.to\(torch.int64\)"):
        robust(x[:4].int())
    with pytest.raises(DataError, match="expected floating point"):
        clcnn.control(Tokens().eval()).fit(x)


def test_choosing_cuts_leaves_a_train_mode_model_alone() -> None:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(108, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(CutError, match="train mode"):
        clcnn.control(model).fit(torch.randn(50, 1, 8, 8))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class SequenceFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x).transpose(0, 1)  # (length, batch, features)
        return self.head(torch.tanh(self.mix(h)).mean(0))


@pytest.mark.parametrize("length", [2, 5])
def test_states_whose_first_axis_is_not_the_batch(length: int) -> None:
    model, x = SequenceFirst().eval(), torch.rand(30, length, 4)
    with pytest.raises(
        CutError, match=r"'mix'.*(batch as first axis|depends on the other samples)"
    ):
        clcnn.control(model, ["input", "mix", "head"]).fit(x)
    assert clcnn.control(model).fit(x).cuts == ("input", "head")


def test_a_network_that_mixes_its_samples() -> None:
    model = nn.Sequential(
        nn.Linear(8, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)
    )
    with pytest.raises(CutError, match="depends on the other samples"):
        clcnn.control(model.eval(), ["input"]).fit(clean())


def test_a_loader_that_refills_one_tensor() -> None:
    class Refilling:
        def __iter__(self) -> object:
            buffer = torch.empty(50, 8)
            for part in clean().split(50):
                yield buffer.copy_(part)

    found = clcnn.control(mlp(), ["input", "4"]).fit(Refilling())
    expected = clcnn.control(mlp(), ["input", "4"]).fit(clean())
    torch.testing.assert_close(found.embeddings[0].mean, expected.embeddings[0].mean)


def test_forward_mode_derivatives_are_not_silently_zero() -> None:
    robust = clcnn.control(mlp()).fit(clean())
    x = perturbed()
    with fwad.dual_level():
        dual = fwad.make_dual(x, torch.ones_like(x))
        for grad in ("none", "unroll"):
            with pytest.raises(GradientError, match="forward-mode"):
                robust.configure(grad=grad)(dual)
        through = robust.configure(grad="straight_through")(dual)
        assert fwad.unpack_dual(through).tangent.abs().max() > 0


def test_one_dimensional_logits() -> None:
    class Score(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 6), nn.Linear(6, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(self.a(x))).squeeze(-1)

    robust = clcnn.control(Score().eval()).fit(clean())
    assert robust(perturbed()).shape == (5,)
    with pytest.raises(FitError, match=r"logits of shape \(200,\)"):
        robust.fit((clean(), torch.zeros(200, dtype=torch.int64)), correct_only=True)


@pytest.mark.parametrize("grad", ["none", "straight_through", "unroll"])
def test_empty_batches_in_every_grad_mode(grad: str) -> None:
    class Reshaping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(8, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(x.view(x.size(0), -1))

    robust = clcnn.control(Reshaping().eval(), ["input"], grad=grad).fit(clean())
    assert robust(torch.empty(0, 8, requires_grad=True)).shape == (0, 6)


def test_stages_keep_their_modes() -> None:
    stem, head = nn.Sequential(nn.Linear(8, 6), nn.Dropout()).eval(), nn.Linear(6, 3)
    dynamics = clcnn.StagedDynamics([stem, head])
    assert head.training
    assert not stem.training
    with pytest.raises(CutError, match="train mode"):
        dynamics.inspect(clean(2))


def test_a_child_named_input_and_a_frozen_part() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input, self.features, self.head = nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.features(self.input(x))
            return self.head(h)

    assert clcnn.control(Odd().eval()).fit(clean()).cuts == ("head",)


def test_reshaped_repeats_are_not_chosen_twice() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)).eval()
    assert clcnn.control(model).fit(torch.rand(30, 1, 8, 8)).cuts == ("input", "1")


def test_interrupts_leave_a_model_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    robust = clcnn.control(model, ["input", "1", "2", "3", "4"], solver=PMP(iterations=3)).fit(
        clean()
    )
    x = perturbed()
    plain, expected = model(x), robust(x)

    class Interrupt(BaseException):
        pass

    def strike(*_: object) -> None:
        raise Interrupt

    # Python discards what is raised within a callback of its garbage collector: no interrupt then.
    report = sys.unraisablehook

    def discard(lost: Any) -> None:
        if lost.exc_type is not Interrupt:
            report(lost)

    monkeypatch.setattr(sys, "unraisablehook", discard)
    before = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        for i in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0002 + 0.00002 * (i % 50))
                for _ in range(50):
                    robust(x)
            except Interrupt:
                struck += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert struck > 50
    assert torch.equal(model(x), plain)
    assert torch.equal(robust(x), expected)
    assert sum(len(m._forward_pre_hooks) for m in model.modules()) == 0


def test_hooks_left_behind_do_nothing_and_are_cleared_away(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    robust = clcnn.control(model, ["input", "2"], solver=Greedy()).fit(clean())
    plain = model(perturbed())
    with monkeypatch.context() as patch:
        patch.setattr("clcnn.dynamics.hooked._Run.remove", lambda self: None)
        expected = robust(perturbed())
    assert sum(len(m._forward_pre_hooks) for m in model.modules()) > 0
    assert torch.equal(model(perturbed()), plain)
    assert torch.equal(robust(perturbed()), expected)
    assert sum(len(m._forward_pre_hooks) for m in model.modules()) == 0


def test_errors_name_the_cut() -> None:
    model = mlp()
    model[0].weight.data.zero_()
    with pytest.raises(FitError, match="at cut '2'"):
        clcnn.control(model, ["input", "2", "4"]).fit(clean())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"embedding": clcnn.LinearEmbedding}, r"the class LinearEmbedding.*LinearEmbedding\(\)"),
        ({"solver": PMP}, r"the class PMP as solver.*PMP\(\)"),
        ({"solver": "pmp"}, "found a str as solver"),
        ({"solver": {"input": "pmp"}}, "found a str as solver"),
        ({"regularization": None}, "NoneType for regularization"),
        ({"regularization": "much"}, "str for regularization"),
        ({"regularization": [None]}, "R at cut 'input' is a NoneType"),
        ({"weights": None}, "NoneType for weights"),
    ],
)
def test_settings_of_the_wrong_kind(settings: dict, message: str) -> None:
    with pytest.raises(CutError, match=message):
        clcnn.control(mlp(), ["input"], **settings)


def test_numpy_settings() -> None:
    robust = clcnn.control(mlp(), ["input"], regularization=np.float32(0.5)).fit(clean())
    array = robust.configure(regularization=[np.full(8, 0.5)])
    torch.testing.assert_close(robust.solve(perturbed()).J, array.solve(perturbed()).J)


def test_data_that_the_model_does_not_take() -> None:
    for data in (clean().double(), clean()[:, :5], torch.rand(3, 8, 8)[0, 0]):
        with pytest.raises(DataError, match=r"fails on inputs of torch.float|expected \(batch, "):
            clcnn.control(mlp(), ["input", "2"]).fit(data)
    for data in (None, 3):
        with pytest.raises(DataError, match="expected a tensor, a pair"):
            clcnn.control(mlp(), ["input"]).fit(data)
    with pytest.raises(DataError, match="200 inputs and 199 labels"):
        clcnn.control(mlp(), ["input"]).fit((clean(), torch.zeros(199)))
    one_hot = nn.functional.one_hot(torch.zeros(200, dtype=torch.int64), 3)
    with pytest.raises(FitError, match=r"labels of torch.int64 and shape \(200, 3\)"):
        clcnn.control(mlp(), ["input"]).fit([(clean(), one_hot)], correct_only=True)


def test_a_generator_whose_first_batch_is_empty() -> None:
    parts = [clean()[:0], clean()[:100], clean()[100:]]
    found = clcnn.control(mlp(), ["input"]).fit(iter(parts)).embeddings[0].mean
    torch.testing.assert_close(found, clean().mean(0), atol=1e-5, rtol=1e-5)


def test_an_embedding_that_forgets_what_it_returns_or_keeps(tmp_path: Path) -> None:
    class Forgetful(clcnn.Embedding):
        def fit(self, states: object) -> None:
            list(states)

        def project(self, x: Tensor) -> Tensor:
            return x

    class Loose(Forgetful):
        def fit(self, states: object) -> Loose:
            self.middle = torch.cat(list(states)).mean(0)
            return self

    with pytest.raises(FitError, match=r"Forgetful.fit returned a NoneType.*return self"):
        clcnn.control(mlp(), ["input"], embedding=Forgetful()).fit(clean())
    robust = clcnn.control(mlp(), ["input"], embedding=Loose()).fit(clean())
    with pytest.raises(FitError, match="'middle' as a plain attribute"):
        robust.save(tmp_path / "r")


def test_unroll_without_a_gradient_in_x_says_so() -> None:
    robust = clcnn.control(mlp(), ["input"], grad="unroll").fit(clean())
    with pytest.raises(GradientError, match=r"x did not require one.*requires_grad_"):
        robust(perturbed()).sum().backward()


def test_saving_shared_tensors_modes_and_missing_folders(tmp_path: Path) -> None:
    R = torch.rand(6)
    robust = clcnn.control(mlp(), ["2", "4"], regularization=[R, R]).fit(clean())
    robust.save(tmp_path / "r")
    loaded = clcnn.load(tmp_path / "r", robust.model)
    assert torch.equal(loaded(perturbed()), robust(perturbed()))
    (tmp_path / "plain").touch()
    assert (tmp_path / "r").stat().st_mode == (tmp_path / "plain").stat().st_mode
    (tmp_path / "link").symlink_to(tmp_path / "r")
    robust.save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(FileNotFoundError, match=r"the folder .*nowhere' does not exist"):
        robust.save(tmp_path / "nowhere" / "r")


def test_autocast_around_a_call_changes_nothing() -> None:
    robust = clcnn.control(mlp(), ["input", "2"]).fit(clean())
    x, data = perturbed(), clean()
    expected = robust(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(robust(x), expected)
        refitted = clcnn.control(mlp(), ["input", "2"]).fit(data)
    assert torch.equal(refitted(x), expected)


@pytest.mark.parametrize("grad", ["straight_through", "unroll"])
def test_autocast_around_a_gradient_changes_nothing(grad: str) -> None:
    robust = clcnn.control(mlp(), ["input", "2"], grad=grad).fit(clean())
    x = perturbed().requires_grad_()
    logits = robust(x)
    (expected,) = torch.autograd.grad(logits.sum(), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        again = robust(x)
    (found,) = torch.autograd.grad(again.sum(), x)
    assert torch.equal(again, logits)
    torch.testing.assert_close(found, expected)


def test_unrolling_is_refused_to_second_order() -> None:
    robust = clcnn.control(mlp(), ["input", "2"], grad="unroll").fit(clean())
    x = perturbed().requires_grad_()
    (g,) = torch.autograd.grad(robust(x).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match=r"does not require grad|once_differentiable"):
        torch.autograd.grad(g.square().sum(), x)


def test_unrolling_through_torchs_own_attention() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    model = nn.Sequential(nn.Linear(4, 4), layer, nn.Flatten(), nn.Linear(12, 3)).double().eval()
    data = torch.rand(40, 3, 4, dtype=torch.float64)
    solver = PMP(iterations=2, lr=0.05, method="gradient")
    robust = clcnn.control(model, ["input", "1", "3"], solver=solver, grad="unroll").fit(data)
    x = torch.rand(2, 3, 4, dtype=torch.float64).requires_grad_()
    (g,) = torch.autograd.grad(robust(x).sum(), x)
    direction, h = torch.randn(2, 3, 4, dtype=torch.float64), 1e-5
    with torch.no_grad():
        change = robust(x + h * direction).sum() - robust(x - h * direction).sum()
    torch.testing.assert_close((g * direction).sum(), change / (2 * h), atol=1e-5, rtol=1e-3)


def test_labels_of_any_shape_are_labels() -> None:
    one_hot = nn.functional.one_hot(torch.zeros(200, dtype=torch.int64), 3).float()
    robust = clcnn.control(mlp(), ["input"]).fit((clean(), one_hot))
    torch.testing.assert_close(robust.embeddings[0].mean, clean().mean(0), atol=1e-5, rtol=1e-5)
    with pytest.raises(DataError, match="inputs and labels, or two batches"):
        robust.fit((clean(), clean() + 100))
    both = robust.fit([clean(), clean() + 100])
    assert both.embeddings[0].n_samples_ == 400


@pytest.mark.parametrize("rho", [0.0, 0.1])
def test_riccati_with_large_biases_in_single_precision(rho: float) -> None:
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 6), nn.Linear(6, 3)).eval()
    linear[0].bias.data += 1000
    robust = clcnn.control(
        linear,
        ["input", "1", "2"],
        embedding=clcnn.LinearEmbedding(rank=2),
        solver=Riccati(),
        regularization=rho,
    ).fit(clean())
    found = robust.solve(perturbed()).J
    greedy = robust.configure(solver=Greedy()).solve(perturbed()).J
    plain = robust.configure(solver=PMP(iterations=0)).solve(perturbed()).J
    assert (found <= greedy + 1e-4 * plain).all()


def test_configure_checks_what_control_checks() -> None:
    robust = clcnn.control(mlp(), ["input", "2"]).fit(clean())
    for solver in (PMP, "pmp", {"input": "pmp", "2": PMP()}):
        with pytest.raises(CutError, match="as solver"):
            robust.configure(solver=solver)
    with pytest.raises(CutError, match="weights"):
        robust.configure(weights=[1, "a"])
    assert robust.configure(solver=PMP(iterations=np.int64(3))).solve(perturbed()).steps[0] == 3


def test_hooks_on_a_configured_twin_stay_its_own() -> None:
    robust = clcnn.control(mlp(), ["input"]).fit(clean())
    twin, calls = robust.configure(grad="unroll"), []
    twin.register_forward_hook(lambda *_: calls.append(1))
    robust(perturbed())
    assert not calls
    twin(perturbed())
    assert calls


def test_a_controlled_network_can_be_controlled_again() -> None:
    robust = clcnn.control(mlp(), ["input"], grad="unroll").fit(clean())
    twice = clcnn.control(robust, ["input"]).fit(clean())
    assert twice(perturbed()).shape == (5, 3)


def test_a_network_of_tokens_from_one_comes_back(tmp_path: Path) -> None:
    class FromOne(Tokens):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x - 1)

    model, x = FromOne().eval(), torch.randint(1, 20, (200, 6))
    robust = clcnn.control(model, ["hidden", "head"]).fit(x)
    robust.save(tmp_path / "r")
    assert torch.equal(clcnn.load(tmp_path / "r", model)(x[:3]), robust(x[:3]))


def test_weights_made_in_inference_mode_are_refused() -> None:
    with torch.inference_mode():
        model = mlp()
    with pytest.raises(CutError, match="inference_mode"):
        clcnn.control(model, ["input"]).fit(clean())


def test_reaching_the_tolerance_with_the_last_step() -> None:
    robust = clcnn.control(mlp(), ["input", "2"]).fit(clean())
    J = robust.configure(solver=PMP(iterations=4)).solve(perturbed()).J
    tolerance = J.max().item() * 1.0001
    solution = robust.configure(solver=PMP(iterations=4, tolerance=tolerance)).solve(perturbed())
    assert (solution.status == Status.TOLERANCE).all()


def test_msa_with_its_own_settings_at_each_cut() -> None:
    robust = clcnn.control(mlp(), ["input", "2"], regularization=0.1).fit(clean())
    one = robust.configure(solver=MSA(iterations=3)).solve(perturbed())
    same = {"input": MSA(iterations=3), "2": MSA(iterations=3, damping=0.50001)}
    other = {"input": MSA(iterations=3), "2": MSA(iterations=3, damping=0.1, lr=0.01)}
    torch.testing.assert_close(
        robust.configure(solver=same).solve(perturbed()).u[1], one.u[1], atol=1e-3, rtol=1e-3
    )
    smaller = robust.configure(solver=other).solve(perturbed())
    assert smaller.u[1].abs().sum() < one.u[1].abs().sum()


def test_embeddings_stay_in_eval_mode() -> None:
    class Normalising(clcnn.Embedding):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def fit(self, states: object) -> Normalising:
            return self

        def project(self, x: Tensor) -> Tensor:
            return self.norm(x)

    robust = clcnn.control(mlp(), ["input"], embedding=Normalising()).fit(clean())
    robust.train()
    robust.model.eval()
    assert not robust.embeddings[0].norm.training


def test_half_precision() -> None:
    model = mlp().to(torch.bfloat16)
    robust = clcnn.control(model, ["input", "2"]).fit(clean().bfloat16())
    solution = robust.solve(perturbed().bfloat16())
    assert solution.logits.dtype == torch.bfloat16
    assert (solution.status != Status.NONFINITE).all()
