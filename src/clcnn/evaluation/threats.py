"""The images that a defence meets: oblivious ones, or the worst that an informed attacker finds.

oblivious: made on the uncontrolled network, by an attacker who does not know of the control.
adaptive: per sample the first success of the oblivious examples and of attacks that know of the
control. So adaptive accuracy is never above oblivious accuracy, sample by sample.
"""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch
from torch import Tensor

from clcnn.attacks import (
    Attack,
    EvaluationWarning,
    ExactGradient,
    Finding,
    StraightThrough,
    Strongest,
    Unrolled,
    WorstCase,
)
from clcnn.attacks.base import is_correct
from clcnn.corruptions import Corruption
from clcnn.evaluation.cache import ExampleCache, Examples
from clcnn.evaluation.defending import Defences, Defended, fit_rooms
from clcnn.evaluation.hashing import (
    ATTACK_ROOMS,
    CORRUPTION_ROOMS,
    digest,
    digest_tensors,
    versions,
)
from clcnn.evaluation.kinds import SOLVERS, make_attack, make_corruption
from clcnn.evaluation.plan import CORRUPTION, NONE, WORST, Entry, Plan
from clcnn.evaluation.tables import PlanError
from clcnn.solvers.base import FeedbackSolver, Solver

WRAPPERS: dict[str, Callable[[Attack], Attack]] = {
    "straight_through": StraightThrough,
    "unrolled": Unrolled,
    "exact": ExactGradient,
    "itself": lambda attack: attack,
}
_BLACK_BOX = ("noise", "square", "stealth")
"""Attacks that need no gradient of the control, or bring their own view of it."""

_EXTERNAL = ("autoattack", "square")


@dataclass(frozen=True)
class Chunk:
    """Some images of a cell, attacked together, and the seed of whatever is random in that."""

    number: int
    places: Tensor
    x: Tensor
    y: Tensor
    seed: int

    @property
    def digest(self) -> str:
        """The hash of images and labels."""
        return digest_tensors(self.x, self.y)


def seed_of(seed: int, number: int) -> int:
    """A seed for each chunk, from the plan's seed and the chunk's number and nothing else."""
    return int.from_bytes(hashlib.sha256(f"{seed} {number}".encode()).digest()[:4]) >> 1


def views(plan: Plan, entry: Entry, member: str) -> tuple[str, ...]:
    """By which views an attacker who knows of the cell's defence runs one of its attacks."""
    if entry.defence == NONE or entry.threat != "adaptive":
        return ()  # no control, or none that is known of: the oblivious examples are all there is
    black_box = plan.attacks[member].kind in _BLACK_BOX
    given = plan.attacks[member].through or plan.attacks[entry.attack].through
    if given and not black_box:
        return given
    solver = SOLVERS[plan.defences[entry.defence].on(entry.network).solver.kind]
    return ways_to_know(solver, black_box=black_box)


def ways_to_know(solver: type[Solver], *, black_box: bool = False) -> tuple[str, ...]:
    """The views, by their names in `WRAPPERS`, that suit an attack on such a control."""
    if black_box:
        return ("itself",)
    return ("exact",) if issubclass(solver, FeedbackSolver) else ("straight_through", "unrolled")


def smaller_eps(plan: Plan, entry: Entry) -> tuple[float, ...]:
    """The smaller epsilons at which the plan has the same worst case, for these images and more."""
    if entry.attack == NONE or plan.attacks[entry.attack].kind != WORST:
        return ()
    alike = (e for e in plan.entries if replace(e, eps=entry.eps, n=entry.n) == entry)
    return tuple(sorted({e.eps for e in alike if e.eps < entry.eps and e.n >= entry.n}))


