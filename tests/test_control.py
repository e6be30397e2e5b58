"""ControlledModule as a user meets it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from networks import NETWORKS, build, inputs
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import clcnn
from clcnn import MSA, PMP, Greedy, Reactive, Riccati, Status
from clcnn.errors import CutError, DataError, FitError, GradientError, SolveError

SOLVERS = [PMP(iterations=6), PMP(iterations=6, start="greedy"), MSA(iterations=3), Greedy(0.1)]


def controlled(
    name: str = "residual", dtype: torch.dtype = torch.float64, **settings: object
) -> clcnn.ControlledModule:
    model = build(name, dtype)
    settings = {"embedding": clcnn.LinearEmbedding(rank=4), "regularization": 0.01} | settings
    return clcnn.control(model, model.cuts, **settings).fit(inputs(model, 40, dtype))


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_sample_alone_and_in_any_batch(name: str, solver: clcnn.Solver) -> None:
    robust = controlled(name, solver=solver)
    x = inputs(robust.model, 6, seed=3)
    together = robust.solve(x)
    order = torch.tensor([4, 2, 0, 5, 1, 3])
    shuffled = robust.solve(x[order])
    alone = [robust.solve(x[i : i + 1]) for i in range(6)]
    for t in range(len(together.u)):
        torch.testing.assert_close(shuffled.u[t], together.u[t][order], atol=1e-8, rtol=0)
        singles = torch.cat([one.u[t] for one in alone])
        torch.testing.assert_close(singles, together.u[t], atol=1e-8, rtol=0)
    torch.testing.assert_close(shuffled.logits, together.logits[order], atol=1e-8, rtol=0)
    assert torch.equal(robust.solve(x).logits, together.logits)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_sample_alone_and_in_a_batch_in_single_precision(name: str) -> None:
    robust = controlled(name, torch.float32)
    x = inputs(robust.model, 6, torch.float32, seed=3)
    together = robust.solve(x)
    alone = [robust.solve(x[i : i + 1]) for i in range(6)]
    J = torch.cat([one.J for one in alone])
    logits = torch.cat([one.logits for one in alone])
    torch.testing.assert_close(J, together.J, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits, together.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tolerance", [0.0, 10.0])
@pytest.mark.parametrize("name", NETWORKS)
def test_J_never_ends_above_the_uncontrolled(name: str, tolerance: float) -> None:
    robust = controlled(name)
    x = inputs(robust.model, 20, seed=4) * 2
    plain = robust.configure(solver=PMP(iterations=0)).solve(x)
    for lr in (0.005, 0.1, 10.0):
        solution = robust.configure(solver=PMP(iterations=8, lr=lr, tolerance=tolerance)).solve(x)
        assert (solution.J <= plain.J + 1e-12).all()
        torch.testing.assert_close(solution.J, solution.J_t.sum(1))
    wild = robust.configure(solver=PMP(iterations=8, lr=1e6)).solve(x)
    kept = wild.status == Status.UNCONTROLLED
    assert kept.any()
    assert all((u[kept] == 0).all() for u in wild.u)


def test_no_iterations_is_the_plain_network() -> None:
    robust = controlled(solver=PMP(iterations=0))
    x = inputs(robust.model, 5)
    solution = robust.solve(x)
    assert torch.equal(robust(x), robust.model(x))
    assert solution.statuses == [Status.UNCONTROLLED] * 5
    assert all((u == 0).all() for u in solution.u)


def test_the_returned_J_and_logits_belong_to_the_returned_controls() -> None:
    robust = controlled()
    x = inputs(robust.model, 20, seed=4)
    reachable = robust.configure(solver=PMP(iterations=4, lr=0.05)).solve(x).J.median().item()
    solution = robust.configure(solver=PMP(iterations=7, lr=0.05, tolerance=reachable)).solve(x)
    assert len(set(solution.steps.tolist())) > 1, "samples must leave at different times"
    losses: list[Tensor] = []

    def replay(t: int, state: Tensor) -> Tensor:
        z = state + solution.u[t]
        losses.append(robust.objective.running_loss(t, z, solution.u[t]))
        return z

    with torch.no_grad():
        logits = robust.dynamics.rollout(x, replay)
    torch.testing.assert_close(solution.logits, logits, atol=1e-10, rtol=0)
    torch.testing.assert_close(solution.J_t, torch.stack(losses, 1), atol=1e-10, rtol=0)


def test_finished_samples_leave_and_say_so() -> None:
    robust = controlled()
    x = inputs(robust.model, 20, seed=4)
    plain = robust.configure(solver=PMP(iterations=0)).solve(x).J
    middle = plain.median().item()
    solution = robust.configure(solver=PMP(iterations=5, lr=1e-6, tolerance=middle)).solve(x)
    at_once = plain <= middle
    assert (solution.status[at_once] == Status.TOLERANCE).all()
    assert (solution.steps[at_once] == 0).all()
    assert (solution.steps[~at_once] == 5).all()
    assert all("J" in status.sentence for status in (Status.TOLERANCE, Status.ITERATIONS))
    assert all(len(status.sentence) > 30 for status in Status)
    assert "20 samples" in repr(solution)


def test_leaving_does_not_change_the_others() -> None:
    robust = controlled()
    x = inputs(robust.model, 20, seed=4)
    without = robust.configure(solver=PMP(iterations=6)).solve(x)
    reachable = without.J.median().item()
    with_leavers = robust.configure(solver=PMP(iterations=6, tolerance=reachable)).solve(x)
    stayed = with_leavers.status != Status.TOLERANCE
    assert stayed.any()
    assert not stayed.all()
    for a, b in zip(with_leavers.u, without.u, strict=True):
        torch.testing.assert_close(a[stayed], b[stayed], atol=1e-10, rtol=0)


class Overflowing(nn.Module):
    """f(z) = exp(z) grows beyond bounds once the control pushes z up."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.middle.weight)
        nn.init.eye_(self.head.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(torch.exp(x)))


