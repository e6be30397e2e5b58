"""Checkpoints: weights, momentum and history in one safetensors file, replaced atomically."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from clcnn.data.files import replacing
from clcnn.errors import LoadError
from clcnn.models.weights import fill, header, read_file
from clcnn.training.settings import Settings

_MODEL = "model."
_MOMENTUM = "momentum."

Row = dict[str, float]


@dataclass
class Progress:
    """How far a training has come: epochs done, and what each of them measured."""

    epoch: int = 0
    history: list[Row] = field(default_factory=list)


def save(
    path: Path,
    settings: Settings,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> None:
    """Store all that resuming needs; the checkpoint of before stays until this one is whole."""
    tensors = {_MODEL + name: value for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        buffer = optimizer.state[parameter].get("momentum_buffer")
        if buffer is not None:
            tensors[_MOMENTUM + name] = buffer
    facts = {
        "kind": "checkpoint",
        "settings": settings.to_dict(),
        "epoch": progress.epoch,
        "history": progress.history,
    }
    write_tensors(path, tensors, facts)


def restore(
    path: Path, settings: Settings, network: nn.Module, optimizer: torch.optim.Optimizer
) -> Progress:
    """Take a training up where `save` left it; it must be the same training."""
    facts, tensors = read_file(path)
    if facts.get("kind") != "checkpoint":
        raise LoadError(f"{path} is not a checkpoint: it holds weights only, so it cannot resume")
    missing = {"settings", "epoch", "history"} - facts.keys()
    if missing:
        raise LoadError(f"{path} lacks {', '.join(sorted(missing))} in its header: it is damaged")
    if differences := settings.differences(facts["settings"]):
        raise LoadError(
            f"{path} belongs to another training: {'; '.join(differences)}. Repeat the command "
            "with the settings of before, or choose another --run folder."
        )
    fill(network, _part(tensors, _MODEL), str(path))
    momentum = _part(tensors, _MOMENTUM)
    parameters = dict(network.named_parameters())
    shapes = {name: value.shape for name, value in parameters.items()}
    if momentum and {name: value.shape for name, value in momentum.items()} != shapes:
        raise LoadError(f"{path} holds the momentum of another network: it is damaged")
    for name, value in momentum.items():
        # a copy in the parameter's own memory layout, as the optimiser itself would make it
        buffer = torch.empty_like(parameters[name].detach())
        optimizer.state[parameters[name]]["momentum_buffer"] = buffer.copy_(value)
    return Progress(facts["epoch"], facts["history"])


def write_tensors(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """A safetensors file with ``facts`` in its header, whole or not at all."""
    dense = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    with replacing(path) as partial:
        save_file(dense, partial, metadata=header(facts))


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