class Threats:
    """Makes or finds the images of every cell."""

    def __init__(self, defences: Defences, cache: ExampleCache) -> None:
        self.defences = defences
        self.cache = cache

    def settings(self, plan: Plan, entry: Entry) -> dict[str, Any]:
        """What decides a cell's images, beside network, defence and clean images."""
        if entry.attack == NONE:
            return {"threat": "none"}
        members = [self._member(plan, entry, member) for member in plan.members(entry.attack)]
        settings: dict[str, Any] = {"threat": entry.threat, "attacks": members}
        if entry.threat == "adaptive":
            through = [list(views(plan, entry, m)) for m in plan.members(entry.attack)]
            settings["through"] = through
        if smaller := smaller_eps(plan, entry):
            settings["within"] = list(smaller)
        return settings

    def images(self, plan: Plan, entry: Entry, chunk: Chunk, defended: Defended) -> Examples:
        """The images that the defence of ``entry`` meets in place of ``chunk.x``."""
        if entry.attack == NONE:
            return Examples(chunk.x, 0.0)
        members = [m for m in plan.members(entry.attack) if plan.attacks[m].kind != "stealth"]
        known = [self.oblivious(plan, entry, member, chunk) for member in members]
        is_worst = plan.attacks[entry.attack].kind == WORST
        if entry.threat == "oblivious" and len(known) == 1 and not is_worst:
            return known[0]
        return self._worst(plan, entry, chunk, defended, known)

    def oblivious(self, plan: Plan, entry: Entry, member: str, chunk: Chunk) -> Examples:
        """What one attack finds on the uncontrolled network: the same for every defence."""
        trained = self.defences.workshop.network(plan, entry.network)
        key = {
            "network": trained.fingerprint,
            "attack": self._member(plan, entry, member),
            "images": chunk.digest,
            "seed": chunk.seed,
        }

        def make() -> Examples:
            attack = self._maker(plan, entry, member, chunk)
            return timed(lambda: (attack(trained.module, chunk.x, chunk.y), None))

        return self.cache.get(key, chunk.x, make)

    def _worst(
        self,
        plan: Plan,
        entry: Entry,
        chunk: Chunk,
        defended: Defended,
        known: Sequence[Examples],
    ) -> Examples:
        """Per sample the first success: at a smaller epsilon, of the known examples, of attacks.

        What broke a sample in a smaller ball lies in this one: nothing more is spent on it.
        """
        smaller = smaller_eps(plan, entry)
        within = None
        if smaller:
            inner = self.images(plan, replace(entry, eps=smaller[-1]), chunk, defended)
            within = _verdicts(inner, smaller[-1])
        through = {member: views(plan, entry, member) for member in plan.members(entry.attack)}
        key: dict[str, Any] = {
            "defence": defended.settings,
            "network": self.defences.workshop.network(plan, entry.network).fingerprint,
            "worst of": [self._member(plan, entry, member) for member in through],
            "through": [list(names) for names in through.values()],
            "images": chunk.digest,
            "seed": chunk.seed,
        }
        if smaller:
            key["within"] = list(smaller)

        def make() -> Examples:
            attacks = [
                WRAPPERS[view](self._attack(plan, entry, member, chunk))
                for member, names in through.items()
                for view in names
            ]
            x_known = [examples.x for examples in known]
            # An attack of its own gives its own examples; of a worst case only verdicts count.
            in_full = plan.attacks[entry.attack].kind != WORST
            made = timed(lambda: worst(defended.module, chunk, x_known, attacks, in_full, within))
            found = [finding for examples in known for finding in examples.findings]
            return Examples(
                made.x,
                made.seconds + sum(examples.seconds for examples in known),
                tuple(dict.fromkeys([*found, *made.findings])),
                made.broken_by,
            )

        return self.cache.get(key, chunk.x, make)

    def _maker(self, plan: Plan, entry: Entry, member: str, chunk: Chunk) -> Attack | Corruption:
        attack = plan.attacks[member]
        if attack.kind == CORRUPTION and attack.settings is not None:
            # By the plan's seed and not the chunk's: an image is corrupted alike in any chunk.
            return make_corruption(attack.settings, severity=int(entry.eps), seed=plan.seed)
        return self._attack(plan, entry, member, chunk)

    def _attack(self, plan: Plan, entry: Entry, member: str, chunk: Chunk) -> Attack:
        attack = plan.attacks[member]
        assert attack.settings is not None
        more = {}
        if attack.embedding_of is not None:
            defence = plan.defences[attack.embedding_of].on(entry.network)
            robust = self.defences.fitted(plan, entry.network, defence)
            if robust.cuts[0] != "input":
                raise PlanError(
                    f"attack {member!r} uses the input embedding of {attack.embedding_of!r}, whose "
                    f"first cut is {robust.cuts[0]!r}; expected 'input' among its cuts."
                )
            more["embedding"] = robust.embeddings[0]
        return make_attack(
            attack.settings,
            eps=entry.eps / 255,
            norm=attack.norm,
            batch_size=len(chunk.x),
            seed=chunk.seed,
            **more,
        )

    def _member(self, plan: Plan, entry: Entry, member: str) -> dict[str, Any]:
        """What decides one attack's images on the uncontrolled network, as JSON values."""
        attack = plan.attacks[member]
        assert attack.settings is not None
        if attack.kind == CORRUPTION:
            return {
                **attack.settings.to_dict(),
                "severity": entry.eps,
                "package": _version("pillow"),
                "versions": versions(CORRUPTION_ROOMS),
            }
        settings = {
            **attack.settings.to_dict(),
            "eps": entry.eps,
            "norm": attack.norm,
            "versions": versions(ATTACK_ROOMS),
        }
        if attack.kind in _EXTERNAL:
            settings["package"] = _version("pyautoattack")
        if attack.embedding_of is not None:
            defence = plan.defences[attack.embedding_of].on(entry.network)
            settings["embedding"] = digest(self.defences.fit_key(plan, entry.network, defence))
            settings["versions"] = versions((*ATTACK_ROOMS, *fit_rooms(defence)))
        return settings


