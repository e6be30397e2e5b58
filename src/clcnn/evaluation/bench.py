"""A plan's cells, each with everything that decides its result, and what they are made from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from clcnn.control import control
from clcnn.dynamics.base import INPUT
from clcnn.errors import ClcnnError, CutError
from clcnn.evaluation.cache import ExampleCache, Examples
from clcnn.evaluation.defence import Defence
from clcnn.evaluation.defending import Defences, Defended
from clcnn.evaluation.hashing import NETWORKS, digest, versions
from clcnn.evaluation.measuring import measure, signs
from clcnn.evaluation.plan import CORRUPTION, NONE, Entry, Network, Plan
from clcnn.evaluation.store import CellKey, Measured
from clcnn.evaluation.tables import PlanError
from clcnn.evaluation.threats import Chunk, Threats, seed_of
from clcnn.evaluation.unrounded import Unrounded
from clcnn.evaluation.watch import Silent, Watch
from clcnn.evaluation.workshop import Chosen, Workshop

_FORMAT = 1


@dataclass(frozen=True)
class Cell:
    """A cell with everything that decides its result, and the images it is measured on."""

    entry: Entry
    key: CellKey
    chosen: Chosen


class Bench:
    """A plan's cells and what they are made from."""

    def __init__(self, plan: Plan, workshop: Workshop, folder: Path, watch: Watch) -> None:
        self.plan = plan
        self.workshop = workshop
        kind = Unrounded if workshop.float32 else Defences
        self.defences = kind(workshop, folder / "fits", watch.say)
        self.threats = Threats(self.defences, ExampleCache(folder / "examples", watch.say))

    def cells(self) -> list[Cell]:
        """All cells of the plan, with the hashes of their settings."""
        return [self._cell(entry) for entry in self.plan.entries]

    def check(self) -> None:
        """Fail at once, before anything is measured, where a network and a plan do not fit."""
        for network in dict.fromkeys(entry.network for entry in self.plan.entries):
            self._check_images(network)
        self._check_cuts()

    def _check_images(self, network: str) -> None:
        plan = self.plan
        module = self.workshop.network(plan, network).module
        pictures = self.workshop.images(plan, network, plan.split, 1, plan.seed).pictures
        x, _ = pictures.take(torch.tensor([0]))
        data = plan.networks[network].data
        remedy = "expected the data set that it was trained on: data = in a plan, --data here."
        try:
            with torch.no_grad():
                logits = module(x.to(self.workshop.device))
        except (RuntimeError, ClcnnError) as error:
            shape = " x ".join(map(str, x.shape[1:]))
            raise PlanError(
                f"network {network!r} cannot take the images of {data!r}, {shape} ({error}); "
                f"{remedy}"
            ) from error
        if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != 1:
            found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits)
            raise PlanError(
                f"network {network!r} answers an image with {found}; expected logits, a tensor of "
                "shape (1, classes). Wrap it in a module that returns these alone."
            )
        if not logits.isfinite().all():
            raise PlanError(
                f"{int((~logits.isfinite()).sum())} of the {logits.shape[1]} logits of network "
                f"{network!r} for an image are nan or infinite; expected numbers. Look at its "
                "weights, and at what its images are scaled to."
            )
        highest = int(pictures.labels.max())
        if highest >= logits.shape[1]:
            raise PlanError(
                f"network {network!r} tells {logits.shape[1]} classes apart, and {data!r} has the "
                f"label {highest}; {remedy}"
            )

    def _check_cuts(self) -> None:
        plan = self.plan
        for network, name in dict.fromkeys((e.network, e.defence) for e in plan.entries):
            if name == NONE:
                continue
            defence = plan.defences[name].on(network)
            if defence.cuts is None or defence.fit.shipped is not None:
                continue
            module = self.workshop.network(plan, network).module
            try:
                control(module, list(defence.cuts), allow_bypass=defence.allow_bypass)
            except CutError as error:
                raise PlanError(f"[defences.{name}], on {network!r}: {error}") from error
            if defence.solver.kind == "reactive" and defence.cuts[0] != INPUT:
                raise PlanError(
                    f"[defences.{name}], cuts: found {defence.cuts[0]!r} as the first for the "
                    f"solver 'reactive', which controls the input alone; expected {INPUT!r}."
                )

    def _cell(self, entry: Entry) -> Cell:
        plan = self.plan
        trained = self.workshop.network(plan, entry.network)
        chosen = self.workshop.images(plan, entry.network, plan.split, entry.n, plan.seed)
        settings = {
            "format": _FORMAT,
            "network": trained.fingerprint,
            "data": {
                "name": plan.networks[entry.network].data,
                "split": plan.split,
                "sample": plan.sample,
                "images": chosen.digest,
            },
            "defence": self.defences.settings(plan, entry.network, entry.defence),
            "attack": self.threats.settings(plan, entry),
            "seed": plan.seed,
            "chunk": plan.chunk,
        }
        if entry.defence == NONE and not self._is_attacked(entry):
            settings["versions"] = versions(NETWORKS)  # else defence or attack tell of it
        counts = [min(plan.chunk, entry.n - start) for start in range(0, entry.n, plan.chunk)]
        return Cell(entry, CellKey(digest(settings), settings, tuple(counts)), chosen)

    def _is_attacked(self, entry: Entry) -> bool:
        return entry.attack != NONE and self.plan.attacks[entry.attack].kind != CORRUPTION

    def chunk(self, chosen: Chosen, number: int) -> Chunk:
        """The images of one chunk."""
        size = self.plan.chunk
        places = chosen.places[number * size : (number + 1) * size]
        x, y = chosen.pictures.take(places)
        device = self.workshop.device
        return Chunk(number, places, x.to(device), y.to(device), seed_of(self.plan.seed, number))

    def examples(self, cell: Cell, number: int) -> tuple[Chunk, Defended, Examples]:
        """The clean images of a chunk, the defence, and what it meets in their place."""
        plan, entry = self.plan, cell.entry
        chunk = self.chunk(cell.chosen, number)
        defended = self.defences.ready(plan, entry.network, entry.defence)
        return chunk, defended, self.threats.images(plan, entry, chunk, defended)

    def measure(self, cell: Cell, number: int) -> Measured:
        """One chunk of a cell."""
        entry = cell.entry
        chunk, defended, examples = self.examples(cell, number)
        measured = measure(defended, chunk, examples)
        if number > 0 or not self._is_attacked(entry):
            return measured
        found = signs(defended, chunk, entry.eps / 255, entry.threat == "adaptive")
        return replace(measured, findings=[*found, *measured.findings])


def check_alone(
    network: Network,
    defence: Defence,
    workshop: Workshop,
    *,
    n: int = 1,
    split: str = "test",
    sample: bool = False,
) -> None:
    """Fail where a network, n images of a split and a defence do not fit, with no store yet."""
    name = network.weights
    plan = Plan(
        name="check",
        networks={name: network},
        defences={"tuned": defence},
        attacks={},
        entries=(Entry(name, "tuned", NONE, 0.0, "none", n),),
        split=split,
        sample=sample,
    )
    bench = Bench(plan, workshop, Path(), Silent())
    bench.check()
    bench.cells()  # of which each asks for its images
