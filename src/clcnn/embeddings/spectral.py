"""The whole spectrum of clean states, and how strongly a sample departs from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Self

import torch
from torch import Tensor

from clcnn.embeddings.base import check_saved
from clcnn.embeddings.orthogonal import fix_signs
from clcnn.embeddings.separable import along, chunks, first_pass
from clcnn.embeddings.spectrum import QUANTILE, Levels, Spectrum
from clcnn.embeddings.streams import check_fitted, check_state
from clcnn.errors import DataError, FitError

_ROUNDING = 2.0**-23  # of float32, whatever the dtype: a control that is moved stays what it was
_EMPTY = 100.0  # times the rounding that fills an empty direction
_SOMETHING = 1e-8  # of the mean variance: more than rounding, less than any level that matters
_LITTLE = 1e-4  # of the mean variance, for an empty direction: inverse squares stay finite
_ROUNDS = 6  # of Fisher scoring: enough for levels up to the clean variances
_OVERLAP = 1.5  # at the input, between networks that control helps (0.12) and harms (2.3, 5.7)
_OUTLIER = 9.0  # a squared coefficient's excess counts for no more than that of the expected one


class SpectralEmbedding(Spectrum):
    """E(x) = mean + U diag(lambda / (lambda + n(x))) U'(x - mean),  n_i(x) = s(x) + k_i g(x).

    U is one orthonormal basis for each axis of the state (as in `SeparableEmbedding`), all of it;
    lambda_i is the clean variance of the coefficient z_i of U'(x - mean), k_i (mean 1) the
    network's sensitivity along it, the mean square of the unit gradients that `hear` is told of.
    The levels s and g are estimated from the sample alone: the coefficients are taken as Gaussian
    with variance lambda_i + s + k_i g, and s, g >= 0 found by maximum likelihood (Fisher scoring,
    the excess of z_i^2 over lambda_i counting for no more than nine times what is expected;
    directions that neither clean states nor this one uses do not count). So E(x) is the mean of
    the clean state given x: nearly x itself where nothing departs from the clean spectrum.

    `Feedback` steers by the same model, with a strength.

    Learned: ``mean`` (d,), ``basis_1`` ... ``basis_K`` (n_k, n_k), ``variances`` (d,),
    ``sensitivity`` (d,), and ``clean_level`` (), the 95 % quantile of s over the fitted states.
    States of an iterator are kept, up to ``memory`` bytes.
    """

    mean: Tensor
    variances: Tensor
    sensitivity: Tensor
    wants_gradients = True

    def __init__(self, memory: int = 2**31) -> None:
        super().__init__()
        if not (isinstance(memory, int) and memory >= 1):
            raise DataError(f"found memory={memory!r}; expected a number of bytes, at least 1.")
        self.memory = memory
        self.shape_: tuple[int, ...] | None = None
        for name in ("mean", "variances", "sensitivity", "clean_level"):
            self.register_buffer(name, None)

    def fit(self, states: Iterable[Tensor]) -> Self:
        """Find the bases, the variance of every coefficient and the level of clean states."""
        with torch.inference_mode(False), torch.no_grad():
            stream, batches, moments = first_pass(states, self.memory)
            n = moments.n
            self.shape_ = stream.shape
            for k, S in enumerate(moments.modes, start=1):
                basis = fix_signs(torch.linalg.eigh(S)[1].flip(1)).to(stream.dtype)
                self.register_buffer(f"basis_{k}", basis.contiguous())
            self.mean = moments.mean.flatten().to(stream.dtype)
            squares = torch.zeros_like(self.mean, dtype=torch.float64)
            for block in chunks(batches):
                squares += self.coefficients(block).double().square().sum(0)
            variances = squares / (n - 1)
            # No direction is ever quite empty: the rounding of the transform fills it.
            rounding = float(variances.sum()) * _ROUNDING**2
            self.variances = variances.clamp_min(rounding).to(stream.dtype)
            self.sensitivity = torch.ones_like(self.mean)
            self._find_clean_level(batches)
        return self

    def hear(self, gradients: Iterable[Tensor], states: Iterable[Tensor]) -> Self:
        """k_i = d mean((U'g / ||g||)_i^2) over the gradients g of the network's answers on clean x.

        The clean level of ``states`` is then found again, as s depends on k.
        """
        check_fitted(self, self.shape_)
        with torch.inference_mode(False), torch.no_grad():
            squares, n = torch.zeros_like(self.mean, dtype=torch.float64), 0
            for g in gradients:
                z = self._transform(g.reshape(len(g), -1)).double()
                norms = z.square().sum(1, keepdim=True)
                told = (norms > 0).squeeze(1) & norms.isfinite().squeeze(1)
                squares += (z[told].square() / norms[told]).sum(0)
                n += int(told.sum())
            if not n:
                raise FitError(
                    "no gradient of the network at this state is finite and other than zero; "
                    "expected some. Leave this cut out if nothing behind it depends on its state; "
                    "if the loader gives its samples only once, hand over a DataLoader or tensors."
                )
            k = squares * (squares.numel() / n)
            self.sensitivity = k.to(self.mean.dtype)
            self._find_clean_level(states)
        return self

    def _find_clean_level(self, states: Iterable[Tensor]) -> None:
        levels = torch.cat([self.levels(block).white for block in chunks(states)])
        self.clean_level = levels.double().quantile(QUANTILE).to(self.mean.dtype)

    def coefficients(self, x: Tensor) -> Tensor:
        """z = U'(x - mean), shape (batch, d)."""
        check_fitted(self, self.shape_)
        if x.dtype in (torch.float16, torch.bfloat16):
            raise DataError(
                f"found {x.dtype} states; expected float32 or float64: levels are found by the "
                "inverse squares of small variances, of which that dtype has too few digits. "
                "Convert the network and its inputs."
            )
        check_state(x, self.shape_, self.mean.dtype)
        return self._transform(x.flatten(1) - self.mean)

    def levels_of(self, z: Tensor) -> Levels:
        """s and g from the coefficients z, the likelihood's maximum with s, g >= 0.

        Each round solves the weighted normal equations of z_i^2 - lambda_i ~ s + k_i g, with
        weights 1 / (lambda_i + s + k_i g)^2; where one level would be negative it is 0 and the
        other one is found alone.
        """
        lam, told = self._told_by(z)
        k = self.sensitivity
        shapes = torch.stack([torch.ones_like(k), k, k * k], dim=1)  # (d, 3)
        excess = z.square() - lam
        s = g = torch.zeros_like(z[:, :1])
        for round_ in range(_ROUNDS):
            expected = lam + s + k * g
            w = expected.reciprocal().square() * told
            a, b, c = torch.split(w @ shapes, 1, dim=1)
            # Before anything is known of the levels, nothing can be called an outlier.
            seen = (torch.minimum(excess, _OUTLIER * expected) if round_ else excess) * w
            p, q = torch.split(seen @ shapes[:, :2], 1, dim=1)
            det = a * c - b * b
            # Shapes that are alike (k = 1 everywhere) cannot be told apart: all is white then.
            apart = det > 1e-6 * a * c
            det = torch.where(apart, det, torch.ones_like(det))
            both_s, both_g = (c * p - b * q) / det, (a * q - b * p) / det
            alone_s, alone_g = p / a, q / c
            only_s = ~apart | (both_g < 0)
            only_g = apart & (both_s < 0) & (both_g >= 0)
            s = torch.where(only_s, alone_s, torch.where(only_g, 0.0, both_s)).clamp_min(0)
            g = torch.where(only_g, alone_g, torch.where(only_s, 0.0, both_g)).clamp_min(0)
        return Levels(s.squeeze(1), g.squeeze(1))

    def pull(self, z: Tensor, white: Tensor, sensitive: Tensor) -> Tensor:
        """u = -U diag(n / (lambda + n)) z, n_i = white + k_i sensitive, of the state's shape.

        It minimises sum_i (z_i + u_i)^2 / lambda_i + u_i^2 / n_i.
        """
        n = white.unsqueeze(1) + self.sensitivity * sensitive.unsqueeze(1)
        return -self._back(z * (n / (self.variances + n)))

    @property
    def mean_variance(self) -> Tensor:
        """mean(lambda)."""
        if self.shape_ is None:
            raise FitError("the SpectralEmbedding is not fitted; expected .fit(states) first.")
        return self.variances.mean()

    @property
    def overlap(self) -> Tensor:
        """A = mean(k lambda) / mean(lambda): how far the network looks where clean states vary.

        1 if it looks everywhere alike. Far below 1 it listens to directions that clean states
        hardly use, and a filter there costs next to nothing; above, it would take away what the
        network goes by.
        """
        check_fitted(self, self.shape_)
        return (self.sensitivity * self.variances).mean() / self.mean_variance

    @property
    def authority(self) -> Tensor:
        """a = 1 / (1 + (A / 1.5)^8), A the `overlap`."""
        return 1 / (1 + (self.overlap / _OVERLAP) ** 8)

    def departure(self, x: Tensor) -> Tensor:
        """2 log p(z | s, g) / p(z | 0, 0) = sum_i z_i^2 (1/lambda_i - 1/e_i) - log(e_i/lambda_i).

        e_i = lambda_i + s + k_i g: by how much the sample's own levels explain it better than none
        do. A z_i^2 counts for no more than 10 e_i.
        """
        z = self.coefficients(x)
        levels, (lam, told) = self.levels_of(z), self._told_by(z)
        n = levels.white.unsqueeze(1) + self.sensitivity * levels.sensitive.unsqueeze(1)
        counted = torch.minimum(z.square(), (1 + _OUTLIER) * (lam + n))
        return (told * (counted * (n / (lam * (lam + n))) - torch.log1p(n / lam))).sum(1)

    def _told_by(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Variances (d,), and 1 for each direction that tells something of z, else 0: (batch, d).

        A direction that no clean state uses (a channel that is always zero, a padded border) tells
        much if there is something in it. If there is nothing, it may be that no perturbation can
        reach it; it would say with the weight of its inverse square that there is none at all.
        """
        lam = self.variances
        mean = lam.mean()
        empty = lam <= _EMPTY * _ROUNDING**2 * lam.sum()
        told = ~empty | (z.square() > _SOMETHING * mean)
        return torch.where(empty, _LITTLE * mean, lam), told.to(z)

    def restore(self, tensors: Mapping[str, Tensor], shape: tuple[int, ...]) -> Self:
        """Take back what `fit` learned for states of ``shape``."""
        d = (prod(shape),)
        expected: dict[str, tuple[int, ...]] = {"mean": d, "variances": d, "sensitivity": d}
        expected |= {"clean_level": ()}
        expected |= {f"basis_{k}": (n, n) for k, n in enumerate(shape, start=1)}
        check_saved(self, tensors, expected, shape)
        super().restore(tensors, shape)
        self.shape_ = tuple(shape)
        return self

    def extra_repr(self) -> str:
        """The state's shape, once fitted."""
        return "not fitted" if self.shape_ is None else f"states of shape {self.shape_}"

    def _bases(self) -> list[Tensor]:
        return [self.get_buffer(f"basis_{k}") for k in range(1, len(self.shape_ or ()) + 1)]

    def _transform(self, y: Tensor) -> Tensor:
        """U'y for rows y."""
        z = y.reshape(y.shape[0], *(self.shape_ or ()))
        for k, U in enumerate(self._bases()):
            z = along(z, k, U)
        return z.flatten(1)

    def _back(self, z: Tensor) -> Tensor:
        """U z, of the state's shape."""
        y = z.reshape(z.shape[0], *(self.shape_ or ()))
        for k, U in enumerate(self._bases()):
            y = along(y, k, U.T)
        return y