def test_values_that_become_non_finite_fall_back_and_say_so() -> None:
    model = Overflowing().eval()
    clean = torch.rand(30, 2)
    robust = clcnn.control(
        model,
        ["input", "head"],
        embedding=clcnn.LinearEmbedding(rank=1),
        solver=PMP(iterations=4, lr=300.0),
    ).fit(clean)
    x = torch.rand(6, 2)
    solution = robust.solve(x)
    broken = solution.status == Status.NONFINITE
    assert broken.any()
    assert solution.J.isfinite().all()
    assert solution.logits.isfinite().all()
    plain = robust.configure(solver=PMP(iterations=0)).solve(x)
    assert (solution.J <= plain.J).all()
    greedy = robust.configure(solver=Greedy()).solve(torch.tensor([[0.5, 0.5], [200.0, 0.0]]))
    assert greedy.statuses == [Status.SOLVED, Status.NONFINITE]


def test_one_broken_sample_leaves_its_neighbours_alone() -> None:
    model = Overflowing().eval()
    robust = clcnn.control(
        model, ["input", "head"], embedding=clcnn.LinearEmbedding(rank=1), solver=PMP(iterations=4)
    ).fit(torch.rand(30, 2))
    x = torch.rand(3, 2)
    x[1] = 200.0
    solution = robust.solve(x)
    assert solution.statuses[1] == Status.NONFINITE
    rest = robust.solve(x[[0, 2]])
    torch.testing.assert_close(solution.logits[[0, 2]], rest.logits)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_non_finite_inputs_are_named(value: float) -> None:
    robust = controlled()
    x = inputs(robust.model, 5)
    x[1, 0, 0, 0] = x[3, 2, 1, 1] = value
    with pytest.raises(DataError, match=r"2 of 5 input samples \(at 1, 3\)"):
        robust(x)
    with pytest.raises(DataError, match=r"nan or inf"):
        controlled().fit(x)


def test_wrong_inputs_get_found_expected_and_remedy() -> None:
    robust = controlled()
    x = inputs(robust.model, 2)
    for bad, message in [
        (x[:, :2], r"shape \(2, 2, 8, 8\); expected \(batch, 3, 8, 8\)"),
        (x[0], r"add the batch axis: x.unsqueeze\(0\)"),
        (x.float(), r"float32; expected torch.float64.*x.to\(torch.float64\)"),
        ((x * 255).to(torch.uint8), r"uint8; expected torch.float64.*x.float\(\) / 255"),
        (x.numpy(), r"found a ndarray; expected a tensor"),
    ]:
        with pytest.raises(DataError, match=message):
            robust(bad)


