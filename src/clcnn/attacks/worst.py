"""The worst case over several attacks: what "adaptive accuracy" means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clcnn.attacks.adaptive import Transfer
from clcnn.attacks.base import (
    Attack,
    Checked,
    Model,
    checked_images,
    inside,
    is_correct,
    outside_inference_mode,
    parts,
    refuse_training_mode,
)
from clcnn.attacks.gradient import PGD
from clcnn.control import ControlledModule
from clcnn.errors import DataError


@dataclass(frozen=True)
class Strongest:
    """The examples of a `WorstCase`, per sample.

    ``robust`` (batch,) says which samples withstood everything; ``by`` names what broke each of
    the others: "clean", "known 0", "known 1" ..., or the label of the attack, numbered where
    several have the same ("PGD", "PGD 2"). ``x_adv`` holds what broke a sample, or the last thing
    that it withstood.
    """

    x_adv: Tensor
    robust: Tensor
    by: tuple[str | None, ...]

    @property
    def accuracy(self) -> float:
        """The share of samples that withstood everything."""
        return float(self.robust.double().mean())


@dataclass(frozen=True, init=False)
class WorstCase(Attack):
    """Per sample the first success of any of ``attacks``, in their order.

    On a controlled network the oblivious examples are always among them: if no `Transfer` from the
    plain network is given, PGD on it is tried first. So adaptive accuracy is never above oblivious
    accuracy, sample by sample; for that to hold against examples that were made elsewhere, hand
    them to `strongest` as ``known``.

    The attacker knows what the best informed of the attacks knows.
    """

    attacks: tuple[Attack, ...]

    def __init__(self, attacks: Sequence[Attack]) -> None:
        given = attacks
        attacks = () if isinstance(given, Attack) else tuple(given)
        if not attacks or not all(isinstance(attack, Attack) for attack in attacks):
            raise DataError(f"expected at least one attack in a list, got {given!r}")
        balls = sorted({f"eps {attack.eps:g} ({attack.norm})" for attack in attacks})
        if len(balls) > 1:
            raise DataError(
                f"the attacks differ in their ball: found {', '.join(balls)}, expected one eps and "
                "norm for all, as a worst case over different balls means nothing"
            )
        first = attacks[0]
        super().__init__(first.eps, norm=first.norm, batch_size=first.batch_size, seed=first.seed)
        object.__setattr__(self, "attacks", attacks)

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """All attacks, each on the samples that are left."""
        return self.strongest(inside(model), x, y, in_full=True).x_adv

    def strongest(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        known: Sequence[Tensor] = (),
        *,
        in_full: bool = False,
        within: Strongest | None = None,
    ) -> Strongest:
        """The worst case with its verdicts; examples in ``known`` are tried before any attack.

        Nothing is spent on a sample once it is beaten (`Attack.for_verdicts`). With ``in_full``
        every attack goes all its way, for who looks at more of the images than the verdicts.
        ``within`` is the worst case of the same images in a smaller ball: what broke there is
        broken here.
        """
        return self._run_all(model, x, y, known, self._attacks_on(model), in_full, within)

    def first_success(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        known: Sequence[Tensor] = (),
        *,
        in_full: bool = False,
        within: Strongest | None = None,
    ) -> Strongest:
        """As `strongest`, but with no attack beside the given ones.

        For who has the oblivious examples already, and hands them in as ``known``.
        """
        return self._run_all(model, x, y, known, self.attacks, in_full, within)

    def _run_all(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        known: Sequence[Tensor],
        attacks: Sequence[Attack],
        in_full: bool,
        within: Strongest | None,
    ) -> Strongest:
        run = attacks if in_full else [attack.for_verdicts() for attack in attacks]
        with outside_inference_mode():
            return self._first_success(model, *checked_images(x, y), known, run, within)

    def _first_success(
        self,
        model: Model,
        x: Tensor,
        y: Tensor,
        known: Sequence[Tensor],
        attacks: Sequence[Attack],
        within: Strongest | None,
    ) -> Strongest:
        refuse_training_mode(model)
        for place, x_known in enumerate(known):
            self._check_known(f"known[{place}]", x_known, x)
        x_adv = x.clone()
        robust = self._correct(model, x, y)
        by: list[str | None] = [None if right else "clean" for right in robust.tolist()]
        if within is not None:
            self._check_known("within.x_adv", within.x_adv, x)
            for place in (robust & ~within.robust).nonzero().squeeze(1).tolist():
                x_adv[place], by[place] = within.x_adv[place], within.by[place]
            robust = robust & within.robust

        def keep(name: str, places: Tensor, candidates: Tensor, right: Tensor) -> None:
            broken = places[~right]
            x_adv[places] = candidates
            robust[broken] = False
            for place in broken.tolist():
                by[place] = name

        for place, x_known in enumerate(known):
            if not robust.any():
                break
            # All samples, not only those left: the same batches as in any other evaluation of them,
            # so that no rounding can turn a success into a failure.
            right = self._correct(model, x_known, y)
            left = robust.nonzero().squeeze(1)
            keep(f"known {place}", left, x_known[left], right[left])
        for name, attack in zip(_numbered(attacks), attacks, strict=True):
            left = robust.nonzero().squeeze(1)
            if self.eps == 0 or not len(left):
                break
            candidates = attack(model, x[left], y[left])
            keep(name, left, candidates, self._correct(model, candidates, y[left]))
        return Strongest(x_adv, robust, tuple(by))

    def _attacks_on(self, model: Model) -> tuple[Attack, ...]:
        oblivious = any(isinstance(a, Transfer) and a.is_oblivious for a in self.attacks)
        if oblivious or not isinstance(inside(model), ControlledModule):
            return self.attacks
        pgd = PGD(self.eps, norm=self.norm, batch_size=self.batch_size, seed=self.seed)
        return (Transfer(pgd), *self.attacks)

    def _correct(self, model: Model, x: Tensor, y: Tensor) -> Tensor:
        target = Checked(model)
        verdicts = [is_correct(target, x[part], y[part]) for part in parts(len(x), self.batch_size)]
        return torch.cat(verdicts) if verdicts else y.new_zeros(0, dtype=torch.bool)

    def _check_known(self, name: str, x_known: Tensor, x: Tensor) -> None:
        if x_known.shape != x.shape or x_known.dtype != x.dtype:
            raise DataError(
                f"{name} has shape {tuple(x_known.shape)} and {x_known.dtype}, expected "
                f"{tuple(x.shape)} and {x.dtype}, as the images"
            )
        outside = int((~self.within(x_known, x)).sum())
        if outside:
            raise DataError(
                f"{outside} of the {len(x)} images in {name} are further than eps = "
                f"{self.eps:g} ({self.norm}) away or outside [0, 1]: expected examples of the same "
                "threat"
            )


def _numbered(attacks: Sequence[Attack]) -> list[str]:
    """Their labels, those that were there before with a number: "PGD", "PGD 2", "PGD 3"."""
    seen: Counter[str] = Counter()
    names = []
    for attack in attacks:
        seen[attack.label] += 1
        count = seen[attack.label]
        names.append(attack.label if count == 1 else f"{attack.label} {count}")
    return names
