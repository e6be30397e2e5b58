"""What a run was made with, so that its figures can be made again."""

from __future__ import annotations

import platform
import subprocess
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from clcnn._version import __version__
from clcnn.embeddings.rounded import multiplies_bfloat16
from clcnn.evaluation.hashing import ATTACK_ROOMS, CORRUPTION_ROOMS, DEFENCE_ROOMS, room_code
from clcnn.evaluation.plan import Plan
from clcnn.evaluation.workshop import Workshop

_PACKAGES = ("torch", "numpy", "safetensors", "pyautoattack", "pillow")
_ROOMS = {*ATTACK_ROOMS, *CORRUPTION_ROOMS, *DEFENCE_ROOMS}


def manifest(plan: Plan, workshop: Workshop) -> dict[str, Any]:
    """Versions, settings and hashes of weights, data and code, as JSON values."""
    names = sorted({entry.network for entry in plan.entries})
    counts = {name: max(e.n for e in plan.entries if e.network == name) for name in names}
    return {
        "clcnn": __version__,
        "git": git_version(),
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in _PACKAGES},
        "machine": platform.machine(),
        "device": str(workshop.device),
        "bfloat16": multiplies_bfloat16(workshop.device) and not workshop.float32,
        "threads": torch.get_num_threads(),
        "code": {room: room_code(room) for room in sorted(_ROOMS)},
        "plan": {
            "name": plan.name,
            "seed": plan.seed,
            "chunk": plan.chunk,
            "split": plan.split,
            "sample": plan.sample,
            "networks": {name: asdict(network) for name, network in plan.networks.items()},
            "defences": {
                name: {
                    network: {
                        **defence.on(network).settings(),
                        "chosen": defence.on(network).chosen,
                    }
                    for network in names
                }
                for name, defence in plan.defences.items()
            },
            "attacks": {name: asdict(attack) for name, attack in plan.attacks.items()},
        },
        "weights": {name: workshop.network(plan, name).fingerprint for name in names},
        "images": {
            name: workshop.images(plan, name, plan.split, counts[name], plan.seed).digest
            for name in names
        },
    }


def git_version(package: Path = Path(__file__).parent.parent) -> str | None:
    """The commit of the code, marked if the package differs from it; None outside of a checkout.

    What runs write elsewhere in the checkout (results, choices of settings) is no other code.
    """
    commit = _git(package, "describe", "--always", "--abbrev=12")
    changed = _git(package, "status", "--porcelain", "--", ".")
    return f"{commit}-dirty" if commit and changed else commit or None


def _git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