def test_empty_batches_give_empty_logits() -> None:
    for solver in (*SOLVERS, PMP(iterations=0)):
        robust = controlled(solver=solver)
        solution = robust.solve(inputs(robust.model, 0))
        assert solution.logits.shape == (0, 4)
        assert solution.J_t.shape == (0, 5)
        assert [u.shape for u in solution.u] == [(0, *shape) for shape in robust.shapes]
        assert robust(inputs(robust.model, 0)).shape == (0, 4)
        assert "0 samples" in repr(solution)


def test_before_fit() -> None:
    model = build("residual")
    with pytest.raises(FitError, match=r"not been fitted.*\.fit\(clean data\)"):
        clcnn.control(model, model.cuts)(inputs(model, 2))
    with pytest.raises(FitError, match="nothing to save"):
        clcnn.control(model, model.cuts).save("nowhere.safetensors")
    with pytest.raises(FitError, match="cuts are not chosen yet"):
        _ = clcnn.control(model).cuts
    assert "chosen by fit" in repr(clcnn.control(model))


def test_what_fit_takes() -> None:
    model = build("mlp")
    x = inputs(model, 300)
    y = model(x).argmax(1)
    expected = clcnn.control(model, model.cuts).fit(x).embeddings[1].mean
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64)
    for data in (
        (x, y),
        [x],
        list(x.split(50)),
        x.split(200),
        [(x[:100], y[:100]), (x[100:], y[100:])],
        iter(x.split(50)),
        ((part, label) for part, label in zip(x.split(50), y.split(50), strict=True)),
        loader,
        torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=64),
    ):
        found = clcnn.control(model, model.cuts).fit(data).embeddings[1].mean
        torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    rerun = clcnn.control(model, model.cuts).fit(loader, memory=1000).embeddings[1].mean
    torch.testing.assert_close(rerun, expected, atol=1e-12, rtol=0)


def test_correct_only_keeps_what_the_model_gets_right() -> None:
    model = build("mlp")
    x = inputs(model, 300)
    y = model(x).argmax(1)
    y[:150] = (y[:150] + 1) % 3
    kept = clcnn.control(model, model.cuts).fit((x, y), correct_only=True)
    expected = clcnn.control(model, model.cuts).fit(x[150:])
    torch.testing.assert_close(kept.embeddings[2].mean, expected.embeddings[2].mean)
    with pytest.raises(FitError, match="needs labels"):
        clcnn.control(model, model.cuts).fit(x, correct_only=True)
    with pytest.raises(FitError, match="gets no sample of the loader right"):
        clcnn.control(model, model.cuts).fit((x[:150], y[:150]), correct_only=True)


def bad_data() -> Iterator[tuple[object, type[Exception], str]]:
    x = inputs(build("mlp"), 30)
    yield [], FitError, "no batch"
    yield iter([]), FitError, "no batch"
    yield x[:0], FitError, "no batch"
    yield [(x[0], 1), (x[1], 0)], DataError, "needs a DataLoader"
    yield list(x), DataError, r"shape \(6,\); expected \(batch, \.\.\.\)"
    yield [x, x[:, :5]], DataError, r"batch 1 has samples of shape \(5,\)"
    yield (x * 255).to(torch.uint8), DataError, r"uint8; expected floating point.*x.float\(\) / 255"
    yield ["image.png"], DataError, "holds str"
    yield x[:1], FitError, "(?i)sample"
    yield x[:1].repeat(30, 1), FitError, "(?i)variance"


@pytest.mark.parametrize(("data", "error", "message"), list(bad_data()), ids=lambda v: str(v)[:20])
def test_bad_data_for_fit(data: object, error: type[Exception], message: str) -> None:
    model = build("mlp")
    with pytest.raises(error, match=message):
        clcnn.control(model, model.cuts).fit(data)


def test_a_rank_above_the_sample_count() -> None:
    model = build("residual")
    with pytest.raises((FitError, DataError), match=r"rank.*9"):
        clcnn.control(model, model.cuts, embedding=clcnn.LinearEmbedding(rank=20)).fit(
            inputs(model, 10)
        )


