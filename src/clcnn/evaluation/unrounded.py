"""Defences as a processor that cannot multiply bfloat16 runs them, on any processor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from clcnn.control import ControlledModule
from clcnn.evaluation.defence import BFLOAT16, Defence
from clcnn.evaluation.defending import Defences
from clcnn.evaluation.plan import Plan


class Unrounded(Defences):
    """Defences whose iterations stay in float32 where their plan would have them in bfloat16.

    Results are stored as those of a processor without bfloat16, and go on from these: which of the
    two a result was made with is part of its key.
    """

    def settings(self, plan: Plan, network: str, name: str) -> dict[str, Any] | None:
        """As of `Defences`; nothing is rounded."""
        settings = super().settings(plan, network, name)
        if settings is not None and "rounded" in settings:
            settings["rounded"] = False
        return settings

    def dressed(self, fitted: ControlledModule, defence: Defence) -> ControlledModule:
        """As of `Defences`; the faster copy of the network in float32."""
        if defence.accelerate == BFLOAT16:
            defence = replace(defence, accelerate=True)
        return super().dressed(fitted, defence)
