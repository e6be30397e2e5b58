"""Embeddings, solvers and attacks by the short names that plans use."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any

from clcnn import attacks, embeddings, solvers
from clcnn.attacks.base import Attack
from clcnn.attacks.subspace import SubspaceCW
from clcnn.corruptions import Corruption
from clcnn.embeddings.base import Embedding
from clcnn.errors import ClcnnError
from clcnn.evaluation.hashing import APART, room_code
from clcnn.evaluation.tables import Table, shown
from clcnn.solvers.base import Solver

_OURS = ("eps", "batch_size", "seed", "norm", "embedding")
"""What a cell decides for its attack, so that a plan cannot set it as well."""

_WRAPPERS = (attacks.StraightThrough, attacks.Unrolled, attacks.ExactGradient, attacks.Transfer)


def _short_names(room: object, base: type) -> dict[str, Any]:
    return {
        cls.__name__.removesuffix("Embedding").lower(): cls
        for cls in vars(room).values()
        if inspect.isclass(cls) and issubclass(cls, base) and not inspect.isabstract(cls)
    }


EMBEDDINGS: dict[str, type[Embedding]] = _short_names(embeddings, Embedding)
SOLVERS: dict[str, type[Solver]] = _short_names(solvers, Solver)
ATTACKS: dict[str, type[Attack]] = {
    name: cls
    for name, cls in _short_names(attacks, Attack).items()
    if not issubclass(cls, (*_WRAPPERS, attacks.WorstCase))
} | {"subspacecw": SubspaceCW}


@dataclass(frozen=True)
class Kind:
    """The short name of a class and all of its settings, JSON values."""

    kind: str
    settings: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As one JSON object; an attack of a file apart from its room with that file's hash."""
        told = {"kind": self.kind, **self.settings}
        file = _file(ATTACKS[self.kind]) if self.kind in ATTACKS else ""
        return told | ({"code": room_code(file)} if file in APART else {})


def _file(cls: type) -> str:
    return cls.__module__.removeprefix("clcnn.").replace(".", "/")


def make_embedding(given: Kind) -> Embedding:
    """A fresh embedding."""
    return EMBEDDINGS[given.kind](**given.settings)


def make_solver(given: Kind) -> Solver:
    """The solver."""
    return SOLVERS[given.kind](**given.settings)


def embedding_kind(table: Table, default: Kind) -> Kind:
    """What [... .embedding] describes, every default written out."""
    if not table.values:
        return default
    kind = table.choice("kind", EMBEDDINGS)
    names = list(inspect.signature(EMBEDDINGS[kind].__init__).parameters)[1:]
    settings = _settings(table, names)
    made = _try(table, lambda: EMBEDDINGS[kind](**settings))
    return Kind(kind, _listed(made.config()))


def has_setting(embedding: str, name: str) -> bool:
    """Whether embeddings of this kind have a setting called ``name``."""
    return embedding in EMBEDDINGS and name in inspect.signature(EMBEDDINGS[embedding]).parameters


def solver_kind(table: Table, default: Kind) -> Kind:
    """What [... .solver] describes, every default written out."""
    if not table.values:
        return default
    kind = table.choice("kind", SOLVERS)
    settings = _settings(table, [field.name for field in fields(SOLVERS[kind])])
    made = _try(table, lambda: SOLVERS[kind](**settings))
    return Kind(kind, _listed(made.settings()))


def needs_embedding(kind: str) -> bool:
    """Whether an attack of this kind is made with the fitted embedding of the input."""
    return any(field.name == "embedding" for field in fields(ATTACKS[kind]))


def attack_kind(table: Table, kind: str) -> Kind:
    """What an attack's table sets beyond what the cell decides, every default written out."""
    cls = ATTACKS[kind]
    own = [field.name for field in fields(cls) if field.init and field.name not in _OURS]
    settings = _settings(table, own)
    defaults = {
        field.name: field.default for field in fields(cls) if field.init and field.name in own
    }
    if not needs_embedding(kind):  # those that do have only simple settings
        _try(table, lambda: cls(1 / 255, **settings))
    return Kind(kind, _listed({**defaults, **settings}))


def make_attack(
    given: Kind, *, eps: float, norm: str, batch_size: int, seed: int, **more: Any
) -> Attack:
    """The attack with what its cell decides; ``more`` is what JSON cannot hold."""
    cls = ATTACKS[given.kind]
    tuples = {name: tuple(v) if isinstance(v, list) else v for name, v in given.settings.items()}
    return cls(eps, norm=norm, batch_size=batch_size, seed=seed, **tuples, **more)


def make_corruption(given: Kind, *, severity: int, seed: int) -> Corruption:
    """The corruption with what its cell decides."""
    return Corruption(given.settings["of"], severity, seed)


def _settings(table: Table, names: list[str]) -> dict[str, Any]:
    given = table.rest()
    table.known(None, given, names)
    for name, value in given.items():
        if isinstance(value, float) and not isfinite(value):
            raise table.error(name, shown(value), "a finite number")
    return {name: tuple(v) if isinstance(v, list) else v for name, v in given.items()}


def _listed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Tuples as the lists that JSON gives back."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in settings.items()}


def _try(table: Table, make: Any) -> Any:
    try:
        return make()
    except TypeError as error:  # Python's own words, which name no setting
        given = ", ".join(f"{key} = {shown(value)}" for key, value in table.values.items())
        expected = "a number where a setting is one, and a text where it is a name"
        raise table.error(None, f"{given}, of which one has the wrong type", expected) from error
    except (ClcnnError, ValueError) as error:
        expected = "settings that it takes"
        raise table.error(None, f"settings that are refused ({error})", expected) from error