def test_a_one_shot_loader_beyond_memory_is_refused() -> None:
    model = build("mlp")
    with pytest.raises(FitError, match="iterated only once"):
        clcnn.control(model, model.cuts).fit(iter(inputs(model, 200).split(20)), memory=1000)


def test_one_for_each_cut() -> None:
    model = build("mlp")
    x = inputs(model, 50)
    embedding = {
        "input": clcnn.LinearEmbedding(rank=2),
        "hidden": clcnn.LinearEmbedding(rank=3),
        "head": clcnn.LinearEmbedding(rank=4),
    }
    solver = {
        "input": PMP(lr=0.01),
        "hidden": PMP(lr=0.02),
        "head": PMP(lr=0.02, method="gradient"),
    }
    R = {"input": 0.1, "hidden": torch.rand(8).double(), "head": 0.0}
    robust = clcnn.control(
        model, model.cuts, embedding=embedding, solver=solver, regularization=R
    ).fit(x)
    assert [E.rank_ for E in robust.embeddings] == [2, 3, 4]
    one_step = {name: PMP(iterations=1, lr=s.lr) for name, s in solver.items()}
    u = robust.configure(solver=one_step).solve(x[:4]).u
    # Adam's first step is lr in every coordinate with a gradient.
    for u_t, lr in zip(u, (0.01, 0.02, 0.02), strict=True):
        assert u_t.abs().max() == pytest.approx(lr, rel=1e-4)
    greedy = robust.configure(
        solver={"input": Greedy(0.0), "hidden": Greedy(9.0), "head": Reactive()}
    )
    assert (greedy.solve(x[:4]).u[2] == 0).all()


def test_settings_that_do_not_fit_are_refused_early() -> None:
    model = build("mlp")
    for settings, error, message in [
        ({"embedding": {"input": clcnn.LinearEmbedding()}}, CutError, "Missing: hidden, head"),
        ({"regularization": [0.1]}, CutError, "1 values for regularization"),
        ({"regularization": -1.0}, CutError, "at least 0"),
        ({"regularization": float("nan")}, CutError, "finite"),
        ({"weights": "average"}, CutError, "'sum', 'mean'"),
        ({"weights": 0.0}, CutError, "above 0"),
        ({"solver": {"input": PMP()}}, SolveError, "one for each cut"),
        ({"grad": "bpda"}, GradientError, "one of none, straight_through, unroll"),
    ]:
        with pytest.raises(error, match=message):
            clcnn.control(model, model.cuts, **settings)
    mixed = {"input": PMP(), "hidden": Greedy(), "head": PMP()}
    with pytest.raises(SolveError, match="kinds Greedy, PMP"):
        clcnn.control(model, model.cuts, solver=mixed)
    uneven = {"input": PMP(iterations=3), "hidden": PMP(), "head": PMP()}
    with pytest.raises(SolveError, match="differ in iterations"):
        clcnn.control(model, model.cuts, solver=uneven)
    wide = {"input": 0.0, "hidden": torch.rand(5), "head": 0.0}
    with pytest.raises(CutError, match=r"5 entries.*shape \(8,\)"):
        clcnn.control(model, model.cuts, regularization=wide).fit(inputs(model, 30))
    with pytest.raises(CutError, match="a list of names"):
        clcnn.control(model, "input")
    with pytest.raises(CutError, match="expected a torch"):
        clcnn.control(lambda x: x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PMP(iterations=-1), "iterations=-1; expected iterations to be a whole number"),
        (lambda: PMP(iterations=10.0), "whole number"),
        (lambda: Greedy(c="a"), "c='a'"),
        (lambda: PMP(lr=0.0), "lr"),
        (lambda: PMP(method="newton"), "one of adam, momentum, gradient"),
        (lambda: PMP(tolerance=-1.0), "tolerance"),
        (lambda: PMP(beta1=1.0), "beta1"),
        (lambda: PMP(start="random"), "start"),
        (lambda: MSA(inner=0), "inner"),
        (lambda: MSA(damping=0.0), "damping"),
        (lambda: Greedy(c=-1.0), "c=-1.0"),
    ],
)
def test_solver_settings_are_checked(make: object, message: str) -> None:
    with pytest.raises(SolveError, match=message):
        make()


