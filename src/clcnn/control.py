"""The module a user calls: a trained network under close-loop control."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from clcnn import persistence
from clcnn.checks import check_input
from clcnn.detection import Detection, calibrated, check_alpha, detect
from clcnn.dynamics.base import Dynamics
from clcnn.dynamics.hooked import HookedDynamics
from clcnn.dynamics.stand_in import Speedups
from clcnn.embeddings.auto import embedding_called
from clcnn.embeddings.base import Embedding
from clcnn.embeddings.rounded import Rounded
from clcnn.errors import CutError, DataError, FitError, GradientError, SolveError
from clcnn.fitting import device_of, fit_embeddings, hear_gradients, inspected, teach
from clcnn.gradients import GradMode, check_grad_mode, for_input_only, has_tangent, refuse_gradient
from clcnn.objective import Objective, Regularization
from clcnn.settings import check_kind, regularization_per_cut, values_per_cut, weights_per_cut
from clcnn.solvers.base import Solver
from clcnn.solvers.loop import IterativeSolver
from clcnn.solvers.per_cut import combine
from clcnn.solvers.pmp import PMP
from clcnn.solvers.problem import no_autocast
from clcnn.states import Batches, Loader, RightOnly, collect
from clcnn.types import Solution

Weights = Literal["sum", "mean"] | float | Sequence[float] | Mapping[str, float]
EmbeddingLike = Embedding | Literal["auto"] | Mapping[str, Embedding | Literal["auto"]]
RegularizationLike = float | Tensor | Sequence[Regularization] | Mapping[str, Regularization]


def control(
    model: nn.Module | Dynamics,
    at: Sequence[str] | None = None,
    *,
    embedding: EmbeddingLike | None = None,
    solver: Solver | Mapping[str, Solver] | None = None,
    regularization: RegularizationLike = 0.0,
    weights: Weights = "sum",
    grad: GradMode = "none",
    allow_bypass: bool = False,
) -> ControlledModule:
    """x_{t+1} = f_t(x_t + u_t), u = argmin sum_t w_t ||E_t(x_t+u_t) - (x_t+u_t)||^2 + u_t' R u_t.

    model: the trained network in eval mode, or a `StagedDynamics`.
    at: submodules whose input is controlled, in running order; "input" is the network's own. Left
        out: the input and every top-level child whose input is a state (see ``robust.cuts``).
    embedding: one for all cuts, or a dict with one each; "auto", as if left out, chooses for each
        the tightest projection that keeps 99 % of held-out states (see `AutoEmbedding`).
    solver: one for all cuts, or a dict with one each; `PMP()` if left out.
    regularization: the paper's R: a number, one for each cut, or a diagonal for each cut.
    weights: w_t; "sum" is the paper's 1, "mean" the authors' code's 1/d_t.
    grad: what a backward pass gives, for an attacker: "none" (an error), "straight_through" (the
        controls held constant) or "unroll" (through the solver, for the input only, once).
    allow_bypass: accept cuts around which a skip connection passes.

    Call ``.fit(clean data)`` before use.
    """
    return ControlledModule(
        model,
        at,
        embedding=embedding,
        solver=solver,
        regularization=regularization,
        weights=weights,
        grad=grad,
        allow_bypass=allow_bypass,
    )


class ControlledModule(nn.Module):
    """A network whose states are steered back to their manifolds before it answers.

    Drop-in: the same input, the same logits' shape. Made by `control`, ready after `fit`.
    """

    input_like: Tensor
    clean_scores: Tensor
    alpha: float | None

    def __init__(
        self,
        model: nn.Module | Dynamics,
        at: Sequence[str] | None = None,
        *,
        embedding: EmbeddingLike | None = None,
        solver: Solver | Mapping[str, Solver] | None = None,
        regularization: RegularizationLike = 0.0,
        weights: Weights = "sum",
        grad: GradMode = "none",
        allow_bypass: bool = False,
    ) -> None:
        super().__init__()
        check_grad_mode(grad)
        self.dynamics = _dynamics(model, at, allow_bypass)
        self.model = model if isinstance(model, nn.Module) else model.model
        # In a dict, as an unfitted prototype is not a part of this module.
        given: Embedding | Mapping[str, Embedding] = embedding_called(embedding)
        self._given = {"embedding": given}
        self.solver = PMP() if solver is None else solver
        check_kind(self.embedding, Embedding, "embedding")
        check_kind(self.solver, Solver, "solver")
        self.regularization = regularization
        self.weights = weights
        self.grad = grad
        self.allow_bypass = allow_bypass
        self.embeddings = nn.ModuleList()
        self._rounded: Rounded | None = None
        self.shapes: tuple[tuple[int, ...], ...] = ()
        self.input_shape: tuple[int, ...] = ()
        # An empty tensor that follows .to(): it tells which dtype and device inputs must have.
        self.register_buffer("input_like", torch.empty(0), persistent=False)
        self._forget_calibration()
        self.training = self.model.training
        if self.dynamics is not None:
            self._check_settings(self.dynamics.cuts)

    @property
    def embedding(self) -> Embedding | Mapping[str, Embedding]:
        """What was given to be fitted: a prototype for all cuts, or one for each."""
        return self._given["embedding"]

    @property
    def cuts(self) -> tuple[str, ...]:
        """The names of the controlled states, in running order."""
        return self._ready_dynamics().cuts

    @property
    def is_fitted(self) -> bool:
        """Whether `fit` has run."""
        return len(self.embeddings) > 0

    def fit(self, loader: Loader, *, correct_only: bool = False, memory: int = 2 * 2**30) -> Self:
        """Learn E_t at every cut from clean data; the network itself never changes.

        loader: batches x or (x, y), one tensor, or a pair (x, y) of tensors.
        correct_only: with labels, use only samples that the network gets right.
        memory: bytes of states kept at once; beyond, the network runs again for each pass.
        """
        if self.dynamics is not None and self.dynamics.rounds:
            raise FitError(
                "found a network accelerated with bfloat16=True, whose states are rounded; "
                "expected to fit on exact ones. Fit first, then accelerate."
            )
        batches = Batches(loader)
        example = batches.example()
        device = device_of(self.model)
        example = example[:2].to(device) if device is not None else example[:2]
        with torch.inference_mode(False), no_autocast(example):
            dynamics, shapes = inspected(self.dynamics or self.model, example, self.allow_bypass)
            self._check_settings(dynamics.cuts, shapes)
            states = collect(
                dynamics, batches, device=device, correct_only=correct_only, memory=memory
            )
            alone = isinstance(self.embedding, Mapping)
            prototypes = self._prototypes(dynamics.cuts)
            fitted = fit_embeddings(dynamics.cuts, prototypes, states, each_its_own=alone)
            self._one_solver_for(dynamics.cuts).check(dynamics.cuts, fitted)
            told = RightOnly(dynamics, batches, device) if correct_only else batches
            hear_gradients(dynamics, told, fitted, states, device)
            teach(dynamics, told, fitted, device)
            self.adopt(dynamics, fitted, shapes, torch.empty_like(example[:0]))
        for sentence in self.remarks():
            warnings.warn(sentence, stacklevel=2)
        return self

    def remarks(self) -> list[str]:
        """What one should know of this solver with these embeddings; often nothing."""
        if not self.is_fitted:
            raise FitError("there is nothing to remark before .fit(clean data).")
        solver = self._one_solver()
        return solver.remarks(self.cuts, _as_embeddings(self.embeddings))

    def forward(self, x: Tensor) -> Tensor:
        """The logits of x under control."""
        if has_tangent(x) and self.grad != "straight_through":
            raise GradientError(
                f"found a forward-mode derivative in x with grad={self.grad!r}, which gives none "
                "(a silent zero would look like robustness). Use reverse mode, or "
                "robust.configure(grad='straight_through')."
            )
        if self.grad == "unroll" and torch.is_grad_enabled() and x.requires_grad:
            return for_input_only(x, lambda leaf: self._answer(leaf, unroll=True))
        if self.grad == "straight_through" and has_tangent(x) and len(x):
            return self._with_controls_held(x)
        if self.grad == "straight_through" and torch.is_grad_enabled() and x.requires_grad:
            return for_input_only(x, self._with_controls_held if len(x) else self._answer)
        logits = self._answer(x)
        return refuse_gradient(logits, (x, *self.model.parameters()), self.grad)

    def _with_controls_held(self, x: Tensor) -> Tensor:
        """The logits under the controls of x, which a derivative takes for constants."""
        solution = self.solve(x)
        with no_autocast(x):
            return self._ready_dynamics().rollout(x, lambda t, state: state + solution.u[t])

    def solve(self, x: Tensor, *, unroll: bool = False) -> Solution:
        """The controls of x, their cost by cut, status, steps and logits, all per sample.

        With ``unroll`` the solution is differentiable with respect to x.
        """
        solver = self._ready_solver(x)
        return solver.solve(self._ready_dynamics(), self.working_objective, x, unroll=unroll)

    def _answer(self, x: Tensor, *, unroll: bool = False) -> Tensor:
        solver = self._ready_solver(x)
        return solver.answer(self._ready_dynamics(), self.working_objective, x, unroll=unroll)

    def calibrate(self, clean: Loader, alpha: float = 0.05) -> Self:
        """Let `detect` flag at most a share ``alpha`` of clean samples.

        clean: data like those to come, and neither fitted nor tuned on: batches x or (x, y), one
            tensor, or a pair (x, y) of tensors; at least 1/alpha - 1 samples.

        Another solver or other weights (`configure`) make another score: calibrate again then.
        """
        check_alpha(alpha)
        scores = [self.solve(self._like_inputs(x)).score for x, _ in Batches(clean)]
        self.clean_scores = calibrated(_all_of(scores), alpha)
        self.alpha = alpha
        return self

    def _like_inputs(self, x: Tensor) -> Tensor:
        """x where inputs are; bytes stay bytes, which `solve` refuses: they have another scale."""
        return x.to(self.input_like if x.is_floating_point() else self.input_like.device)

    def detect(self, x: Tensor) -> Detection:
        """p = (1 + #{i: s_i >= s(x)}) / (n + 1) over clean scores s_i; flagged where p <= alpha.

        However the score is distributed, a clean x is flagged with a probability of at most alpha:
        over the choice of the calibration data and x, if these are drawn alike.
        """
        if self.alpha is None:
            raise FitError(
                "the detector is not calibrated; expected .calibrate(clean data, alpha=0.05), with "
                "data not fitted on, after the last change of solver, weights or regularization."
            )
        return detect(self.solve(x).score, self.clean_scores, self.alpha)

    def _ready_solver(self, x: Tensor) -> Solver:
        """The solver, once it is sure that it can be asked about x."""
        if not self.is_fitted:
            raise FitError(
                "the controlled network has not been fitted; expected .fit(clean data) before the "
                "first call (or clcnn.load)."
            )
        check_input(x, self.input_shape, self.input_like)
        return self._one_solver()

    def _one_solver(self) -> Solver:
        return self._one_solver_for(self.cuts)

    def _one_solver_for(self, cuts: tuple[str, ...]) -> Solver:
        return self.solver if isinstance(self.solver, Solver) else combine(self.solver, cuts)

    @property
    def objective(self) -> Objective:
        """J."""
        R = regularization_per_cut(self.regularization, self.cuts, self.shapes)
        weights = weights_per_cut(self.weights, self.cuts, self.shapes)
        return Objective(_as_embeddings(self.embeddings), R, weights)

    @property
    def working_objective(self) -> Objective:
        """J, as the solver sees it: by embeddings in bfloat16 where it iterates and was told so."""
        exact = self.objective
        if self._rounded is None or not isinstance(self._one_solver(), IterativeSolver):
            return exact
        return replace(exact, embeddings=self._rounded.of(exact.embeddings))

    def configure(
        self,
        *,
        solver: Solver | Mapping[str, Solver] | None = None,
        regularization: RegularizationLike | None = None,
        weights: Weights | None = None,
        grad: GradMode | None = None,
    ) -> ControlledModule:
        """The same fitted network under other settings; nothing is copied or fitted again."""
        other = copy.copy(self)
        own = ("_modules", "_forward_hooks", "_forward_pre_hooks")
        other.__dict__ = {**self.__dict__, **{name: copy.copy(getattr(self, name)) for name in own}}
        other.solver = self.solver if solver is None else solver
        other.regularization = self.regularization if regularization is None else regularization
        other.weights = self.weights if weights is None else weights
        other.grad = self.grad if grad is None else grad
        check_grad_mode(other.grad)
        check_kind(other.solver, Solver, "solver")
        if not (solver is None and weights is None and regularization is None):
            other._forget_calibration()
        if other.dynamics is not None:
            other._check_settings(other.dynamics.cuts, other.shapes or None)
        return other

    def leaving_early(self, clean: Loader, *, level: float = 0.95) -> ControlledModule:
        """tolerance = the ``level`` quantile of J without control on clean data not fitted on.

        Samples whose J is no larger than that of most clean ones leave the iterations, which
        makes clean batches cheap. It also frees every attack that hardly raises J (small
        perturbations do not): measure what is left of the robustness before you rely on it.
        """
        solver = self._one_solver()
        if not isinstance(solver, IterativeSolver):
            raise SolveError(
                f"found the solver {solver!r}; only an iterative one (PMP, MSA) has iterations to "
                "leave early. Choose one with configure(solver=...)."
            )
        if not 0 < level < 1:
            raise SolveError(f"found level={level!r}; expected a share between 0 and 1.")
        idle = self.configure(solver=PMP(iterations=0))
        J = _all_of([idle.solve(self._like_inputs(x)).J for x, _ in Batches(clean)])
        return self.configure(solver=replace(solver, tolerance=float(J.double().quantile(level))))

    def accelerate(
        self,
        *,
        fold: bool = True,
        channels_last: bool = True,
        compile: bool | str = False,
        bfloat16: bool | Literal["embeddings"] = False,
    ) -> ControlledModule:
        """The same controlled network, its iterations run by a faster copy of the model.

        fold: batch norms become part of the layers before them; channels_last: the memory layout
        of 4-dimensional states; compile: the parts between the cuts go through torch.compile (True
        or a backend's name); bfloat16: the copy of the network and the products of linear and
        auto-encoder embeddings in bfloat16, or those of the "embeddings" alone, which pays where
        the processor has instructions for it; so are then J, by which iterates are compared, and
        the score: calibrate a detector again.

        Gradients agree up to rounding, which Adam can turn into a step of lr where they are nearly
        zero (in bfloat16 more often: measure it); the logits still come from your own modules. The
        copy costs the model's memory once more (with bfloat16 half of the embeddings', too) and
        follows changes of the weights, unless they are written through ``.data``, which nothing
        notices: accelerate again then.
        """
        dynamics = self._ready_dynamics()
        if not (isinstance(bfloat16, bool) or bfloat16 == "embeddings"):
            raise SolveError(f"found bfloat16={bfloat16!r}; expected True, False or 'embeddings'.")
        if not self.is_fitted:
            raise FitError("there is nothing to accelerate before .fit(clean data).")
        if not isinstance(dynamics, HookedDynamics):
            raise CutError(
                f"found a {type(dynamics).__name__}; only a network cut at its submodules can be "
                "accelerated. Compile or fold the stages yourself."
            )
        generator = torch.Generator().manual_seed(0)
        example = torch.rand((2, *self.input_shape), generator=generator).to(self.input_like)
        other = self.configure()
        speedups = Speedups(fold, channels_last, compile, bfloat16=bfloat16 is True)
        other.dynamics = dynamics.accelerated(example, speedups)
        other._rounded = Rounded() if bfloat16 else None
        if bfloat16 or self._rounded is not None:  # another J is another score
            other._forget_calibration()
        return other

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the network itself to a safetensors file; see `clcnn.load`."""
        if not self.is_fitted:
            raise FitError("there is nothing to save before .fit(clean data).")
        persistence.write(path, *self._packed())

    def export(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        format: Literal["torch", "onnx"] | None = None,
        batch: int | None = None,
    ) -> Any:
        """x -> logits under control as one program that needs neither clcnn nor the network's code.

        path: where to write it, .pt2 or .onnx; left out, it is only returned.
        format: "torch" (a `torch.export.ExportedProgram`) or "onnx" (an `onnx.ModelProto`); left
            out, the path's suffix decides, and without a path it is "torch".
        batch: the number of samples of every call; left out, any number.

        For PMP, Greedy, Reactive and Feedback. All samples take part in all iterations, and the
        best iterate is kept per sample, so that the logits are those of a plain call.
        """
        from clcnn.export import Subject, export

        if not self.is_fitted:
            raise FitError("there is nothing to export before .fit(clean data).")
        solver = self._one_solver()
        subject = Subject(
            dynamics=self._ready_dynamics(),
            objective=self.objective,
            solver=solver,
            input_shape=self.input_shape,
            input_like=self.input_like,
            tensors={**dict(self.named_parameters()), **dict(self.named_buffers())},
            header=self._packed()[0],
        )
        return export(subject, path, format=format, batch=batch)

    def extra_repr(self) -> str:
        """The settings, for repr()."""
        cuts = self.dynamics.cuts if self.dynamics is not None else "chosen by fit"
        state = "fitted" if self.is_fitted else "not fitted"
        return f"cuts={cuts}, solver={self.solver}, grad={self.grad!r}, {state}"

    def train(self, mode: bool = True) -> Self:
        """Train mode for the network, where calls are refused; embeddings always stay in eval."""
        super().train(mode)
        self.embeddings.eval()
        return self

    def adopt(
        self,
        dynamics: Dynamics,
        fitted: Sequence[Embedding],
        shapes: tuple[tuple[int, ...], ...],
        input_like: Tensor,
    ) -> None:
        """Take fitted embeddings into use."""
        self.dynamics = dynamics
        self.embeddings = nn.ModuleList(fitted)
        self.embeddings.eval()
        self.shapes = shapes
        self.input_shape = tuple(input_like.shape[1:])
        self.input_like = input_like.flatten()
        self._forget_calibration()

    def _forget_calibration(self) -> None:
        # No buffer: `configure` gives what shares the buffers a calibration of its own.
        self.clean_scores = torch.empty(0)
        self.alpha = None

    def _packed(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Header and tensors of a file that `clcnn.load` reads."""
        objective, dynamics = self.objective, self._ready_dynamics()
        header: dict[str, Any] = {
            "cuts": list(dynamics.cuts),
            "shapes": [list(shape) for shape in self.shapes],
            "input_shape": list(self.input_shape),
            "input_dtype": str(self.input_like.dtype).removeprefix("torch."),
            "allow_bypass": self.allow_bypass,
            "copied": sorted(dynamics.copied),
            "grad": self.grad,
            "weights": list(objective.weights),
            "model": type(self.model).__name__,
            "fingerprint": persistence.fingerprint(self.model),
        }
        solver = self._one_solver()
        header["alpha"] = self.alpha
        header["solver"] = persistence.pack_solver(solver)
        header["embeddings"] = [persistence.pack_embedding(E) for E in objective.embeddings]
        header["regularization"] = [
            None if isinstance(R, Tensor) else R for R in objective.regularization
        ]
        tensors = {
            f"embeddings.{t}.{name}": value
            for t, E in enumerate(objective.embeddings)
            for name, value in E.state_dict().items()
        }
        if self.alpha is not None:
            tensors["clean_scores"] = self.clean_scores
        for t, R in enumerate(objective.regularization):
            if isinstance(R, Tensor):
                tensors[f"regularization.{t}"] = R
        return header, tensors

    def _ready_dynamics(self) -> Dynamics:
        if self.dynamics is None:
            raise FitError(
                "the cuts are not chosen yet: no `at` was given, so .fit(clean data) chooses them. "
                "Call fit first, or name the cuts."
            )
        return self.dynamics

    def _prototypes(self, cuts: tuple[str, ...]) -> list[Embedding]:
        if isinstance(self.embedding, Embedding):
            return [self.embedding] * len(cuts)
        return values_per_cut(self.embedding, cuts, "embedding")

    def _check_settings(
        self, cuts: tuple[str, ...], shapes: tuple[tuple[int, ...], ...] | None = None
    ) -> None:
        """Find what does not fit the cuts before any work is done."""
        self._prototypes(cuts)
        if not isinstance(self.solver, Solver):
            combine(self.solver, cuts)
        regularization_per_cut(self.regularization, cuts, shapes)
        weights_per_cut(self.weights, cuts, shapes)


def _dynamics(
    model: nn.Module | Dynamics, at: Sequence[str] | None, allow_bypass: bool
) -> Dynamics | None:
    if isinstance(model, Dynamics):
        if at is not None and tuple(at) != model.cuts:
            raise CutError(
                f"found at={list(at)} for a dynamics whose cuts are {list(model.cuts)}. Leave `at` "
                "out: the dynamics names its own cuts."
            )
        return model
    if not isinstance(model, nn.Module):
        raise CutError(f"found a {type(model).__name__}; expected a torch.nn.Module to control.")
    if at is None:
        return None
    if isinstance(at, str):
        raise CutError(f"found at={at!r}; expected a list of names: at=[{at!r}].")
    return HookedDynamics(model, at, allow_bypass=allow_bypass)


def _all_of(values: list[Tensor]) -> Tensor:
    if not sum(map(len, values)):
        raise DataError("found no clean sample; expected a loader with some. Is it used up?")
    return torch.cat(values)


def _as_embeddings(modules: nn.ModuleList) -> list[Embedding]:
    return [module for module in modules if isinstance(module, Embedding)]
