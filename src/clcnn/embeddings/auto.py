"""Choosing a linear embedding by what it keeps of states that it was not fitted on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import gcd, prod
from typing import Any, Literal, NoReturn, get_args

import torch
from torch import Tensor

from clcnn.embeddings.base import Embedding
from clcnn.embeddings.frequency import FrequencyEmbedding
from clcnn.embeddings.linear import LinearEmbedding
from clcnn.embeddings.orthogonal import OrthogonalEmbedding, check_samples
from clcnn.embeddings.patch import PatchEmbedding, rank_step
from clcnn.embeddings.separable import SeparableEmbedding, held
from clcnn.embeddings.streams import Part, States, check_fitted, held_out
from clcnn.errors import DataError, FitError

Family = Literal["separable", "patch", "frequency", "linear"]
_FAMILIES: tuple[Family, ...] = get_args(Family)
_PATCHES = (2, 4, 8, 16)
_BLOCKS = (4, 2, 1)
_TRIED = 2  # of these, the largest that suit: a block of fewer frequencies is worse, given samples
_SIZE = 1024  # features a patch or block may have: its covariance is decomposed
_BUDGET = 256.0  # multiply-adds a feature
_CHEAP = 2**22  # multiply-adds that never are too many: a tenth of a small network's
_SMALL = 4096  # features of a state for which half of a full basis never is too dear: 2^24
_HELD_OUT = 400  # states that are enough to measure on: more are missed where the kinds are fitted
_TIE = 0.03  # ranks that differ by less are the same, and the cheaper kind wins
_NEAR = 0.08  # more directions that a full basis may have and still be taken (docs/speed.md)
_FEWEST = 10  # samples below which nothing can be held out


@dataclass(frozen=True)
class Candidate:
    """A kind of embedding, and the largest rank of it that the budget allows (None: any)."""

    name: str
    make: Callable[..., OrthogonalEmbedding]  # rank= or energy=
    limit: int | None


@dataclass(frozen=True)
class Weighed:
    """What a candidate needs to keep the energy asked for: None where it cannot."""

    kind: str
    rank: int | None
    multiply_adds: int | None
    kept: float  # of the held-out states, with that rank; the most it can keep where rank is None
    within_budget: bool


class AutoEmbedding(Embedding):
    """argmin r over kinds with kept(r) >= energy on held-out states, multiply-adds within budget.

    `fit` sets a share ``holdout`` of the states aside (at most 400, drawn from ``seed``), fits
    every kind on the others, finds for each the smallest rank that keeps ``energy`` of what was set
    aside, and of those that cost at most ``budget`` multiply-adds a feature takes the one with the
    smallest rank, the tightest manifold (the cheapest where ranks differ by less than 3 %). A full
    basis is taken even if its rank is up to 8 % larger: rank counts what is removed of white
    noise, and of what an attack adds the full basis removes more at the same energy. `fit` then
    fits that kind and rank on all states and *returns* it, with what was weighed in ``choice_``.

    The budget counts for each feature of the state, as a layer's cost does: a 3 x 3 convolution of
    c channels takes 9 c. If none is given it is 256, or as much as makes 2^22 for the whole state,
    or 2^24 for a full basis of at most 4,096 features: what is that cheap is never too dear.
    ``kinds`` narrows the choice: any of "separable", "patch" (2, 4, 8 and 16 where they divide),
    "frequency" (blocks of 4, 2 or 1: the two largest that divide) and "linear". With one alone the
    budget is not applied, so that ``kinds=["separable"]`` is `SeparableEmbedding` with its energy
    kept on held-out states.

    States that are vectors, or fewer than 10, get a `LinearEmbedding` with the rule
    ``energy``, on the fitted states. States of an iterator are kept, up to ``memory`` bytes.
    """

    def __init__(
        self,
        energy: float = 0.99,
        budget: float | None = None,
        kinds: Sequence[Family] | None = None,
        holdout: float = 0.2,
        memory: int = 2**31,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not 0 < energy <= 1:
            raise DataError(f"energy={energy} found, expected a share in (0, 1], such as 0.99.")
        if not (0 < holdout < 1 and (budget is None or budget > 0) and memory >= 1):
            raise DataError(
                f"holdout={holdout}, budget={budget}, memory={memory} found, expected a share "
                "between 0 and 1, a positive number of multiply-adds a feature, and bytes >= 1."
            )
        unknown = [kind for kind in kinds or () if kind not in _FAMILIES]
        if unknown or (kinds is not None and not kinds) or isinstance(kinds, str):
            raise DataError(
                f"kinds={kinds!r} found, expected some of {', '.join(_FAMILIES)} in a list."
            )
        self.share = energy
        self.budget = budget
        self.kinds = None if kinds is None else list(kinds)
        self.holdout = holdout
        self.memory = memory
        self.seed = seed

    def config(self) -> dict[str, Any]:
        """The constructor arguments (``energy`` is a method's name too, hence not the default)."""
        names = ("budget", "kinds", "holdout", "memory", "seed")
        return {"energy": self.share} | {name: getattr(self, name) for name in names}

    def fit(self, states: Iterable[Tensor]) -> OrthogonalEmbedding:
        """The chosen kind, fitted on all states."""
        with torch.inference_mode(False), torch.no_grad():
            stream = States(states)
            batches: Iterable[Tensor] = held(stream, self.memory) if stream.one_shot else stream
            n = sum(len(batch) for batch in batches)
            check_samples(n)
            candidates = self._candidates(stream.shape)
            choice: dict[str, Any] = {"energy": self.share, "samples": n}
            choice["budget"] = self._a_feature(prod(stream.shape))
            if self.kinds is None and (len(stream.shape) < 2 or n < _FEWEST):
                reason = f"{n} samples are too few to hold some back"
                if len(stream.shape) < 2:
                    reason = "the states are vectors"
                chosen: OrthogonalEmbedding = self._linear(energy=self.share).fit(batches)
                choice |= {"weighed": [], "picked": "linear", "why": reason}
            else:
                weighed, m = self._weigh_all(candidates, batches, n, stream)
                if not any(one.within_budget for one in weighed):
                    # Patches were given up where the budget was too small for them: now they count.
                    free = [replace(one, limit=None) for one in candidates if "patch" in one.name]
                    again, _ = self._weigh_all(free, batches, n, stream) if free else ([], m)
                    weighed = [one for one in weighed if "patch" not in one.kind] + [
                        replace(one, within_budget=False) for one in again
                    ]
                winner, reason = self._pick(weighed, m, choice["budget"])
                make = next(one.make for one in candidates if one.name == winner.kind)
                chosen = make(rank=winner.rank).fit(batches)
                choice |= {"held_out": m, "weighed": [asdict(one) for one in weighed]}
                choice |= {"picked": winner.kind, "why": reason}
        chosen.choice_ = choice
        return chosen

    def project(self, x: Tensor) -> Tensor:
        """An error: `fit` returns the embedding to use."""
        self._refuse()

    def residual(self, x: Tensor) -> Tensor:
        """An error: `fit` returns the embedding to use."""
        self._refuse()

    def energy(self, x: Tensor) -> Tensor:
        """An error: `fit` returns the embedding to use."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        check_fitted(self, None)
        raise AssertionError("an AutoEmbedding is never fitted itself")

    def _linear(self, **rule: Any) -> LinearEmbedding:
        return LinearEmbedding(**rule, memory=self.memory, seed=self.seed)

    def _separable(self, **rule: Any) -> SeparableEmbedding:
        return SeparableEmbedding(**rule, memory=self.memory)

    def _frequency(self, block: int) -> Callable[..., FrequencyEmbedding]:
        return partial(FrequencyEmbedding, block, memory=self.memory)

    def _a_feature(self, d: int, kind: str = "") -> float:
        """The budget in multiply-adds a feature, for states of d."""
        if self.budget is not None:
            return self.budget
        cheap = _SMALL**2 if kind == "linear" and d <= _SMALL else _CHEAP
        return max(_BUDGET, cheap / d)

    def _candidates(self, shape: tuple[int, ...]) -> list[Candidate]:
        """The kinds that suit states of ``shape``, cheap to fit first."""
        d = prod(shape)
        half = max(1, int(self._a_feature(d) / 2))  # of rank r there and back: 2 r a feature
        found = {"separable": [Candidate("separable", self._separable, None)], "patch": []}
        for p in _suitable(_PATCHES, shape):
            limit = half * rank_step(shape, p) if half < d // rank_step(shape, p) else None
            found["patch"].append(Candidate(f"patch {p}", partial(PatchEmbedding, p), limit))
        found["frequency"] = [
            Candidate(f"frequency {b}", self._frequency(b), None)
            for b in _suitable(_BLOCKS, shape)[:_TRIED]
        ]
        full = max(1, int(self._a_feature(d, "linear") / 2))
        found["linear"] = [Candidate("linear", self._linear, full if full < d else None)]
        listed = [one for kind in self.kinds or _FAMILIES for one in found[kind]]
        if not listed:
            raise FitError(
                f"no patch of {', '.join(map(str, _PATCHES))} divides states of shape {shape} into "
                f"several of at most {_SIZE} features, nor does a block of frequencies. Allow "
                "other kinds, or use PatchEmbedding(patch=...) or FrequencyEmbedding(block=...)."
            )
        if len(listed) == 1:
            return [Candidate(listed[0].name, listed[0].make, None)]
        return listed

    def _weigh_all(
        self, candidates: Sequence[Candidate], batches: Iterable[Tensor], n: int, stream: States
    ) -> tuple[list[Weighed], int]:
        """Each candidate on the same split, and the number m of states held out."""
        d = prod(stream.shape)
        affordable = self.memory // (8 * d * stream.dtype.itemsize)
        m = max(2, min(round(self.holdout * n), n - 2, _HELD_OUT, affordable))
        if n - m < 2:
            raise FitError(
                f"{n} samples found, expected at least 4: 2 to fit the kinds on and 2 to measure "
                "them on. Pass more data."
            )
        out = held_out(n, m, torch.Generator().manual_seed(self.seed))
        dtype = torch.promote_types(stream.dtype, torch.float32)  # half is too coarse to measure in
        x = torch.cat(list(Part(batches, out, dtype)))
        rest = Part(batches, ~out, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a full rank may well hold arbitrary directions
            return [self._weigh(one, x, rest, n - m) for one in candidates], m

    def _weigh(self, one: Candidate, x: Tensor, rest: Iterable[Tensor], n: int) -> Weighed:
        d = x[0].numel()
        most = min(n - 1, d) if one.name == "linear" else d
        limit = None if one.limit is None or one.limit >= most else one.limit
        if limit is not None:
            at_most = _at_most(one, limit, x)
            if at_most < self.share:
                return Weighed(one.name, None, None, at_most, False)
        rule = {"energy": 1.0} if limit is None else {"rank": limit}
        fitted = one.make(**rule).fit(rest)
        whole = (x.flatten(1) - fitted.mean).double().square().sum()
        curve = fitted.coefficients(x).double().square().sum(0).cumsum(0) / whole
        enough = (curve >= self.share * (1 - 1e-6)).nonzero()
        if not len(enough):
            return Weighed(one.name, None, None, float(curve[-1]), limit is None)
        step = fitted.rank_step_
        r = min(-(-(int(enough[0]) + 1) // step) * step, fitted.rank_)
        cost = fitted.truncated(r).multiply_adds_
        return Weighed(
            one.name, r, cost, float(curve[r - 1]), cost <= self._a_feature(d, one.name) * d
        )

    def _pick(self, weighed: Sequence[Weighed], m: int, budget: float) -> tuple[Weighed, str]:
        able = [one for one in weighed if one.rank is not None]
        asked = f"{self.share:g} of {m} held-out states"
        if not able:
            most = "; ".join(f"{one.kind} keeps {one.kept:.4f}" for one in weighed)
            raise FitError(
                f"no kind keeps {asked} ({most}). Fit on more samples, lower energy=, or allow "
                "kinds=['separable'], which needs few."
            )
        within = [one for one in able if one.within_budget]
        if within or len(weighed) == 1:
            least = min(one.rank or 0 for one in within or able)
            full = next((one for one in within if one.kind == "linear"), None)
            if full is not None and (full.rank or 0) <= (1 + _NEAR) * least:
                return (
                    full,
                    f"a full basis keeps {asked} within the budget, and near the least rank",
                )
            tied = [one for one in within or able if (one.rank or 0) <= (1 + _TIE) * least]
            best = min(tied, key=lambda one: one.multiply_adds or 0)
            why = f"the smallest rank that keeps {asked} within the budget"
            return best, why if best.rank == least else f"{why}, to {_TIE:.0%}, and the cheapest so"
        best = min(able, key=lambda one: one.multiply_adds or 0)
        warnings.warn(
            f"no kind keeps {asked} within budget={budget:g} multiply-adds a feature; the "
            f"cheapest found, {best.kind} of rank {best.rank}, is taken. Raise budget= for a "
            "smaller rank, or lower energy=.",
            stacklevel=3,
        )
        return best, f"the cheapest that keeps {asked}: none does within the budget"


def _at_most(one: Candidate, limit: int, x: Tensor) -> float:
    """What a kind can keep of x with ``limit`` directions: no more than its own best basis for x.

    It takes few states to rule a kind out, and often saves fitting it on many.
    """
    if (one.name == "linear" and limit >= len(x)) or not (x != x[0]).any():
        return 1.0
    own = one.make(rank=limit).fit([x]).explained_
    return 1 - (1 - own) / (1 + 5 / len(x))  # a little more, as x's mean is not the one fitted


def _suitable(sizes: Sequence[int], shape: tuple[int, ...]) -> list[int]:
    """Those that cut a state of ``shape`` into several parts, each of at most `_SIZE` features."""
    if len(shape) < 2:
        return []
    common, m = gcd(*shape[1:]), len(shape) - 1
    fits = [p for p in sizes if common % p == 0 and shape[0] * p**m <= _SIZE]
    return [p for p in fits if shape[0] * p**m < prod(shape)]


def embedding_called(given: Any) -> Any:
    """What ``embedding=`` of `clcnn.control` stands for: None and "auto" are an `AutoEmbedding`."""
    if isinstance(given, Mapping):
        return {name: AutoEmbedding() if one == "auto" else one for name, one in given.items()}
    return AutoEmbedding() if given is None or given == "auto" else given