def test_the_mean_weights_are_those_of_the_features() -> None:
    robust = controlled(weights="mean")
    sums = robust.configure(weights="sum", regularization=0.0, solver=PMP(iterations=0))
    means = robust.configure(regularization=0.0, solver=PMP(iterations=0))
    x = inputs(robust.model, 3)
    d = torch.tensor([3 * 64, 4 * 64, 4 * 64, 4 * 64, 6 * 16]).double()
    torch.testing.assert_close(means.solve(x).J_t, sums.solve(x).J_t / d)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_grad_modes_of_the_caller_do_not_matter(mode: object, solver: clcnn.Solver) -> None:
    robust = controlled(solver=solver)
    x = inputs(robust.model, 4)
    expected = robust(x)
    with mode():
        assert torch.equal(robust(x.clone()), expected)
        refitted = clcnn.control(
            robust.model,
            robust.cuts,
            embedding=clcnn.LinearEmbedding(rank=4),
            solver=solver,
            regularization=0.01,
        ).fit(inputs(robust.model, 40).clone())
    torch.testing.assert_close(refitted(x), expected)


@pytest.mark.parametrize("solver", SOLVERS, ids=str)
def test_the_model_is_left_as_it_was(solver: clcnn.Solver) -> None:
    model = build("residual", torch.float32)
    model.layer1.conv1.weight.requires_grad_(False)
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    before = copy.deepcopy(model.state_dict())
    modes = [m.training for m in model.modules()]
    x = inputs(model, 20, torch.float32)
    robust = clcnn.control(model, model.cuts, solver=solver).fit(x)
    robust(x[:3])
    robust.configure(grad="unroll")(x[:3].requires_grad_()).sum().backward()
    assert all(p.grad is None for p in model.parameters()), "not even a part of a gradient"
    assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
    assert [m.training for m in model.modules()] == modes
    after = model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


