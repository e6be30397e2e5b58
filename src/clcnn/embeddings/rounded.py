"""Embeddings that multiply in bfloat16, for a solver's iterations."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from clcnn.dynamics.stand_in import Version, version_of
from clcnn.embeddings.base import Embedding


class Rounded:
    """Copies of embeddings with their products in bfloat16, which follow the originals."""

    def __init__(self) -> None:
        self._made: list[Embedding] = []
        self._known: list[tuple[Embedding, Version]] = []

    def of(self, embeddings: Sequence[Embedding]) -> list[Embedding]:
        """The copies; made anew if the originals are others, or have changed or moved since."""
        known = [(E, version_of(E)) for E in embeddings]
        same = len(known) == len(self._known) and all(
            E is before and version == then
            for (E, version), (before, then) in zip(known, self._known, strict=True)
        )
        if not same:
            with torch.inference_mode(False), torch.no_grad():
                self._made = [E.in_bfloat16() for E in embeddings]
            self._known = known
        return self._made


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products in bfloat16, without which they are slow."""
    if device.type == "cpu":
        ask = getattr(torch.cpu, "get_capabilities", None)  # not there in older releases
        found = {} if ask is None else ask()
        return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
