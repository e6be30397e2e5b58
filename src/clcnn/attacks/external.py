"""AutoAttack and Square, as the package pyautoattack has them; their warnings are passed on."""

from __future__ import annotations

import importlib
import logging
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clcnn.attacks.base import Attack, AttackError, Model
from clcnn.attacks.findings import Finding, report
from clcnn.errors import DataError

_NORMS = {"linf": "Linf", "l2": "L2"}
VERSIONS = ("standard", "plus", "rand", "custom")
PARTS = ("apgd-ce", "apgd-dlr", "apgd-t", "fab", "fab-t", "square")
_LEAST_CLASSES = {"apgd-t": 4, "apgd-dlr": 3}
"""Their losses divide by the difference to the fourth and to the third largest logit."""


@dataclass(frozen=True)
class _External(Attack):
    """What both share: the global seed is put back, and what the package warns of is kept."""

    findings: list[Finding] = field(
        default_factory=list, init=False, repr=False, compare=False
    )  # what the package flagged in all calls so far

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        """The package's attack, its flags reported as warnings and kept in ``findings``."""
        package = _package()
        devices = [x.device] if x.device.type == "cuda" else []
        with torch.random.fork_rng(devices), self._captured():
            return self.attack(package, model, x, y)

    @abstractmethod
    def attack(self, package: Any, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """Call the package."""

    @contextmanager
    def _captured(self) -> Iterator[None]:
        kept = _Kept(self.label)
        logger = logging.getLogger("auto-attack")
        counts = importlib.import_module("pyautoattack.checks").funcs
        # It never forgets a call: without this, every model after a dynamic one would be flagged.
        counts.update(dict.fromkeys(counts, 0))
        tracing = sys.gettrace()  # it switches tracing off, a debugger's and a coverage tool's too
        logger.addHandler(kept)
        try:
            yield
        finally:
            sys.settrace(tracing)
            logger.removeHandler(kept)
            new = [finding for finding in kept.findings if finding not in self.findings]
            self.findings.extend(new)
            report(new)


@dataclass(frozen=True)
class AutoAttack(_External):
    """APGD on cross-entropy and targeted DLR, targeted FAB, Square (Croce and Hein), in turn.

    ``version`` is "standard", "plus", "rand" (gradients averaged over 20 calls, for randomised
    models) or "custom" with the ``parts`` to run. ``findings`` holds what the package flagged: a
    controlled network with an iterative solver is rightly flagged as a dynamic defence, for which
    AutoAttack alone is not enough.

    The attacker knows the model that is given; a controlled network needs a view, as in
    ``StraightThrough(AutoAttack(eps))``.
    """

    version: str = "standard"
    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version not in VERSIONS:
            raise DataError(
                f"version {self.version!r} is unknown, expected one of {', '.join(VERSIONS)}"
            )
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or (self.version == "custom") != bool(self.parts):
            raise DataError(
                f"got version {self.version!r} with parts {self.parts}; expected version 'custom' "
                f"with some of {', '.join(PARTS)}, or another version and no parts"
            )

    def attack(self, package: Any, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """All parts, each on the samples that are left."""
        autoattack = package.AutoAttack(
            model,
            norm=_NORMS[self.norm],
            eps=self.eps,
            version=self.version,
            attacks=list(self.parts) or None,
            seed=self.seed,
            device=x.device,
        )
        with torch.no_grad():
            classes = model(x[:1]).shape[1]
        _check_parts(autoattack.attacks_to_run, x, classes)
        for targeted in (autoattack.apgd_targeted, autoattack.fab):
            targeted.n_target_classes = min(targeted.n_target_classes, classes - 1)
        x_adv: Tensor = autoattack.run_standard_evaluation(x, y, batch_size=self.batch_size)[0]
        return x_adv


@dataclass(frozen=True)
class Square(_External):
    """Random search over squares (Andriushchenko et al.), at most ``queries`` calls an image.

    The attacker knows the logits of images of its choice, and nothing of what is inside.
    """

    queries: int = 5000
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_counts("queries", "restarts")

    def attack(self, package: Any, model: Model, x: Tensor, y: Tensor) -> Tensor:
        """The search, without any gradient."""
        _check_squares(x)
        square = importlib.import_module("pyautoattack.square").SquareAttack(
            model,
            norm=_NORMS[self.norm],
            n_queries=self.queries,
            n_restarts=self.restarts,
            eps=self.eps,
            seed=self.seed,
            device=x.device,
            resc_schedule=False,
        )
        with torch.no_grad():
            x_adv: Tensor = square.perturb(x, y)
        return x_adv


def _check_parts(parts: Sequence[str], x: Tensor, classes: int) -> None:
    """Fail where a part of AutoAttack cannot be run on such images or so few classes."""
    for part, least in _LEAST_CLASSES.items():
        if part in parts and classes < least:
            raise AttackError(
                f"the loss of AutoAttack's {part} needs {least} classes or more, found {classes}: "
                "use version 'custom' with the parts 'apgd-ce', 'fab-t' and 'square'"
            )
    if "square" in parts:
        _check_squares(x)
    if x.ndim == 3:
        raise DataError(
            f"got a batch of shape {tuple(x.shape)}, which the package takes for one image: "
            "expected (batch, channels, height, width), or (batch, values) and parts without "
            "'square'"
        )


def _check_squares(x: Tensor) -> None:
    if x.ndim != 4:
        raise DataError(
            f"got images of shape {tuple(x.shape)}, expected (batch, channels, height, width), "
            "as Square changes squares of pixels"
        )


class _Kept(logging.Handler):
    """Keeps each warning once."""

    def __init__(self, source: str) -> None:
        super().__init__(logging.WARNING)
        self.source = source
        self.findings: list[Finding] = []

    def emit(self, record: logging.LogRecord) -> None:
        finding = Finding(self.source, record.getMessage())
        if finding not in self.findings:
            self.findings.append(finding)


def _package() -> Any:
    try:
        return importlib.import_module("pyautoattack")
    except ImportError as error:
        raise AttackError(
            "AutoAttack and Square need the package pyautoattack: pip install 'clcnn[attacks]'"
        ) from error