class _WeightGradients(TorchDispatchMode):
    """Notes, for every backward kernel of a layer with weights, whether it was to do them too."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[bool] = []

    def __torch_dispatch__(
        self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
    ) -> object:
        if str(func) in (
            "aten.convolution_backward.default",
            "aten.native_batch_norm_backward.default",
        ):
            self.asked.append(any(args[-1][1:]))
        return func(*args, **(kwargs or {}))


def test_no_gradient_of_a_weight_is_computed_or_kept() -> None:
    robust = controlled(solver=PMP(iterations=3))
    x = inputs(robust.model, 2)
    with _WeightGradients() as kernels:
        robust(x)
    assert len(kernels.asked) > 10
    assert not any(kernels.asked)
    assert all(p.grad is None for p in robust.model.parameters())
    with _WeightGradients() as kernels:
        robust.model(x).sum().backward()
    assert all(kernels.asked), "the watch itself must be able to see them"


def test_channels_last() -> None:
    robust = controlled(dtype=torch.float32)
    x = inputs(robust.model, 4, torch.float32)
    expected = robust(x)
    last = robust.model.to(memory_format=torch.channels_last)
    assert last is robust.model
    found = robust(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_moving_to_another_dtype() -> None:
    robust = controlled(dtype=torch.float32, solver=Greedy())
    x = inputs(robust.model, 4, torch.float32)
    expected = robust(x)
    robust.double()
    torch.testing.assert_close(robust(x.double()), expected.double(), atol=1e-4, rtol=1e-4)
    robust.float()
    assert robust(x).dtype == torch.float32


def test_state_dict_holds_network_and_embeddings() -> None:
    robust = controlled()
    names = robust.state_dict().keys()
    assert any(name.startswith("model.layer1") for name in names)
    assert any(re.match(r"embeddings\.0\.V", name) for name in names)
    twin = controlled()
    for buffer in twin.embeddings.buffers():
        buffer.zero_()
    twin.load_state_dict(robust.state_dict())
    x = inputs(robust.model, 3)
    assert torch.equal(twin(x), robust(x))


def test_train_mode_is_refused_at_the_call() -> None:
    robust = controlled()
    robust.train()
    with pytest.raises(CutError, match="train mode"):
        robust(inputs(robust.model, 2))
    robust.eval()
    robust(inputs(robust.model, 2))


def test_gradients_are_refused_by_default_and_only_in_the_backward_pass() -> None:
    robust = controlled()
    x = inputs(robust.model, 2).requires_grad_()
    logits = robust(x)
    with pytest.raises(GradientError, match=r"grad='none'.*silent zero.*configure"):
        logits.sum().backward()
    with pytest.raises(GradientError, match="grad='none'"):
        robust(x.detach()).sum().backward()
    assert torch.equal(robust(x.detach()), logits)
    with torch.no_grad():
        assert not robust(x).requires_grad


def test_straight_through_holds_the_controls_constant() -> None:
    robust = controlled(grad="straight_through")
    x = inputs(robust.model, 3).requires_grad_()
    logits = robust(x)
    (found,) = torch.autograd.grad(logits[:, 0].sum(), x)
    u = robust.solve(x).u
    replayed = robust.dynamics.rollout(x, lambda t, state: state + u[t])
    (expected,) = torch.autograd.grad(replayed[:, 0].sum(), x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(logits, robust.configure(grad="none")(x.detach()))


def test_straight_through_gives_weights_no_part_of_a_gradient() -> None:
    robust = controlled(grad="straight_through")
    x = inputs(robust.model, 3)
    with pytest.raises(GradientError, match="x did not require one"):
        robust(x).sum().backward()
    robust(x.clone().requires_grad_()).sum().backward()
    assert all(weight.grad is None for weight in robust.model.parameters())
    empty = x[:0].clone().requires_grad_()
    robust(empty).sum().backward()
    assert empty.grad is not None
    assert empty.grad.shape == empty.shape


@pytest.mark.parametrize(
    "solver",
    [
        PMP(iterations=3, lr=0.01),
        PMP(iterations=4, lr=0.01, method="momentum"),
        PMP(iterations=3, lr=0.01, start="greedy"),
        PMP(iterations=4, lr=0.05, tolerance=0.5),
        MSA(iterations=2, inner=3),
        Greedy(),
        Reactive(c=0.5),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["mlp", "vit"])
def test_unrolled_gradients_agree_with_finite_differences(name: str, solver: clcnn.Solver) -> None:
    robust = controlled(name, solver=solver, grad="unroll")
    x = inputs(robust.model, 3, seed=9)
    weights = torch.randn(3, robust(x).shape[1], dtype=torch.float64)

    def value(at: Tensor) -> Tensor:
        return (robust(at) * weights).sum()

    leaf = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(value(leaf), leaf)
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        direction = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        h = 1e-6
        with torch.no_grad():
            difference = (value(x + h * direction) - value(x - h * direction)) / (2 * h)
        torch.testing.assert_close((g * direction).sum(), difference, atol=1e-6, rtol=1e-4)


def test_threads_give_the_results_of_calls_one_after_another() -> None:
    robust = controlled(dtype=torch.float32)
    batches = [inputs(robust.model, 4, torch.float32, seed=s) for s in range(8)]
    expected = [robust(x) for x in batches]
    plain = [robust.model(x) for x in batches]
    found: dict[int, Tensor] = {}
    seen: dict[int, Tensor] = {}

    def call(i: int) -> None:
        for _ in range(5):
            found[i] = robust(batches[i])
            seen[i] = robust.model(batches[i])

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(call, i) for i in range(8)]:
            done.result()
    for i in range(8):
        assert torch.equal(found[i], expected[i])
        assert torch.equal(seen[i], plain[i])


def test_configure_shares_what_was_fitted() -> None:
    robust = controlled()
    other = robust.configure(solver=Greedy())
    assert other.embeddings[0] is robust.embeddings[0]
    assert isinstance(robust.solver, PMP)
    x = inputs(robust.model, 2)
    robust.float()
    other(x.float())


def test_deepcopy_is_independent() -> None:
    robust = controlled()
    twin = copy.deepcopy(robust)
    x = inputs(robust.model, 2)
    assert torch.equal(twin(x), robust(x))
    for p in twin.model.parameters():
        p.data.zero_()
    assert not torch.equal(twin(x), robust(x))


def test_the_autoencoder_serves_all_cuts_but_the_last() -> None:
    model = build("residual", torch.float32)
    x = inputs(model, 60, torch.float32)
    robust = clcnn.control(
        model, model.cuts, embedding=clcnn.AutoencoderEmbedding(epochs=2), solver=PMP(iterations=2)
    ).fit(x)
    kinds = [type(E).__name__ for E in robust.embeddings]
    assert kinds == ["AutoencoderEmbedding"] * 4 + ["LinearEmbedding"]
    solution = robust.solve(x[:3])
    assert (solution.J <= robust.configure(solver=PMP(iterations=0)).solve(x[:3]).J).all()
    robust.train()
    assert not any(m.training for E in robust.embeddings for m in E.modules() if m is not E)


def test_riccati_through_the_front_door() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double().eval()
    x = torch.rand(30, 4).double()
    robust = clcnn.control(
        model, embedding=clcnn.LinearEmbedding(rank=2), solver=Riccati(), regularization=0.1
    ).fit(x)
    slow = robust.configure(solver=PMP(iterations=500, lr=0.02, method="gradient"))
    torch.testing.assert_close(robust.solve(x).J, slow.solve(x).J, atol=1e-6, rtol=1e-4)


def test_samples_of_a_usual_cost_leave_early() -> None:
    model = build("mlp")
    robust = clcnn.control(
        model, model.cuts, embedding=clcnn.LinearEmbedding(rank=2), solver=clcnn.PMP(iterations=3)
    ).fit(inputs(model, 60, seed=2))
    clean = inputs(model, 200, seed=3)
    early = robust.leaving_early(clean, level=0.9)
    J = robust.configure(solver=clcnn.PMP(iterations=0)).solve(clean).J
    usual = torch.quantile(J, 0.9) >= J
    assert early.solver.tolerance == pytest.approx(float(J.quantile(0.9)))
    assert torch.equal(early.solve(clean).steps == 0, usual)
    assert early.solver.iterations == 3
    with pytest.raises(clcnn.SolveError, match="iterative"):
        robust.configure(solver=clcnn.Greedy()).leaving_early(clean)
    with pytest.raises(clcnn.SolveError, match="level"):
        robust.leaving_early(clean, level=95)


@pytest.mark.parametrize("solver", [Greedy(), Greedy(c=0.3), Reactive(), PMP(iterations=2)])
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_a_call_gives_bitwise_the_logits_of_solve(name: str, solver: clcnn.Solver) -> None:
    model = build(name)
    robust = clcnn.control(
        model, model.cuts, embedding=clcnn.LinearEmbedding(rank=2), solver=solver
    ).fit(inputs(model, 40, seed=2))
    x = inputs(model, 5)
    assert torch.equal(robust(x), robust.solve(x).logits)
    huge = x.clone()
    huge[2] = 1e300  # its squares overflow, its control may as well
    assert torch.equal(robust(huge), robust.solve(huge).logits)


def test_a_policy_projects_once_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("mlp")
    robust = clcnn.control(
        model, model.cuts, embedding=clcnn.LinearEmbedding(rank=2), solver=Greedy()
    ).fit(inputs(model, 40, seed=2))
    calls = []
    for name in ("residual", "energy"):
        plain = getattr(clcnn.LinearEmbedding, name)
        monkeypatch.setattr(
            clcnn.LinearEmbedding,
            name,
            lambda self, x, name=name, plain=plain: (calls.append(name), plain(self, x))[1],
        )
    robust(inputs(model, 5))
    assert calls == ["residual"] * len(model.cuts)


def test_samples_within_the_tolerance_cost_one_forward_pass() -> None:
    model = build("mlp")
    robust = clcnn.control(
        model, model.cuts, embedding=clcnn.LinearEmbedding(rank=2), solver=PMP(iterations=5)
    ).fit(inputs(model, 40, seed=2))
    x = inputs(model, 5)
    J = robust.configure(solver=PMP(iterations=0)).solve(x).J
    easy = robust.configure(solver=PMP(iterations=5, tolerance=float(J.max())))
    seen = []
    handle = model.hidden.register_forward_hook(lambda *_: seen.append(1))
    solution = easy.solve(x)
    handle.remove()
    assert len(seen) == 1
    assert torch.equal(solution.logits, model(x))
    assert solution.statuses == [Status.TOLERANCE] * 5
    assert not solution.steps.any()
