"""One pass, and as much control as each sample needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

import torch
from torch import Tensor

from clcnn.dynamics.base import INPUT
from clcnn.embeddings.base import Embedding
from clcnn.embeddings.spectrum import CEILING, KNEE, SUSPICION, Levels, Preset, Spectrum
from clcnn.errors import SolveError
from clcnn.solvers.base import FeedbackSolver
from clcnn.solvers.problem import Policy, Problem

PRESETS = ("default", "strong")
PresetName = Literal["default", "strong"]


@dataclass(frozen=True)
class Feedback(FeedbackSolver):
    """u_t = argmin_u sum_i (z_i + u_i)^2 / lambda_i + u_i^2 / n_i: u_i = -n_i z_i/(lambda_i+n_i).

    In the basis of a `SpectralEmbedding` (or with one lambda for all that an embedding leaves
    over, `TailEmbedding`): z_i are the state's coefficients, lambda_i their clean
    variances, and n_i = s + k_i G the perturbation's, by the levels s and g that the embedding
    estimates from this very sample. A clean sample shows none and, without a floor, is left alone;
    a perturbed one is pulled towards the clean spectrum, most where the network is sensitive (k_i).

    A perturbation that was searched for does more harm than noise of its size. So the sensitive
    level is taken ``strength`` times larger than it looks,

        G = b / (1 + b / (ceiling mean(lambda))),
        b = strength (g + suspicion s / (1 + (s / (knee^2 clean level))^2)),

    where a white level of about the clean ones' counts as a sign of more, and a much larger one,
    which is honest noise, does not. ``ceiling`` bounds the authority: however large the levels
    that an attacker feigns, the pull along a direction is less than
    (w + k_i c) / (lambda_i + w + k_i c), c = ceiling mean(lambda), w = s or the floor; what a
    `RefinedEmbedding` adds is not in that bound. ``trust`` bounds every |u_i| in the state's own
    coordinates, whatever it comes from.

    ``floor`` (a share of mean(lambda), too) is a white level that is assumed in every sample,
    n_i = a (max(s, floor mean(lambda)) + k_i G): an attacker who keeps out of sight meets it all
    the same. ``authority`` is a: left out, 1 at inner cuts, and at the input the embedding's own,
    near 1 where the network goes by directions that clean states hardly use, near 0 where it goes
    by those that make the picture (as after adversarial training): there an attacker who feigns
    high levels would turn the control against it.

    With several cuts the levels are found at each of them; with ``carry`` they are found at the
    first one alone and taken on in proportion, s_t / mean(lambda_t) = s_0 / mean(lambda_0) and g
    alike: what was controlled at one cut no longer shows at the next. That needs one solver for
    all cuts: of several, each finds its own.

    The quadratic problem that it solves has weights of its own, lambda and n: the objective's
    ``regularization`` and ``weights`` have no part in u, only in the J that `solve` reports.

    ``strength`` is the knob: 0 leaves the white level alone (and the floor), more costs clean
    accuracy and buys robustness. Strength and floor, left out, are the ``preset``'s, as the kind of
    embedding has it (`Spectrum.presets`): "default" loses at most a point of clean accuracy, of the
    network they were chosen for; "strong" does most against perturbations.
    """

    strength: float | None = None
    preset: PresetName = "default"
    suspicion: float = SUSPICION
    knee: float = KNEE
    ceiling: float = CEILING
    floor: float | None = None
    trust: float | None = None
    authority: float | None = None
    carry: bool = False

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise SolveError(
                f"found preset={self.preset!r}; expected one of {', '.join(map(repr, PRESETS))}."
            )
        for name in ("strength", "suspicion", "floor"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 <= value < float("inf")):
                hint = f" Did you mean Feedback(preset={value!r})?" if value in PRESETS else ""
                raise SolveError(f"found {name}={value!r}; expected a number of at least 0.{hint}")
        for name in ("knee", "ceiling", "trust"):
            value = getattr(self, name)
            if value is None and name == "trust":
                continue
            if not (_is_number(value) and 0 < value < float("inf")):
                raise SolveError(f"found {name}={value!r}; expected a number above 0.")
        a = self.authority
        if a is not None and not (_is_number(a) and 0 <= a <= 1):
            raise SolveError(f"found authority={a!r}; expected a share from 0 to 1.")
        if not isinstance(self.carry, bool):
            raise SolveError(f"found carry={self.carry!r}; expected True or False.")

    def policy(self, problem: Problem) -> Policy:
        """The pull at every cut, by the sample's levels there."""
        first: tuple[int, Spectrum, Levels] | None = None

        def pi(t: int, x: Tensor) -> Tensor:
            nonlocal first
            embedding = _spectrum(problem.objective.embeddings[t], problem.dynamics.cuts[t])
            z = embedding.coefficients(x)
            if self.carry and first is not None and t > first[0]:
                levels = _carried(first[2], first[1], embedding)
            else:
                levels = embedding.levels_of(z)
                first = t, embedding, levels
            floor = self.preset_for(embedding).floor
            share = self.authority_at(problem.dynamics.cuts[t], embedding)
            white = share * torch.maximum(levels.white, floor * embedding.mean_variance)
            sensitive = share * self.taken_for(levels, embedding)
            u = embedding.refine(x, embedding.pull(z, white, sensitive), white + sensitive)
            return u if self.trust is None else u.clamp(-self.trust, self.trust)

        return pi

    def check(self, cuts: Sequence[str], embeddings: Sequence[Embedding]) -> None:
        """Every embedding must be a `Spectrum`."""
        for cut, embedding in zip(cuts, embeddings, strict=True):
            _spectrum(embedding, cut)

    def authority_at(self, cut: str, embedding: Spectrum) -> Tensor | float:
        """a at a cut: the one given, else the embedding's own at the input, and 1 behind it."""
        if self.authority is not None:
            return self.authority
        return embedding.authority if cut == INPUT else 1.0

    def remarks(self, cuts: Sequence[str], embeddings: Sequence[Embedding]) -> list[str]:
        """That the control holds back, where it does."""
        said = []
        for cut, embedding in zip(cuts, embeddings, strict=True):
            if not isinstance(embedding, Spectrum):
                continue
            if (share := float(self.authority_at(cut, embedding))) < 0.5 and self.authority is None:
                said.append(
                    f"at cut {cut!r} the network goes by the directions in which clean states vary "
                    "most: control there would take away what it needs, and Feedback acts on a "
                    f"share of {share:.1g} of what it sees. Feedback(authority=1) acts on all."
                )
        return said

    def preset_for(self, embedding: Spectrum) -> Preset:
        """Strength and floor: those given, else the preset's of this kind of embedding."""
        preset = embedding.presets[self.preset]
        return Preset(
            preset.strength if self.strength is None else self.strength,
            preset.floor if self.floor is None else self.floor,
        )

    def taken_for(self, levels: Levels, embedding: Spectrum) -> Tensor:
        """G(s, g), the sensitive level that is acted upon: (batch,)."""
        strength = self.preset_for(embedding).strength
        return embedding.taken_for(levels, strength, self.suspicion, self.knee, self.ceiling)


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _carried(levels: Levels, of: Spectrum, to: Spectrum) -> Levels:
    """The same shares of the clean variance at another cut."""
    grown = to.mean_variance / of.mean_variance
    return Levels(levels.white * grown, levels.sensitive * grown)


def _spectrum(embedding: object, cut: str) -> Spectrum:
    if not isinstance(embedding, Spectrum):
        raise SolveError(
            f"found a {type(embedding).__name__} at cut {cut!r}; Feedback needs to know how far "
            "clean states reach beside it. Fit with embedding=clcnn.SpectralEmbedding(), or with "
            "clcnn.TailEmbedding(of=...) around this one, or use Greedy at this cut, or PMP."
        )
    return embedding
