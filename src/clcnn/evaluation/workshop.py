"""Where a plan's names become things: trained networks and images."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clcnn.control import ControlledModule
from clcnn.data.catalogue import CATALOGUE
from clcnn.data.datasets import Split, load, to_unit
from clcnn.data.sample import sample
from clcnn.evaluation.hashing import code_and_weights, digest_tensors
from clcnn.evaluation.plan import Network, Plan
from clcnn.evaluation.tables import PlanError, hint
from clcnn.models import shelf
from clcnn.models.densenet import DenseNet40
from clcnn.models.resnet import ResNet20
from clcnn.models.weights import read_weights
from clcnn.persistence import fingerprint


@dataclass(frozen=True)
class Trained:
    """A network in eval mode, and the hash of its weights."""

    module: nn.Module
    fingerprint: str


@dataclass(frozen=True)
class Pictures:
    """All images of a split, as bytes or floats in [0,1], and their labels."""

    pixels: Tensor
    labels: Tensor

    def take(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Images in [0,1] and labels at ``places``."""
        x = self.pixels[places]
        return (x if x.is_floating_point() else to_unit(x)), self.labels[places]

    def digest(self, places: Tensor) -> str:
        """The hash of the images and labels at ``places``, in their order."""
        return digest_tensors(self.pixels[places], self.labels[places])


@dataclass(frozen=True)
class Chosen:
    """Some images of a split, in a seeded order: a smaller count is the start of a larger one."""

    pictures: Pictures
    places: Tensor
    digest: str

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.places)


Given = Mapping[str, Mapping[str, tuple[Tensor, Tensor]]]


class Workshop:
    """Finds networks and images by the names in a plan, each once.

    ``networks`` (by what a plan calls ``weights``) and ``images`` (by data set, then split: "train"
    to fit on, "test" or "heldout" to measure on) are used in place of what the package has. Images
    are pairs (x, y) of tensors, x as floats in [0, 1] or as bytes, y whole numbers. With
    ``float32`` no defence rounds to bfloat16 where the device could: its results are then those of
    a processor that cannot. None is False, but refuses a store that holds more of such results.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        device: str | torch.device = "cpu",
        networks: Mapping[str, nn.Module] | None = None,
        images: Given | None = None,
        float32: bool | None = None,
    ) -> None:
        self.root = root
        self.device = torch.device(device)
        self.float32 = float32
        self._given_networks = dict(networks or {})
        self._given_images = dict(images or {})
        self._networks: dict[str | Path, Trained] = {}
        self._pictures: dict[tuple[str, str, bool], Pictures] = {}
        self._chosen: dict[tuple[str, str, bool, int, int], Chosen] = {}

    def unrounded(self) -> Workshop:
        """The same networks and images, with ``float32``."""
        twin = copy.copy(self)
        twin.float32 = True
        return twin

    def network(self, plan: Plan, name: str) -> Trained:
        """The network called ``name`` in the plan."""
        network = plan.networks[name]
        key = self._place(plan, network)
        if key not in self._networks:
            module = self._load(plan, network).to(self.device)
            # The code of the package's own networks is in every cell's versions.
            own = type(module) in (ResNet20, DenseNet40)
            known = fingerprint(module) if own else code_and_weights(module)
            if isinstance(module, DenseNet40):
                # Faster (benchmarks/layout.py); sums are rounded otherwise, so the hash tells. A
                # copy, since the network may be the caller's.
                module = copy.deepcopy(module)
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                known = f"{known} channels last"
            self._networks[key] = Trained(module, known)
        return self._networks[key]

    def images(self, plan: Plan, name: str, split: str, count: int, seed: int) -> Chosen:
        """``count`` images of a split of the network's data set, chosen by ``seed``."""
        data = plan.networks[name].data
        key = (data, split, plan.sample, count, seed)
        if key not in self._chosen:
            pictures = self._all(data, split, plan.sample)
            total = len(pictures.labels)
            if count > total:
                asked = f"fit = {{ images = {count} }}" if split == "train" else f"n = {count}"
                found = f"found {asked} for the {split} images of {data}, of which "
                if not (plan.sample and split == "train"):
                    raise PlanError(f"{found}there are {total}; expected no more.")
                warnings.warn(
                    f"{found}the shipped sample has {total}: the fit is on these.", stacklevel=2
                )
            # RandomState's stream is frozen for good, so the images are the same everywhere.
            order = np.random.RandomState(seed).permutation(total)[:count]
            places = torch.from_numpy(order.astype(np.int64))
            self._chosen[key] = Chosen(pictures, places, pictures.digest(places))
        return self._chosen[key]

    def available(self, plan: Plan, name: str, split: str) -> int:
        """How many images a split of the network's data set has."""
        return len(self._all(plan.networks[name].data, split, plan.sample).labels)

    def _place(self, plan: Plan, network: Network) -> str | Path:
        """What tells networks apart: a name, or where the file is."""
        if network.weights in self._given_networks or network.weights in shelf.list():
            return network.weights
        return (plan.folder / network.weights).resolve()

    def _load(self, plan: Plan, network: Network) -> nn.Module:
        if network.weights in self._given_networks:
            return _checked_network(network.weights, self._given_networks[network.weights])
        if network.weights in shelf.list():
            return shelf.load(network.weights)
        path = plan.folder / network.weights
        if path.is_file():
            return read_weights(path)[0]
        names = [*shelf.list(), *self._given_networks]
        expected = f"one of {', '.join(names)}, or a file" if names else "a file of weights"
        raise PlanError(
            f"found weights = {network.weights!r}, which is neither a network that comes with the "
            f"package nor a file below {plan.folder}; expected {expected}"
            f"{hint(network.weights, names) or '.'}"
        )

    def _all(self, data: str, split: str, small: bool) -> Pictures:
        key = (data, split, small)
        if key not in self._pictures:
            self._pictures[key] = self._read(data, split, small)
        return self._pictures[key]

    def _read(self, data: str, split: str, small: bool) -> Pictures:
        if data in self._given_images:
            given = self._given_images[data]
            if split not in given:
                raise PlanError(
                    f"found no {split!r} among the images given for {data} "
                    f"({', '.join(given) or 'none'}); expected them as "
                    f"Workshop(images={{{data!r}: {{{split!r}: (x, y)}}}})."
                )
            return _checked_images(f"{data!r}, {split!r}", given[split])
        if data not in CATALOGUE:
            known = [*CATALOGUE, *self._given_images]
            raise PlanError(
                f"found data = {data!r}; expected one of {', '.join(known)}, or images of your "
                f"own as Workshop(images={{{data!r}: ...}}){hint(data, known) or '.'}"
            )
        if not small:
            images = load(data, _split(split), self.root)
            return Pictures(images.pixels, images.labels)
        shipped = sample(data)
        if split == "test":
            return Pictures(*shipped.test)
        # No held-out images are shipped; the last quarter of the training images stands in.
        x, y = shipped.train
        border = len(x) * 3 // 4
        part = slice(border) if split == "train" else slice(border, None)
        return Pictures(x[part], y[part])


