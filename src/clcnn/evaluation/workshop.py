"""Where a plan's names become things: trained networks and images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from clcnn.data.catalogue import CATALOGUE
from clcnn.data.datasets import Split, load, to_unit
from clcnn.data.sample import sample
from clcnn.evaluation.hashing import digest_tensors
from clcnn.evaluation.plan import Network, Plan
from clcnn.evaluation.tables import PlanError, hint
from clcnn.models import shelf
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
    to fit on, "test" or "heldout" to measure on) are used in place of what the package has.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        device: str | torch.device = "cpu",
        networks: Mapping[str, nn.Module] | None = None,
        images: Given | None = None,
    ) -> None:
        self.root = root
        self.device = torch.device(device)
        self._given_networks = dict(networks or {})
        self._given_images = dict(images or {})
        self._networks: dict[str, Trained] = {}
        self._pictures: dict[tuple[str, str, bool], Pictures] = {}
        self._chosen: dict[tuple[str, str, bool, int, int], Chosen] = {}

    def network(self, plan: Plan, name: str) -> Trained:
        """The network called ``name`` in the plan."""
        network = plan.networks[name]
        if network.weights not in self._networks:
            module = self._load(plan, network).to(self.device).eval()
            self._networks[network.weights] = Trained(module, fingerprint(module))
        return self._networks[network.weights]

    def images(self, plan: Plan, name: str, split: str, count: int, seed: int) -> Chosen:
        """``count`` images of a split of the network's data set, chosen by ``seed``."""
        data = plan.networks[name].data
        key = (data, split, plan.sample, count, seed)
        if key not in self._chosen:
            pictures = self._all(data, split, plan.sample)
            total = len(pictures.labels)
            if count > total and not (plan.sample and split == "train"):
                raise PlanError(
                    f"found n = {count} for the {split} images of {data}, of which there are "
                    f"{total}; expected no more."
                )
            # RandomState's stream is frozen for good, so the images are the same everywhere.
            order = np.random.RandomState(seed).permutation(total)[:count]
            places = torch.from_numpy(order.astype(np.int64))
            self._chosen[key] = Chosen(pictures, places, pictures.digest(places))
        return self._chosen[key]

    def available(self, plan: Plan, name: str, split: str) -> int:
        """How many images a split of the network's data set has."""
        return len(self._all(plan.networks[name].data, split, plan.sample).labels)

    def _load(self, plan: Plan, network: Network) -> nn.Module:
        if network.weights in self._given_networks:
            return self._given_networks[network.weights]
        if network.weights in shelf.list():
            return shelf.load(network.weights)
        path = plan.folder / network.weights
        if path.is_file():
            return read_weights(path)[0]
        names = shelf.list()
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
            return Pictures(*given[split])
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


def _split(name: str) -> Split:
    return "heldout" if name == "heldout" else "test" if name == "test" else "train"
