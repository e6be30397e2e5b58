"""Close-loop control for trained neural networks: robustness at inference, without retraining.

    robust = clcnn.control(model).fit(clean_data)
    logits = robust(x)

`control` puts a network under control, `harden` does so with one-pass control at the input and all
choices made, `load` brings one back from its file. The rooms
`clcnn.theory`, `clcnn.attacks`, `clcnn.corruptions`, `clcnn.models`, `clcnn.data`,
`clcnn.training`, `clcnn.evaluation` and `clcnn.export` are loaded on first use.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from clcnn._version import __version__
from clcnn.control import ControlledModule, control
from clcnn.dynamics import HookedDynamics, StagedDynamics
from clcnn.embeddings import (
    AutoEmbedding,
    AutoencoderEmbedding,
    Embedding,
    FrequencyEmbedding,
    LinearEmbedding,
    PatchEmbedding,
    RefinedEmbedding,
    SeparableEmbedding,
    SpectralEmbedding,
    TailEmbedding,
)
from clcnn.errors import (
    ClcnnError,
    CutError,
    DataError,
    FitError,
    GradientError,
    LoadError,
    SolveError,
)
from clcnn.hardening import harden
from clcnn.loading import load
from clcnn.solvers import MSA, PMP, Feedback, Greedy, Reactive, Riccati, Solver
from clcnn.types import Solution, Status

_ROOMS = (
    "attacks",
    "corruptions",
    "data",
    "evaluation",
    "export",
    "models",
    "theory",
    "training",
)

__all__ = [
    "MSA",
    "PMP",
    "AutoEmbedding",
    "AutoencoderEmbedding",
    "ClcnnError",
    "ControlledModule",
    "CutError",
    "DataError",
    "Embedding",
    "Feedback",
    "FitError",
    "FrequencyEmbedding",
    "GradientError",
    "Greedy",
    "HookedDynamics",
    "LinearEmbedding",
    "LoadError",
    "PatchEmbedding",
    "Reactive",
    "RefinedEmbedding",
    "Riccati",
    "SeparableEmbedding",
    "Solution",
    "SolveError",
    "Solver",
    "SpectralEmbedding",
    "StagedDynamics",
    "Status",
    "TailEmbedding",
    "__version__",
    "control",
    "harden",
    "load",
]


def __getattr__(name: str) -> ModuleType:
    if name in _ROOMS:
        return importlib.import_module(f"clcnn.{name}")
    raise AttributeError(f"module 'clcnn' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ROOMS])
