"""Embeddings that multiply in bfloat16, for a solver's iterations."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from clcnn.dynamics.stand_in import Version, version_of
from clcnn.embeddings.base import Embedding


class Rounded:
    """Copies of embeddings with their products in bfloat16, which follow the originals."""

    def __init__(self, embeddings: Iterable[Embedding]) -> None:
        self.originals = list(embeddings)
        self._made: list[Embedding] = []
        self._version: list[Version] | None = None

    def embeddings(self) -> list[Embedding]:
        """The copies; made anew if the originals have changed or moved since."""
        version = [version_of(E) for E in self.originals]
        if version != self._version:
            with torch.inference_mode(False), torch.no_grad():
                self._made = [E.in_bfloat16() for E in self.originals]
            self._version = version
        return self._made


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether the device has instructions for products in bfloat16, without which they are slow."""
    if device.type == "cpu":
        found = torch.cpu.get_capabilities()
        return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
