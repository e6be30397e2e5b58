"""Networks by name and their weight files: safetensors, never a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from clcnn.errors import LoadError
from clcnn.models.densenet import DenseNet40
from clcnn.models.layers import Classifier
from clcnn.models.resnet import ResNet20

NETWORKS: dict[str, type[ResNet20] | type[DenseNet40]] = {
    "resnet20": ResNet20,
    "densenet40": DenseNet40,
}

_KEY = "clcnn"
_WORDS = 400  # of torch's message, which lists every tensor


def build(network: str, **arguments: Any) -> Classifier:
    """A fresh network by its name, "resnet20" or "densenet40"."""
    if network not in NETWORKS:
        raise LoadError(f"network {network!r} is unknown, expected one of {', '.join(NETWORKS)}")
    return NETWORKS[network](**arguments)


def header(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts about a file, as the metadata that safetensors keeps."""
    return {_KEY: json.dumps(facts)}


def read_file(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The facts and tensors of a file that clcnn wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {}).get(_KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise LoadError(
            f"{path} is not a readable safetensors file ({error}): it is missing, truncated or of "
            "another format. Use the file that `clcnn train` wrote."
        ) from error
    if not isinstance(facts, dict):
        raise LoadError(f"{path} was not written by clcnn: its header does not name a network")
    return facts, tensors


def read_weights(path: Path) -> tuple[Classifier, dict[str, Any]]:
    """The network whose weights are at ``path``, in eval mode, and the facts in its header."""
    facts, tensors = read_file(path)
    try:
        network = build(
            facts["network"], in_channels=facts["in_channels"], num_classes=facts["num_classes"]
        )
    except KeyError as error:
        raise LoadError(
            f"{path} lacks {error} in its header, expected a weight file. A checkpoint is not one: "
            "use weights.safetensors of the same run."
        ) from error
    except (TypeError, ValueError) as error:
        raise LoadError(f"{path} has a header that makes no sense ({error})") from error
    fill(network, tensors, str(path))
    return network.eval(), facts


def fill(network: torch.nn.Module, tensors: Mapping[str, Tensor], what: str) -> None:
    """Load ``tensors`` into ``network``; all of them and no others, of the same shapes."""
    try:
        network.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise LoadError(
            f"{what} holds the weights of another network than {type(network).__name__}: "
            f"{shorten(str(error), _WORDS, placeholder=' ...')}"
        ) from error
    broken = [name for name, value in tensors.items() if not bool(value.isfinite().all())]
    if broken:
        raise LoadError(
            f"{what} holds nan or inf in {broken[0]}{' and more' if broken[1:] else ''}: the "
            "training that wrote it had diverged. Use another file."
        )
