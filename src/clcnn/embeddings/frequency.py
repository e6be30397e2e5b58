"""A basis for each spatial axis of a state, and one of its own for every block of frequencies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from clcnn.embeddings.blocks import (
    Run,
    arrange,
    from_blocks,
    from_spectrum,
    multiply,
    spectrum,
    to_blocks,
)
from clcnn.embeddings.orthogonal import (
    OrthogonalEmbedding,
    fix_signs,
    rank_rule,
    warn_arbitrary,
)
from clcnn.embeddings.patch import check_divides, check_size
from clcnn.embeddings.principal import drop_rounding
from clcnn.embeddings.separable import check_rank, chunks, first_pass
from clcnn.embeddings.streams import check_fitted


class FrequencyEmbedding(OrthogonalEmbedding):
    """E(x) = mean + U P U'(x - mean), U = I x U_2 x ... x U_K, P = V_g V_g' on each block g.

    A state is (C, n_2, ..., n_K), such as an image's (C, H, W). U_k holds the eigenvectors of the
    covariance along axis k, by falling eigenvalue: for natural images and the states they cause
    these are waves of rising frequency. Frequencies that are neighbours, ``block`` along each axis,
    are taken together with all their channels: s = C block^(K-1) coefficients of U'(x - mean),
    whose principal directions make V_g. Of the directions of all blocks those of the largest
    variance are kept, r of them by one of (``energy=0.99`` if none is given):

    - ``rank``: r itself;
    - ``energy``: the smallest r whose directions have that share of the variance of all.

    Where the statistics of a state are alike at all its places, frequencies far apart are
    uncorrelated, and this is nearly the full basis: at 2 (n_2 + ... + n_K) multiply-adds a feature
    for U, at most s for P, and from far fewer samples, as a block has but s coefficients.
    `fit` reads the states twice; those of an iterator are kept, up to ``memory`` bytes.

    Learned: ``basis_2`` ... ``basis_K`` (n_k, m_k), without blocks in which nothing is kept; ``V``
    (s, r), the directions by falling variance; ``block_at`` (r,), the block of each as a position
    in (m_2 / block, ..., m_K / block); ``variances`` (r,).
    """

    V: Tensor
    block_at: Tensor
    variances: Tensor
    # Follow from V and block_at:
    order: Tensor  # (G,), the blocks, those of one `Run` side by side
    back: Tensor  # (G,), where in `order` each block is
    packed: Tensor  # (rows, s), the directions that each block of each run is multiplied by

    def __init__(
        self,
        block: int = 4,
        rank: int | None = None,
        energy: float | None = None,
        memory: int = 2**31,
    ) -> None:
        super().__init__(rank_rule(rank, energy))
        self.block = check_size(block, "block")
        self.memory = memory
        self._runs: list[Run] = []
        for name in ("V", "block_at", "variances"):
            self.register_buffer(name, None)
        for name in ("order", "back", "packed"):
            self.register_buffer(name, None, persistent=False)

    def config(self) -> dict[str, Any]:
        """The constructor arguments."""
        return {"block": self.block, self.rule.kind: self.rule.value, "memory": self.memory}

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Find the bases, then the covariance of every block, in float64."""
        with torch.inference_mode(False), torch.no_grad():
            stream, batches, moments = first_pass(states, self.memory)
            n, d = moments.n, moments.mean.numel()
            check_divides(stream.shape, self.block, "block")
            check_rank(self.rule, d)
            bases = [fix_signs(torch.linalg.eigh(S)[1].flip(1)) for S in moments.modes[1:]]
            s = stream.shape[0] * self.block ** len(bases)
            covariances = moments.mean.new_zeros(d // s, s, s)
            for some in chunks(batches):
                z = to_blocks(spectrum(some - moments.mean, bases), self.block)
                covariances.baddbmm_(z.mT, z, alpha=1 / (n - 1))
            rising, U = torch.linalg.eigh(covariances)
            variances, at = torch.sort(rising.flatten(), descending=True, stable=True)
            variances = drop_rounding(variances, n, d)
            r = self.rule.choose(variances)
            assert r is not None  # all variances are given, and the rank was checked
            V = fix_signs(U.movedim(1, 0).flatten(1)[:, at[:r]])
            self.shape_ = stream.shape
            self.mean = moments.mean.flatten().to(stream.dtype)
            explained = float(variances[:r].sum() / variances.sum())
            self.explained = self._scalar(explained, stream.dtype)
            self.n_samples = self._scalar(n, torch.int64)
            self._take(bases, V, at[:r] // rising.shape[1], variances[:r])
        warn_arbitrary(r, int((self.variances == 0).sum()))
        return self

    def _take(
        self, bases: Sequence[Tensor], V: Tensor, block_at: Tensor, variances: Tensor
    ) -> None:
        """Keep the directions V, and of each basis only the frequencies of their blocks."""
        dtype, b = self.mean.dtype, self.block
        indices = torch.unravel_index(block_at, [basis.shape[1] // b for basis in bases])
        block_at = torch.zeros_like(block_at)
        for k, (basis, index) in enumerate(zip(bases, indices, strict=True), start=2):
            used, index = torch.unique(index, return_inverse=True)
            columns = basis.reshape(len(basis), -1, b)[:, used].flatten(1)
            self.register_buffer(f"basis_{k}", columns.to(dtype).contiguous())
            block_at = block_at * len(used) + index
        self.V = V.to(dtype).contiguous()
        self.block_at = block_at
        self.variances = variances.to(dtype)
        self._arrange()

    def _arrange(self) -> None:
        self._runs, order, self.packed = arrange(self._by_block())
        self.order = torch.tensor(order, device=self.V.device)
        self.back = torch.argsort(self.order)

    def _by_block(self) -> Sequence[Tensor]:
        """V_g (s, k_g) for each block."""
        kept = torch.bincount(self.block_at, minlength=prod(self._grid())).tolist()
        return torch.split(self.V[:, self._sorted()], kept, dim=1)

    def _sorted(self) -> Tensor:
        return torch.argsort(self.block_at, stable=True)

    def _grid(self) -> list[int]:
        """How many blocks of frequencies each spatial axis has."""
        return [basis.shape[1] // self.block for basis in self._bases()]

    def _bases(self) -> list[Tensor]:
        assert self.shape_ is not None
        return [self.get_buffer(f"basis_{k}") for k in range(2, len(self.shape_) + 1)]

    def _tensors(
        self, found: Mapping[str, tuple[int, ...]], shape: tuple[int, ...]
    ) -> dict[str, tuple[int, ...]]:
        (r,) = found.get("block_at", ())[:1] or (0,)
        s = shape[0] * self.block ** (len(shape) - 1)
        bases = {
            f"basis_{k}": (n, found.get(f"basis_{k}", (0, 0))[-1])
            for k, n in enumerate(shape[1:], start=2)
        }
        vectors = {"mean": (prod(shape),), "block_at": (r,), "variances": (r,)}
        return bases | vectors | {"V": (s, r), "explained": (), "n_samples": ()}

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` learned for states of ``shape``."""
        super().restore(tensors, shape)
        self._arrange()
        return self

    def truncated(self, rank: int) -> Self:
        """The ``rank`` directions of the largest variance."""
        other = self._with_fewer(rank, self.variances, rank)
        other._take(self._bases(), self.V[:, :rank], self.block_at[:rank], self.variances[:rank])
        return other

    @property
    def rank_(self) -> int:
        """r, the number of directions kept."""
        check_fitted(self, self.shape_)
        return len(self.block_at)

    @property
    def multiply_adds_(self) -> int:
        """Twice the products along all spatial axes, and twice those in all blocks."""
        check_fitted(self, self.shape_)
        sizes, total = list(self.shape_ or ()), 0
        for k in range(len(sizes) - 1, 0, -1):
            m = self.get_buffer(f"basis_{k + 1}").shape[1]
            total += prod(sizes) * m
            sizes[k] = m
        return 2 * (total + self.packed.numel())

    def basis(self) -> Tensor:
        """U's columns times V, (d, r)."""
        check_fitted(self, self.shape_)
        G, r = prod(self._grid()), self.rank_
        z = self.V.new_zeros(G, r, len(self.V))
        z[self.block_at, torch.arange(r, device=z.device)] = self.V.T
        return self._from_blocks(z).T

    def extra_repr(self) -> str:
        """The rule, the rank it gave and the blocks."""
        fitted = "" if self.shape_ is None else f" in {prod(self._grid())} blocks of {len(self.V)}"
        return f"block={self.block}, {super().extra_repr()}{fitted}"

    def _to_blocks(self, y: Tensor) -> Tensor:
        """U'y for rows y, its blocks first: (G, batch, s)."""
        return to_blocks(spectrum(y.reshape(-1, *(self.shape_ or ())), self._bases()), self.block)

    def _from_blocks(self, z: Tensor) -> Tensor:
        """U z as rows, for z (G, batch, s)."""
        return from_spectrum(from_blocks(z, self._grid(), self.block), self._bases()).flatten(1)

    def _coefficients(self, y: Tensor) -> Tensor:
        blocks = zip(self._to_blocks(y), self._by_block(), strict=True)
        z = torch.cat([z_g @ V_g for z_g, V_g in blocks], dim=1)
        return z[:, torch.argsort(self._sorted())]

    def _project(self, y: Tensor) -> Tensor:
        z = self._to_blocks(y).index_select(0, self.order)
        z = multiply(z, self._runs, self.packed).index_select(0, self.back)
        return self._from_blocks(z).reshape(y.shape)

    def _reject_(self, y: Tensor) -> Tensor:
        return self._project(y).sub_(y)
