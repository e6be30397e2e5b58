"""Defences made ready: fitted once for each network and kept in a file."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from clcnn.control import ControlledModule, control
from clcnn.data.files import replacing, write_text
from clcnn.embeddings.base import Embedding
from clcnn.embeddings.rounded import multiplies_bfloat16
from clcnn.errors import LoadError
from clcnn.evaluation.centring import BatchCentred
from clcnn.evaluation.defence import BFLOAT16, Defence
from clcnn.evaluation.hashing import (
    DEFENCE_ROOMS,
    FIT_ROOMS,
    SHIPPED_ROOMS,
    digest,
    digest_file,
    through,
    versions,
)
from clcnn.evaluation.kinds import EMBEDDINGS, SOLVERS, make_embedding, make_solver
from clcnn.evaluation.plan import NONE, Plan
from clcnn.evaluation.tables import PlanError
from clcnn.evaluation.workshop import Workshop
from clcnn.loading import load
from clcnn.models.hardening import Fitted
from clcnn.models.hardening import around as shipped_around
from clcnn.models.hardening import file as shipped_file

_KEPT = 2
"""Fitted networks held in memory; a full basis takes hundreds of megabytes."""


@dataclass(frozen=True)
class Defended:
    """A network with its defence, or without any; ``settings`` decide its answers."""

    plain: nn.Module
    robust: ControlledModule | None
    settings: dict[str, Any] | None

    @property
    def module(self) -> nn.Module:
        """What is attacked."""
        return self.plain if self.robust is None else self.robust


class Defences:
    """The defences of a plan on its networks, fitted when they are first needed."""

    def __init__(
        self,
        workshop: Workshop,
        folder: Path,
        say: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.workshop = workshop
        self.folder = folder
        self.say = say
        self._fitted: dict[str, ControlledModule] = {}
        self._ready: tuple[dict[str, Any], ControlledModule] | None = None

    def fit_key(self, plan: Plan, network: str, defence: Defence) -> dict[str, Any]:
        """Everything that decides the fitted embeddings."""
        if defence.fit.shipped is not None:
            return {
                "network": self.workshop.network(plan, network).fingerprint,
                "shipped": self._shipped(plan, network, defence.fit.shipped)[1].sha256,
                "versions": versions(SHIPPED_ROOMS),
            }
        chosen = self.workshop.images(plan, network, "train", defence.fit.images, defence.fit.seed)
        return {
            "network": self.workshop.network(plan, network).fingerprint,
            "fit": defence.fit_settings(),
            "images": chosen.digest,
            "versions": versions(fit_rooms(defence)),
        }

    def settings(self, plan: Plan, network: str, name: str) -> dict[str, Any] | None:
        """Everything that decides the defence's answers, as JSON values; None for no defence."""
        if name == NONE:
            return None
        defence = plan.defences[name].on(network)
        self._check_choice(plan, network, name, defence)
        settings: dict[str, Any] = {
            "settings": defence.settings(),
            "fitted": digest(self.fit_key(plan, network, defence)),
            "versions": versions(_rooms(defence)),
        }
        if defence.accelerate == BFLOAT16:
            settings["rounded"] = multiplies_bfloat16(self.workshop.device)
        return settings

    def ready(self, plan: Plan, network: str, name: str) -> Defended:
        """The network under the defence called ``name``."""
        plain = self.workshop.network(plan, network).module
        if name == NONE:
            return Defended(plain, None, None)
        defence = plan.defences[name].on(network)
        settings = self.settings(plan, network, name)
        assert settings is not None
        if self._ready is None or self._ready[0] != settings:
            fitted = self.fitted(plan, network, defence)
            self._ready = settings, self.dressed(fitted, defence)
        return Defended(plain, self._ready[1], settings)

    def dressed(self, fitted: ControlledModule, defence: Defence) -> ControlledModule:
        """A fitted network with the defence's solver, weights, regularisation and centring."""
        robust = fitted.configure(
            solver=make_solver(defence.solver),
            weights=defence.weights,  # type: ignore[arg-type]
            regularization=defence.regularization,
        )
        if defence.centring == "batch":
            centre_by_batch(robust)
        if not defence.accelerate:
            return robust
        bfloat16 = defence.accelerate == BFLOAT16
        return robust.accelerate(
            bfloat16=bfloat16 and multiplies_bfloat16(robust.input_like.device)
        )

    def fitted(self, plan: Plan, network: str, defence: Defence) -> ControlledModule:
        """The network with embeddings fitted, from memory, a file or the training images."""
        key = self.fit_key(plan, network, defence)
        name = digest(key)
        if name not in self._fitted and defence.fit.shipped is not None:
            plain = self.workshop.network(plan, network).module
            weights = plan.networks[network].weights
            try:
                self._fitted[name] = shipped_around(plain, weights, defence.fit.shipped)
            except LoadError as error:
                raise PlanError(
                    f"found fit = {{ shipped = {defence.fit.shipped!r} }} for {network!r}: {error}"
                ) from error
        if name not in self._fitted:
            while len(self._fitted) >= _KEPT:
                del self._fitted[next(iter(self._fitted))]
            plain = self.workshop.network(plan, network).module
            found = self._read(name, plain)
            if found is None:
                found = self._fit(plan, network, defence)
                self._write(name, key, found)
            self._fitted[name] = found
        return self._fitted[name]

    def _shipped(self, plan: Plan, network: str, preset: str) -> tuple[Path, Fitted]:
        try:
            return shipped_file(plan.networks[network].weights, preset)
        except LoadError as error:
            raise PlanError(f"found fit = {{ shipped = {preset!r} }}: {error}") from error

    def _fit(self, plan: Plan, network: str, defence: Defence) -> ControlledModule:
        chosen = self.workshop.images(plan, network, "train", defence.fit.images, defence.fit.seed)
        x, y = chosen.pictures.take(chosen.places)
        self.say(f"fitting {defence.embedding.kind} embeddings of {network} on {len(x)} images")
        robust = control(
            self.workshop.network(plan, network).module,
            None if defence.cuts is None else list(defence.cuts),
            embedding=make_embedding(defence.embedding),
            allow_bypass=defence.allow_bypass,
        )
        return robust.fit((x, y), correct_only=defence.fit.correct_only)

    def _write(self, name: str, key: dict[str, Any], robust: ControlledModule) -> None:
        path = self._path(name)
        with replacing(path) as partial:
            robust.save(partial)
            content = digest_file(partial)
        facts = {"key": key, "sha256": content, "written": time.strftime("%Y-%m-%d")}
        write_text(path.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")

    def _read(self, name: str, plain: nn.Module) -> ControlledModule | None:
        path = self._path(name)
        if not path.exists():
            return None
        try:
            facts = json.loads(path.with_suffix(".json").read_text())
            if digest_file(path) != facts["sha256"]:
                raise LoadError("its content has changed")
            return load(path, plain)
        except (LoadError, OSError, ValueError, KeyError, TypeError) as error:
            self.say(f"the fit {path.name} is damaged ({error}); it is made again.")
            return None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def _check_choice(self, plan: Plan, network: str, name: str, defence: Defence) -> None:
        if not defence.chosen:
            return
        expected = self.workshop.network(plan, network).fingerprint
        if defence.chosen.get("fingerprint") != expected:
            raise PlanError(
                f"the settings of defence {name!r} in {defence.chosen['file']} were chosen for "
                f"other weights ({defence.chosen.get('network')}) than those of {network!r}; "
                f"expected a choice for these. Run `clcnn tune` for {network!r}, or name a file "
                f'for each network: tuned = {{ {network} = "..." }}.'
            )


def fit_rooms(defence: Defence) -> tuple[str, ...]:
    """The code that fits the embeddings of a defence."""
    return through(FIT_ROOMS, EMBEDDINGS[defence.embedding.kind])


def _rooms(defence: Defence) -> tuple[str, ...]:
    """The code that decides a defence's answers."""
    if defence.fit.shipped is not None:  # whose embeddings only the file tells
        return DEFENCE_ROOMS
    solver = SOLVERS[defence.solver.kind]
    return through(DEFENCE_ROOMS, EMBEDDINGS[defence.embedding.kind], solver)


def centre_by_batch(robust: ControlledModule) -> None:
    """Put the batch's mean in place of the fitted one, at every cut."""
    assert robust.dynamics is not None
    centred = [BatchCentred(E) for E in robust.embeddings if isinstance(E, Embedding)]
    example = robust.input_like.reshape(0, *robust.input_shape)
    robust.adopt(robust.dynamics, centred, robust.shapes, example)
