"""Adversarial examples by content: the same settings find the same images, whoever asks."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from clcnn.attacks.flags import Finding
from clcnn.data.files import replacing
from clcnn.evaluation.hashing import digest, digest_tensors

Say = Callable[[str], None]


@dataclass(frozen=True)
class Examples:
    """Images found by an attack, the seconds that took, and what warned of it on the way.

    ``broken_by`` names for each image what broke it, if it was sought by several attacks.
    """

    x: Tensor
    seconds: float
    findings: Sequence[Finding] = ()
    broken_by: Sequence[str | None] | None = None


class ExampleCache:
    """A folder with one safetensors file for each attack on each chunk of images."""

    def __init__(self, folder: Path, say: Say = lambda sentence: None) -> None:
        self.folder = folder
        self.say = say

    def get(self, key: Mapping[str, Any], like: Tensor, make: Callable[[], Examples]) -> Examples:
        """The examples stored for ``key``, of the shape of ``like``; made and stored if missing.

        A file that is damaged is said so, and made again.
        """
        path = self.path(key)
        if path.exists():
            try:
                return self._read(path, key, like)
            except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
                self.say(f"{path.name} is damaged ({error}); its images are made again.")
        made = make()
        self._write(path, key, made)
        return made

    def path(self, key: Mapping[str, Any]) -> Path:
        """Where the examples of ``key`` are or would be."""
        name = digest(key)
        return self.folder / name[:2] / f"{name}.safetensors"

    def _write(self, path: Path, key: Mapping[str, Any], made: Examples) -> None:
        x = made.x.detach().cpu().contiguous()
        facts = {
            "key": key,
            "content": digest_tensors(x),
            "seconds": made.seconds,
            "findings": [asdict(finding) for finding in made.findings],
            "broken_by": None if made.broken_by is None else list(made.broken_by),
        }
        with replacing(path) as partial:
            save_file({"x": x}, partial, metadata={"clcnn": json.dumps(facts)})

    def _read(self, path: Path, key: Mapping[str, Any], like: Tensor) -> Examples:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["clcnn"])
            x = file.get_tensor("x")
        if facts["key"] != json.loads(json.dumps(key)):
            raise ValueError("it was made for other settings")
        if digest_tensors(x) != facts["content"]:
            raise ValueError("its content has changed")
        if x.shape != like.shape or x.dtype != like.dtype:
            raise ValueError(f"it holds {tuple(x.shape)}, not {tuple(like.shape)}")
        findings = tuple(Finding(**finding) for finding in facts["findings"])
        return Examples(x.to(like.device), facts["seconds"], findings, facts["broken_by"])
