"""How a sign of a lying evaluation is said: as a `Finding`, and as a warning of its own kind."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass


class EvaluationWarning(UserWarning):
    """An evaluation may report more robustness than there is."""


@dataclass(frozen=True)
class Finding:
    """One sign: the name of the check, and a sentence with what was found and what to do."""

    check: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.check}: {self.sentence}"


def report(findings: Sequence[Finding]) -> Sequence[Finding]:
    """Warn of each finding, and pass them on."""
    for finding in findings:
        warnings.warn(str(finding), EvaluationWarning, stacklevel=2)
    return findings