def _checked_network(name: str, module: object) -> nn.Module:
    if not isinstance(module, nn.Module):
        raise PlanError(
            f"found a {type(module).__name__} as the network {name!r}; expected a trained "
            "nn.Module."
        )
    if any(part.training for part in module.modules()):
        raise PlanError(
            f"found the network {name!r} in training mode; expected one in eval mode. Call "
            ".eval() on it first."
        )
    if isinstance(module, ControlledModule):
        raise PlanError(
            f"found a controlled network as {name!r}; expected the plain one. Describe its control "
            "as a defence of the plan."
        )
    return module


def _checked_images(name: str, given: object) -> Pictures:
    """Images that a user handed over, or what is wrong with them."""

    def wrong(found: str, expected: str) -> PlanError:
        return PlanError(f"found {found} as images ({name}); expected {expected}.")

    if not (isinstance(given, (tuple, list)) and len(given) == 2):
        raise wrong(f"a {type(given).__name__}", "a pair (x, y) of tensors")
    x, y = given
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        kinds = f"a {type(x).__name__} and a {type(y).__name__}"
        raise wrong(kinds, "a pair (x, y) of tensors")
    if x.dim() < 2 or not (x.is_floating_point() or x.dtype == torch.uint8):
        shown = f"x of shape {tuple(x.shape)} and {x.dtype}"
        raise wrong(shown, "(n, ...) as floats in [0, 1] or as bytes")
    if y.dim() != 1 or len(y) != len(x):
        raise wrong(
            f"{len(x)} images and labels of shape {tuple(y.shape)}",
            "one class a sample: y of shape (n,)",
        )
    if y.is_floating_point() or y.dtype == torch.bool or (len(y) and int(y.min()) < 0):
        raise wrong(f"labels of {y.dtype}", "whole numbers from 0 on")
    if x.is_floating_point() and len(x):
        low, high = float(x.min()), float(x.max())
        if not (low >= 0 and high <= 1):
            raise wrong(f"pixels from {low:g} to {high:g}", "values in [0, 1], all of them finite")
    return Pictures(x, y.long())


def _split(name: str) -> Split:
    return "heldout" if name == "heldout" else "test" if name == "test" else "train"
