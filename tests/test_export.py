"""Exported programs give the logits of a plain call, and say clearly what they cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import build, inputs
from torch import Tensor, nn

import clcnn
from clcnn.export import ExportError, decompositions, metadata, programs
from clcnn.export.graphs import record
from clcnn.export.straight import controlled_logits
from clcnn.solvers.base import Solver
from clcnn.types import Status

aten = torch.ops.aten


class Pooled(nn.Module):
    """A convnet with what has a derivative of its own: pools, strides, groups, activations."""

    cuts = ("input", "body", "middle", "head")
    shape = (3, 12, 12)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU(True))
        self.body = nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(4, 6, 3, 2, 1, groups=2))
        self.middle = nn.Sequential(nn.GELU(), nn.AvgPool2d(2, 1, 1), nn.Conv2d(6, 6, 3, 1, 2, 2))
        self.head = nn.Sequential(nn.SiLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten())

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.body(self.stem(x))))


def controlled(
    model: nn.Module, solver: Solver | dict[str, Solver] | None = None, **settings: Any
) -> clcnn.ControlledModule:
    dtype = next(model.parameters()).dtype
    at = settings.pop("at", list(model.cuts))
    settings.setdefault("embedding", clcnn.LinearEmbedding(rank=3))
    return clcnn.control(model, at=at, solver=solver, **settings).fit(inputs(model, 40, dtype))


def unseen(robust: clcnn.ControlledModule, n: int) -> Tensor:
    """Inputs off the manifold, each by another distance."""
    x = inputs(robust.model, n, robust.input_like.dtype, seed=7)
    noise = inputs(robust.model, n, robust.input_like.dtype, seed=8) - 0.5
    return x + torch.linspace(0, 1, n).to(x).view(-1, *[1] * (x.dim() - 1)) * noise


def straight(robust: clcnn.ControlledModule, x: Tensor) -> Tensor:
    solver = robust.solver
    if not isinstance(solver, Solver):
        solver = clcnn.solvers.per_cut.combine(solver, robust.cuts)
    with torch.no_grad():
        return controlled_logits(robust.dynamics, robust.objective, solver, x)


def pooled(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return Pooled().to(dtype).eval()


SOLVERS: dict[str, Solver] = {
    "adam": clcnn.PMP(iterations=4, lr=0.02),
    "momentum": clcnn.PMP(iterations=4, lr=0.02, method="momentum"),
    "gradient": clcnn.PMP(iterations=3, lr=0.05, method="gradient"),
    "greedy start": clcnn.PMP(iterations=3, lr=0.02, start="greedy"),
    "no iteration": clcnn.PMP(iterations=0),
    "tolerance": clcnn.PMP(iterations=4, lr=0.02, tolerance=0.5),
    "greedy": clcnn.Greedy(),
    "greedy c": clcnn.Greedy(c=0.5),
    "reactive": clcnn.Reactive(),
}


@pytest.mark.parametrize("name", ["mlp", "residual"])
@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_the_straight_program_is_the_solver(name: str, solver: Solver) -> None:
    robust = controlled(build(name), solver, regularization=0.1)
    x = unseen(robust, 9)
    torch.testing.assert_close(straight(robust, x), robust.solve(x).logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["adam", "momentum"])
def test_a_transformer_with_cuts_of_permuted_memory(method: Any) -> None:
    robust = controlled(build("vit"), clcnn.PMP(iterations=3, lr=0.02, method=method))
    x = unseen(robust, 5)
    torch.testing.assert_close(straight(robust, x), robust.solve(x).logits, rtol=0, atol=1e-10)


def test_each_sample_keeps_its_own_best_iterate() -> None:
    # Steps of this length help samples far from the manifold and harm those near it.
    robust = controlled(build("mlp"), clcnn.PMP(iterations=3, lr=0.15))
    x = unseen(robust, 24)
    solution = robust.solve(x)
    assert {Status.ITERATIONS, Status.UNCONTROLLED} <= set(solution.statuses)
    torch.testing.assert_close(straight(robust, x), solution.logits, rtol=0, atol=1e-10)


@pytest.mark.parametrize("lr", [1e3, 1e200])
def test_absurd_steps_leave_the_plain_network(lr: float) -> None:
    robust = controlled(build("residual"), clcnn.PMP(iterations=3, lr=lr, method="gradient"))
    x = unseen(robust, 4)
    with torch.no_grad():
        plain = robust.model(x)
    assert torch.equal(robust.solve(x).logits, plain)
    torch.testing.assert_close(straight(robust, x), plain, rtol=0, atol=1e-12)


def test_solvers_that_differ_by_cut() -> None:
    model = build("mlp")
    each = {
        cut: clcnn.PMP(iterations=2, lr=lr, method=method)
        for cut, lr, method in zip(
            model.cuts, (0.01, 0.02, 0.1), ("adam", "momentum", "gradient"), strict=True
        )
    }
    robust = controlled(model, each)
    x = unseen(robust, 5)
    torch.testing.assert_close(straight(robust, x), robust.solve(x).logits, rtol=0, atol=1e-10)


def test_what_passes_around_a_cut_is_replayed() -> None:
    robust = controlled(
        build("residual"),
        clcnn.PMP(iterations=2, lr=0.02),
        at=["input", "layer1.conv2"],
        allow_bypass=True,
    )
    x = unseen(robust, 5)
    torch.testing.assert_close(straight(robust, x), robust.solve(x).logits, rtol=0, atol=1e-10)


CONVOLUTIONS = {
    "plain": {"stride": 1, "padding": 1},
    "strided": {"stride": (2, 3), "padding": (1, 0)},
    "dilated": {"stride": 2, "padding": 2, "dilation": 2},
    "grouped": {"stride": 1, "padding": 0, "groups": 2},
}


@pytest.mark.parametrize("settings", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
@pytest.mark.parametrize("transposed", [False, True])
def test_derivative_of_a_convolution(settings: dict[str, Any], transposed: bool) -> None:
    torch.manual_seed(0)
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(4, 6, 3, **settings).double()
    x = torch.randn(2, 4, 11, 10, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    g = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, g)
    found, *rest = decompositions.convolution_backward(
        g,
        x.detach(),
        layer.weight.detach(),
        None,
        layer.stride,
        layer.padding,
        layer.dilation,
        transposed,
        layer.output_padding,
        layer.groups,
        (True, False, False),
    )
    assert rest == [None, None]
    torch.testing.assert_close(found, expected)


POOLS = {
    "max": (nn.MaxPool2d(3, 2, 1), aten.max_pool2d_with_indices_backward),
    "max, ceil": (nn.MaxPool2d(2, 2, ceil_mode=True), aten.max_pool2d_with_indices_backward),
    "avg": (nn.AvgPool2d(3, 2, 1), aten.avg_pool2d_backward),
    "avg, ceil": (nn.AvgPool2d(2, 2, ceil_mode=True), aten.avg_pool2d_backward),
    "avg, pad left out": (nn.AvgPool2d(3, 2, 1, True, False), aten.avg_pool2d_backward),
    "avg, divisor": (nn.AvgPool2d((3, 2), 1, divisor_override=5), aten.avg_pool2d_backward),
    "adaptive": (nn.AdaptiveAvgPool2d((4, 3)), aten._adaptive_avg_pool2d_backward),
}


@pytest.mark.parametrize(("layer", "operation"), POOLS.values(), ids=POOLS)
def test_derivative_of_a_pool_in_plain_operations(layer: nn.Module, operation: Any) -> None:
    def gradient(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = layer(leaf)
            return torch.autograd.grad(y.square().sum(), leaf)[0]

    # Rounded, so that some windows have several largest entries.
    x = (3 * torch.rand(2, 3, 11, 9, generator=torch.Generator().manual_seed(1))).round().double()
    graph = record(gradient, x, {}, any_batch=True)
    assert operation.default not in {node.target for node in graph.graph.nodes}
    torch.testing.assert_close(graph(x), gradient(x))
    torch.testing.assert_close(graph(x[:1]), gradient(x[:1]))


def test_batch_norm_of_eval_mode_alone_is_rewritten() -> None:
    torch.manual_seed(0)
    x, ones = torch.randn(3, 4, 2, 2), torch.ones(4)
    mean, variance = torch.randn(4), torch.rand(4)
    found = decompositions.batch_norm(x, None, None, mean, variance, False, 0.1, 1e-5)[0]
    torch.testing.assert_close(found, nn.functional.batch_norm(x, mean, variance))
    assert (
        decompositions.batch_norm(x, ones, ones, mean, variance, True, 0.1, 1e-5) is NotImplemented
    )


@pytest.fixture(scope="module")
def exact() -> tuple[clcnn.ControlledModule, Any]:
    """In float64, where rounding cannot hide an error; in-place layers included."""
    robust = controlled(pooled(torch.float64), clcnn.PMP(iterations=2, lr=0.02))
    return robust, robust.export()


def test_a_torch_program_gives_the_logits_for_any_batch(exact: Any) -> None:
    robust, program = exact
    for n in (1, 2, 7):
        x = unseen(robust, n)
        found = program.module()(x)
        assert not found.requires_grad
        torch.testing.assert_close(found, robust.solve(x).logits, rtol=0, atol=1e-10)


def test_weights_are_there_once_under_their_names_and_the_model_is_left_alone(exact: Any) -> None:
    robust, program = exact
    state = program.state_dict
    assert {"model.stem.0.weight", "embeddings.0.V", "embeddings.3.mean"} <= set(state)
    pointers = [value.data_ptr() for value in state.values() if value.numel()]
    assert len(pointers) == len(set(pointers))
    held = sum(value.numel() for value in state.values())
    own = sum(v.numel() for v in (*robust.parameters(), *robust.buffers()))
    assert held < 1.1 * own
    assert not any(m._forward_pre_hooks for m in robust.model.modules())
    assert all(p.requires_grad for p in robust.model.parameters())


def test_a_file_holds_the_program_and_tells_what_it_is(exact: Any, tmp_path: Path) -> None:
    robust, _ = exact
    path = tmp_path / "robust.pt2"
    quick = robust.configure(solver=clcnn.Greedy())
    quick.export(path, batch=3)
    x = unseen(robust, 3)
    found = torch.export.load(path).module()(x)
    torch.testing.assert_close(found, quick.solve(x).logits, rtol=0, atol=1e-10)
    told = metadata(path)
    assert told["cuts"] == list(robust.cuts)
    assert told["solver"] == {"class": "Greedy", "settings": {"c": None}}
    assert (told["batch"], told["format"], told["clcnn"]) == (3, "torch", clcnn.__version__)
    assert (told["input_shape"], told["input_dtype"]) == ([3, 12, 12], "float64")
    assert [entry["class"] for entry in told["embeddings"]] == ["LinearEmbedding"] * 4
    assert [entry.name for entry in tmp_path.iterdir()] == ["robust.pt2"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    robust = controlled(build("mlp"), clcnn.Reactive())
    path = tmp_path / "robust.pt2"
    path.write_text("old")

    def half(program: Any, partial: Path, **_: Any) -> None:
        partial.write_text("ha")
        raise OSError("disk full")

    monkeypatch.setattr(torch.export, "save", half)
    with pytest.raises(OSError, match="disk full"):
        robust.export(path)
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_the_graph_is_of_the_users_own_modules_even_if_accelerated() -> None:
    robust = controlled(build("residual"), clcnn.PMP(iterations=1, lr=0.02))
    fast = robust.accelerate()
    plain, other = (
        programs._graph(subject_of(one), one.input_like.new_zeros(2, 3, 8, 8), 2)
        for one in (robust, fast)
    )
    assert [n.target for n in plain.graph.nodes] == [n.target for n in other.graph.nodes]


def subject_of(robust: clcnn.ControlledModule) -> programs.Subject:
    return programs.Subject(
        robust.dynamics,
        robust.objective,
        robust.solver,
        robust.input_shape,
        robust.input_like,
        {},
        {},
    )


def onnx_logits(model: Any, x: Tensor) -> Tensor:
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString())
    (found,) = session.run(["logits"], {"x": x.numpy()})
    return torch.from_numpy(found)


def test_onnx_runtime_gives_the_logits_for_any_batch(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    robust = controlled(pooled(torch.float32), clcnn.PMP(iterations=2, lr=0.01))
    path = tmp_path / "robust.onnx"
    robust.export(path)
    model = onnx.load(path)
    for n in (1, 6):
        x = unseen(robust, n)
        solution = robust.solve(x)
        torch.testing.assert_close(onnx_logits(model, x), solution.logits, rtol=0, atol=1e-4)
    with torch.no_grad():
        assert (robust.model(x) - solution.logits).abs().max() > 1e-3  # the control does something
    told = metadata(path)
    assert told["solver"]["settings"]["iterations"] == 2
    assert told == json.loads(next(p.value for p in model.metadata_props if p.key == "clcnn"))
    (axis, *_) = model.graph.input[0].type.tensor_type.shape.dim
    assert axis.dim_param == "batch"


def test_onnx_runtime_agrees_where_no_control_is_best() -> None:
    pytest.importorskip("onnxscript")
    robust = controlled(build("mlp", torch.float32), clcnn.PMP(iterations=2, lr=0.15))
    x = unseen(robust, 24)
    solution = robust.solve(x)
    assert {Status.ITERATIONS, Status.UNCONTROLLED} <= set(solution.statuses)
    found = onnx_logits(robust.export(format="onnx", batch=24), x)
    torch.testing.assert_close(found, solution.logits, rtol=0, atol=1e-4)


def test_onnx_of_resnet20_under_closed_form_control() -> None:
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    model = clcnn.models.weights.build("resnet20").eval()
    x = torch.rand(24, 3, 32, 32)
    cuts = ["input", "layer1", "layer2", "layer3", "head"]
    embedding = clcnn.SeparableEmbedding(rank=40)
    robust = clcnn.control(model, at=cuts, embedding=embedding, solver=clcnn.Greedy()).fit(x)
    found = onnx_logits(robust.export(format="onnx", batch=5), x[:5])
    torch.testing.assert_close(found, robust.solve(x[:5]).logits, rtol=0, atol=1e-4)


def test_a_diagonal_regularisation_needs_no_inverse_at_run_time() -> None:
    model = build("mlp")
    R = [torch.rand(n, dtype=torch.float64) for n in (6, 8, 7)]
    robust = controlled(model, clcnn.Greedy(), regularization=R)
    example = robust.input_like.new_zeros(5, 6)
    graph = programs._graph(subject_of(robust), example, None)
    assert not any("linalg" in str(node.target) for node in graph.graph.nodes)
    x = unseen(robust, 4)
    torch.testing.assert_close(graph(x), robust.solve(x).logits, rtol=0, atol=1e-10)


class Branching(nn.Module):
    cuts = ("input", "head")
    shape = (6,)

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.head = how, nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "values" and x.sum() <= 0:
            return self.head(-x)
        return self.head(x if self.how == "values" else x / len(x) * x.shape[0])


@pytest.mark.parametrize(
    ("how", "words"), [("values", "cannot be recorded"), ("size", "plain number of the batch")]
)
def test_networks_that_are_no_one_graph(how: str, words: str) -> None:
    robust = controlled(Branching(how).eval(), clcnn.PMP(iterations=1))
    with pytest.raises(ExportError, match=words):
        robust.export()


class OwnPMP(clcnn.PMP):
    pass


@pytest.mark.parametrize("solver", [clcnn.MSA(), clcnn.Riccati(), OwnPMP()])
def test_solvers_that_cannot_be_exported(solver: Solver) -> None:
    with pytest.raises(ExportError, match="expected PMP, Greedy, Reactive or Feedback"):
        controlled(build("mlp"), solver).export()


@pytest.mark.parametrize("kinds", [(clcnn.PMP, OwnPMP), (clcnn.Greedy, clcnn.Riccati)])
def test_nor_can_they_inside_a_dict_of_cuts(kinds: tuple[type[Solver], type[Solver]]) -> None:
    robust = controlled(build("mlp"), clcnn.Greedy())
    first, *rest = robust.cuts
    solvers = {first: kinds[0](), **{cut: kinds[1]() for cut in rest}}
    with pytest.raises(ExportError, match=f"found the solver {kinds[1].__name__}"):
        robust.configure(solver=solvers).export()


def test_settings_that_do_not_go(tmp_path: Path) -> None:
    robust = controlled(build("mlp"), clcnn.Greedy())
    for batch in (0, -1, 2.0, True, "any"):
        with pytest.raises(ExportError, match="batch="):
            robust.export(batch=batch)
    with pytest.raises(ExportError, match="expected 'torch' or 'onnx'"):
        robust.export(format="tflite")
    with pytest.raises(ExportError, match=r"expected the suffix \.onnx"):
        robust.export(tmp_path / "robust.pt2", format="onnx")
    with pytest.raises(ExportError, match="tells no format"):
        robust.export(tmp_path / "robust")
    with pytest.raises(FileNotFoundError, match="Make it first"):
        robust.export(tmp_path / "none" / "robust.pt2")
    with pytest.raises(ExportError, match=r"torch\.float16"):
        controlled(build("mlp"), clcnn.Greedy()).half().export()
    with pytest.raises(clcnn.FitError, match=r"before \.fit"):
        clcnn.control(build("mlp"), at=["input"]).export()
    with pytest.raises(clcnn.CutError, match="train mode"):
        robust.train().export()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxscript", None)
    with pytest.raises(ExportError, match=r"'onnxscript'.*clcnn\[export\]"):
        controlled(build("mlp"), clcnn.Greedy()).export(format="onnx")


def test_operations_that_onnx_does_not_know_are_named() -> None:
    pytest.importorskip("onnxscript")

    class Odd(nn.Module):
        cuts = ("input",)
        shape = (6,)

        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.digamma(self.head(x))

    robust = controlled(Odd().eval(), clcnn.Reactive())
    with pytest.raises(ExportError, match=r"digamma.*format='torch'"):
        robust.export(format="onnx")


def test_files_that_tell_nothing(tmp_path: Path) -> None:
    with pytest.raises(clcnn.LoadError, match="no file"):
        metadata(tmp_path / "none.pt2")
    (tmp_path / "odd.onnx").write_bytes(b"\xff\xfe not a program")
    with pytest.raises(clcnn.LoadError, match="neither a whole"):
        metadata(tmp_path / "odd.onnx")


@pytest.mark.parametrize(
    "embedding",
    [clcnn.PatchEmbedding(4, rank=8), clcnn.SeparableEmbedding(rank=9)],
    ids=["patch", "separable"],
)
def test_cheap_embeddings_serve_any_batch(embedding: clcnn.Embedding) -> None:
    robust = controlled(
        build("residual"), clcnn.PMP(iterations=2), at=["input"], embedding=embedding
    )
    program = robust.export(format="torch").module()
    for n in (2, 5):
        x = unseen(robust, n)
        torch.testing.assert_close(program(x), robust(x).detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "embedding",
    [clcnn.SpectralEmbedding(), clcnn.RefinedEmbedding((4, 4, 4), steps=2, progress=False)],
    ids=["filter", "refined"],
)
def test_feedback_control_serves_any_batch(embedding: clcnn.Embedding) -> None:
    torch.manual_seed(0)
    model = Pooled().eval()
    solver = clcnn.Feedback(preset="strong", floor=0.01, authority=0.5)
    robust = controlled(model, solver, at=["input"], embedding=embedding)
    program = robust.export().module()
    for n in (1, 6):
        x = unseen(robust, n)
        assert torch.allclose(program(x), robust(x), atol=1e-5)


def test_weights_with_channels_last_are_written_whole_and_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten()).eval()
    model = model.to(memory_format=torch.channels_last)
    assert not model[2].weight.is_contiguous()
    x = torch.rand(30, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    robust = clcnn.control(model, ["input"], solver=clcnn.Greedy()).fit(x)
    recwarn.clear()
    robust.export(tmp_path / "a.pt2")
    assert not [str(w.message) for w in recwarn if "complete tensor" in str(w.message)]
    again = torch.export.load(tmp_path / "a.pt2").module()
    assert torch.allclose(again(x), robust(x), atol=1e-5)
