"""Any embedding, with one variance for all that it leaves over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Self

import torch
from torch import Tensor

from clcnn.embeddings.base import Embedding, check_saved
from clcnn.embeddings.linear import LinearEmbedding
from clcnn.embeddings.orthogonal import OrthogonalEmbedding
from clcnn.embeddings.separable import chunks, held
from clcnn.embeddings.spectrum import QUANTILE, Levels, Spectrum
from clcnn.embeddings.streams import Part, States, check_fitted, check_state, held_out
from clcnn.errors import DataError, FitError

_FEWEST = 10  # samples below which nothing can be held out


class TailEmbedding(Spectrum):
    """E(x) = x + n(x) / (tail + n(x)) r(x), r(x) = F(x) - x for any embedding F given as ``of``.

    What F keeps is left alone (lambda infinite there); what it leaves over, r, has on clean states
    the variance ``tail`` in each of the q d directions that r can show. So a sample's white level
    is s = ||r||^2 / (q d) - tail, at least 0, and n = s. `Feedback` steers by it with a strength;
    with n infinite it is the greedy control of F.

    F is fitted on all but a share ``holdout`` of the states, drawn from ``seed``; tail and levels
    are measured on that share, as a fit keeps more of its own states than of new ones. q is the
    share of white noise that r shows: (d - rank) / d for an orthogonal projection, else measured
    with a little noise.

    Learned, beside what F learns: ``tail`` (), ``visible`` () = q, ``clean_level`` (), the 95 %
    quantile of s over held-out states, and ``variance`` (), the mean variance of a coordinate.
    """

    tail: Tensor
    visible: Tensor
    variance: Tensor

    def __init__(
        self,
        of: Embedding | None = None,
        holdout: float = 0.2,
        memory: int = 2**31,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if isinstance(of, Spectrum):
            raise DataError(
                f"found of={type(of).__name__}; expected an embedding without levels of its own, "
                "such as LinearEmbedding(). Use that one as it is."
            )
        if of is not None and not isinstance(of, Embedding):
            raise DataError(
                f"found of={of!r}; expected an embedding, such as LinearEmbedding(energy=0.99)."
            )
        if not (isinstance(holdout, float) and 0 < holdout < 1):
            raise DataError(f"found holdout={holdout!r}; expected a share between 0 and 1.")
        self.of = LinearEmbedding() if of is None else of
        self.holdout = holdout
        self.memory = memory
        self.seed = seed
        self.shape_: tuple[int, ...] | None = None
        for name in ("tail", "visible", "variance", "clean_level"):
            self.register_buffer(name, None)

    def for_cut(self, t: int, T: int) -> TailEmbedding:
        """A copy whose own embedding is the one for that cut."""
        return TailEmbedding(self.of.for_cut(t, T), self.holdout, self.memory, self.seed)

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Fit F on most states, and measure what it leaves over on the others."""
        with torch.inference_mode(False), torch.no_grad():
            stream = States(states)
            batches: Iterable[Tensor] = held(stream, self.memory) if stream.one_shot else stream
            n = sum(len(batch) for batch in batches)
            if n < _FEWEST:
                raise FitError(
                    f"{n} samples found, expected at least {_FEWEST}: some are held out to measure "
                    "on. Pass more data."
                )
            generator = torch.Generator().manual_seed(self.seed)
            out = held_out(n, max(2, round(self.holdout * n)), generator)
            with torch.enable_grad():  # an auto-encoder learns by gradients
                self.of = self.of.fit(Part(batches, ~out, stream.dtype)).eval()
            self.shape_ = stream.shape
            self._measure(Part(batches, out, stream.dtype), prod(stream.shape), generator)
        return self

    def _measure(self, new: Iterable[Tensor], d: int, generator: torch.Generator) -> None:
        energies: list[Tensor] = []
        total = squares = torch.zeros((), dtype=torch.float64)
        x = next(block for block in chunks(new) if len(block))
        for block in chunks(new):
            x = block if len(block) > len(x) else x
            energies.append(self.of.energy(block).double())
            rows = block.flatten(1).double()
            total, squares = total + rows.sum(0), squares + rows.square().sum()
        e = torch.cat(energies)
        q = self._share_seen(x, float(e.mean()) / d, generator) if float(e.mean()) > 0 else 0.0
        if not q * d > 0.5:  # less than a direction: what is left is rounding
            raise FitError(
                f"{type(self.of).__name__} leaves nothing over of {len(e)} held-out states; "
                "expected a residual to tell clean from perturbed by. Lower its rank or energy."
            )
        variance = (squares - total.square().sum() / len(e)) / ((len(e) - 1) * d)
        s = e / (q * d) - e.mean() / (q * d)
        found = {
            "tail": e.mean() / (q * d),
            "visible": torch.tensor(q),
            "variance": variance,
            "clean_level": s.clamp_min(0).quantile(QUANTILE),
        }
        for name, value in found.items():
            self.register_buffer(name, value.to(x))

    def _share_seen(self, x: Tensor, level: float, generator: torch.Generator) -> float:
        """q = E ||r(x + v) - r(x)||^2 / (d level), v white with variance ``level``."""
        if isinstance(self.of, OrthogonalEmbedding):
            d = x[0].numel()
            return (d - self.of.rank_) / d
        v = level**0.5 * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
        moved = (self.of.residual(x + v) - self.of.residual(x)).flatten(1)
        return float(moved.double().square().mean() / level)

    @property
    def mean_variance(self) -> Tensor:
        """The variance of a coordinate of a clean state."""
        if self.shape_ is None:
            raise FitError("the TailEmbedding is not fitted; expected .fit(states) first.")
        return self.variance

    def coefficients(self, x: Tensor) -> Tensor:
        """r(x) = F(x) - x as rows (batch, d)."""
        check_fitted(self, self.shape_)
        check_state(x, self.shape_, self.tail.dtype)
        return self.of.residual(x).flatten(1)

    def levels_of(self, z: Tensor) -> Levels:
        """s = ||r||^2 / (q d) - tail, at least 0; a tail has no directions, so g = 0."""
        s = (self._spread(z) - self.tail).clamp_min(0)
        return Levels(s, torch.zeros_like(s))

    def pull(self, z: Tensor, white: Tensor, sensitive: Tensor) -> Tensor:
        """u = n / (tail + n) r, n = white + sensitive."""
        n = (white + sensitive).unsqueeze(1)
        return (z * (n / (self.tail + n))).reshape(-1, *(self.shape_ or ()))

    def departure(self, x: Tensor) -> Tensor:
        """q d (s / tail - log(1 + s / tail)): twice the log-likelihood ratio of s against none.

        The largest over s, as ||r||^2 / (q d) = tail + s; 0 where there is less of it than usual.
        """
        z = self.coefficients(x)
        ratio = self.levels_of(z).white / self.tail
        return self.visible * z.shape[1] * (ratio - torch.log1p(ratio))

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` learned for states of ``shape``."""
        inner = {k.removeprefix("of."): v for k, v in tensors.items() if k.startswith("of.")}
        own = {k: v for k, v in tensors.items() if not k.startswith("of.")}
        names = ("tail", "visible", "variance", "clean_level")
        check_saved(self, own, dict.fromkeys(names, ()), shape)
        self.of = self.of.restore(inner, shape)
        for name, value in own.items():
            self.register_buffer(name, value.clone())
        self.shape_ = tuple(shape)
        return self

    def extra_repr(self) -> str:
        """The state's shape, once fitted."""
        return "not fitted" if self.shape_ is None else f"states of shape {self.shape_}"

    def _spread(self, z: Tensor) -> Tensor:
        return z.square().sum(1) / (self.visible * z.shape[1])