def _verdicts(inner: Examples, eps: float) -> Strongest:
    """A worst case in a smaller ball; what broke a sample is told with the epsilon, once."""
    names = [
        name
        if name is None or name == "clean" or name.startswith("eps ")
        else f"eps {eps:g}: {name}"
        for name in inner.broken_by or [None] * len(inner.x)
    ]
    robust = torch.tensor([name is None for name in names], device=inner.x.device)
    return Strongest(inner.x, robust, tuple(names))


def worst(
    model: torch.nn.Module,
    chunk: Chunk,
    known: Sequence[Tensor],
    attacks: Sequence[Attack],
    in_full: bool = False,
    within: Strongest | None = None,
) -> tuple[Tensor, list[str | None]]:
    """The first success of each sample, and what it was: "clean", "known 0", an attack's label.

    A sample that withstood everything comes back as the last of the known examples.
    """
    x_adv, by = _first_success(model, chunk, known, attacks, in_full, within)
    if known:
        withstood = torch.tensor([name is None for name in by], device=x_adv.device)
        x_adv[withstood] = known[-1][withstood]
    return x_adv, by


def _first_success(
    model: torch.nn.Module,
    chunk: Chunk,
    known: Sequence[Tensor],
    attacks: Sequence[Attack],
    in_full: bool,
    within: Strongest | None,
) -> tuple[Tensor, list[str | None]]:
    if attacks:
        worst_of = WorstCase(attacks)
        # With the oblivious examples at hand none are made again: a row called "noise" would
        # otherwise hold the PGD that a worst case adds of its own.
        find = worst_of.first_success if known else worst_of.strongest
        found = find(model, chunk.x, chunk.y, known, in_full=in_full, within=within)
        return found.x_adv, list(found.by)
    x_adv = chunk.x.clone()
    by: list[str | None] = [None] * len(x_adv)
    if within is not None:
        broken = ~within.robust
        x_adv[broken], by = within.x_adv[broken], list(within.by)
    tried = [("clean", chunk.x), *((f"known {k}", x) for k, x in enumerate(known))]
    for name, x in tried:
        right = is_correct(model, x, chunk.y).tolist()
        for place, (verdict, before) in enumerate(zip(right, by, strict=True)):
            if before is None and not verdict:
                by[place] = name
                x_adv[place] = x[place]
    return x_adv, by


def timed(run: Callable[[], tuple[Tensor, list[str | None] | None]]) -> Examples:
    """What ``run`` finds, how long it takes, and what the attack warned of."""
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x, broken_by = run()
    seconds = time.perf_counter() - began
    findings = []
    for warning in caught:
        if issubclass(warning.category, EvaluationWarning):
            check, _, sentence = str(warning.message).partition(": ")
            findings.append(Finding(check, sentence))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return Examples(x, seconds, tuple(dict.fromkeys(findings)), broken_by)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
