"""The plans that come with the package: each a short TOML file of grids over shared parts.

A blueprint is such a file with what it takes from common.toml. A plan is made from it for the
networks that are there, with the settings that `clcnn experiment tune` chose for each.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clcnn.evaluation.defence import Defence, read_defence
from clcnn.evaluation.plan import NONE, WORST, Network, Plan, parse
from clcnn.evaluation.tables import PlanError, Table, UnpreparedError
from clcnn.evaluation.workshop import Workshop
from clcnn.models import shelf

FOLDER = Path(__file__).parent / "plans"
Values = dict[str, Any]


@dataclass(frozen=True)
class Blueprint:
    """A plan before it is known which networks are there and what was chosen for them."""

    name: str
    values: Values
    networks: Mapping[str, Values]
    defences: Mapping[str, Values]
    attacks: Mapping[str, Values]

    def pairs(self) -> list[tuple[str, str]]:
        """Every network with every defence that some cell needs, "none" left out."""
        found = []
        for grid in self.values["grid"]:
            defences = [name for name in grid["defences"] if name != NONE]
            for attack in _members(grid["attacks"], self.attacks):
                defences += filter(None, [self.attacks[attack].get("embedding_of")])
            found += [(network, defence) for network in grid["networks"] for defence in defences]
        return list(dict.fromkeys(found))

    def defence(self, network: str, name: str) -> tuple[Values, Values, str | None]:
        """Settings stated for a defence, those that hold whatever is chosen, and what is chosen."""
        own = dict(self.defences[name])
        like = own.pop("like", name)
        base, fixed = (own, {}) if like == name else (self.defences[like], own)
        here = self.networks[network].get("defences", {})
        stated = {**base, **here.get(like, {}), **here.get(name, {}), **fixed}
        choice = stated.pop("choice", None)
        return stated, fixed, choice

    def choices(self) -> list[tuple[str, str, Values]]:
        """(network, choice, the settings to start from), for all that has to be chosen."""
        found = {}
        for network, name in self.pairs():
            stated, fixed, choice = self.defence(network, name)
            if choice is not None and not fixed:
                found[network, choice] = stated
        return [(*key, stated) for key, stated in found.items()]


def blueprint(name: str, quick: bool = False) -> Blueprint:
    """The plan file called ``name`` with the parts that its grids use.

    With ``quick`` a grid keeps those of its epsilons that the file names for that, or all if it has
    none of them.
    """
    common, values = _read("common"), _read(name)
    small = values.pop("quick", {})
    changes = [common, values] + ([small] if quick else [])
    parts = {part: _merged([c.get(part, {}) for c in changes]) for part in ("defences", "attacks")}
    for part in parts:
        values.pop(part, None)
    if quick and "eps" in small:
        for grid in values["grid"]:
            grid["eps"] = [eps for eps in grid["eps"] if eps in small["eps"]] or grid["eps"]
    values["quick"] = {key: small[key] for key in ("n", "fit") if key in small}
    return Blueprint(name, values, common["networks"], parts["defences"], parts["attacks"])


def tuning(choice: str) -> Values:
    """What `clcnn experiment tune` tries for a choice."""
    shared = _read("common")["tuning"]
    own = shared.pop("choices")[choice]
    return {**shared, **own}


@dataclass(frozen=True)
class Ready:
    """A plan that can run, and what is to be said of networks and choices that are not there."""

    plan: Plan
    missing: tuple[str, ...]


def ready(
    drawn: Blueprint,
    workshop: Workshop,
    choices: Path,
    *,
    quick: bool = False,
) -> Ready:
    """The plan for the networks that are there, by the settings that were chosen for them.

    Defences whose settings were not chosen yet are left out, unless these are all. With ``quick``
    the settings are those that the plan states.
    """
    wanted = list(dict.fromkeys(n for grid in drawn.values["grid"] for n in grid["networks"]))
    there, missing = present(wanted, drawn.networks, workshop)
    if not there:
        raise UnpreparedError(" ".join(missing))
    pairs = [(network, name) for network, name in drawn.pairs() if network in there]
    if not quick:
        unchosen = _unchosen(drawn, pairs, choices)
        pairs = [pair for pair in pairs if pair not in unchosen]
        if unchosen:
            missing.append(_asking(drawn, unchosen, choices))
        grids = _without(drawn, set(unchosen))
        if unchosen and not any(name != NONE for grid in grids for name in grid["defences"]):
            raise UnpreparedError(missing[-1])
        drawn = replace(drawn, values={**drawn.values, "grid": grids})
    plan = parse(_table(drawn, there, pairs), choices)
    defences = {
        name: replace(
            plan.defences[name],
            own={
                network: _defence(drawn, network, name, choices, quick)
                for network, used in pairs
                if used == name
            },
        )
        for name in plan.defences
    }
    plan = replace(plan, defences=defences)
    return Ready(plan.quick() if quick else plan, tuple(missing))


def present(
    wanted: Iterable[str], networks: Mapping[str, Values], workshop: Workshop
) -> tuple[list[str], list[str]]:
    """The networks that can be loaded, and a paragraph for each that cannot."""
    there, missing = [], []
    for name in wanted:
        try:
            only = {name: Network(name, networks[name]["data"])}
            workshop.network(Plan(name, only, {}, {}, ()), name)
            there.append(name)
        except PlanError:
            missing.append(
                f"found no weights called {name!r} (the package has: "
                f"{', '.join(shelf.list()) or 'none'}); expected them for that network's rows. "
                f"Make them by `{networks[name]['train']}` and give their folder as --weights."
            )
    return there, missing


def choice_file(choices: Path, network: str, choice: str) -> Path:
    """Where the settings that were chosen for a network are."""
    return choices / f"{network}-{choice}.json"


def _unchosen(
    drawn: Blueprint, pairs: list[tuple[str, str]], choices: Path
) -> dict[tuple[str, str], Path]:
    """Networks with the defences whose settings were not chosen yet, and the file to hold these."""
    found = {}
    for network, name in pairs:
        choice = drawn.defence(network, name)[2]
        if choice and not (file := choice_file(choices, network, choice)).is_file():
            found[network, name] = file
    return found


def _asking(drawn: Blueprint, unchosen: Mapping[tuple[str, str], Path], choices: Path) -> str:
    absent = ", ".join(dict.fromkeys(map(str, unchosen.values())))
    return (
        f"found no {absent}; expected the settings that were chosen on held-out images. Choose "
        f"them: clcnn experiment tune --only {drawn.name} --choices {choices}; or say where "
        "they are (--choices; ours are in results/choices of the repository); or use --quick, "
        "which takes the settings stated in the plan."
    )


def _without(drawn: Blueprint, unchosen: set[tuple[str, str]]) -> list[Values]:
    """The grids without the defences that cannot be made, and attacks that need one of these."""
    grids = []
    for grid in drawn.values["grid"]:
        alike: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
        for network in grid["networks"]:
            lost = {name for at, name in unchosen if at == network}
            defences = tuple(name for name in grid["defences"] if name not in lost)
            attacks = tuple(
                name for name in grid["attacks"] if not lost & _embeddings_for(drawn, name)
            )
            if defences and attacks:
                alike.setdefault((defences, attacks), []).append(network)
        grids += [
            {**grid, "networks": names, "defences": list(defences), "attacks": list(attacks)}
            for (defences, attacks), names in alike.items()
        ]
    return grids


def _embeddings_for(drawn: Blueprint, attack: str) -> set[str | None]:
    """The defences whose embeddings an attack uses."""
    return {drawn.attacks[name].get("embedding_of") for name in _members([attack], drawn.attacks)}


def _defence(drawn: Blueprint, network: str, name: str, choices: Path, quick: bool) -> Defence:
    stated, fixed, choice = drawn.defence(network, name)
    values = stated
    if choice is not None and not quick:
        # How fast it is solved is no part of a choice.
        speed = {key: stated[key] for key in ("accelerate",) if key in stated}
        values = {"tuned": choice_file(choices, network, choice).name, **speed, **fixed}
    return read_defence(Table(f"plan {drawn.name}", f"defences.{name}", values), choices, ())


def _table(drawn: Blueprint, there: list[str], pairs: list[tuple[str, str]]) -> Table:
    """All of a plan but for what was chosen."""
    grids = [
        {**grid, "networks": [n for n in grid["networks"] if n in there]}
        for grid in drawn.values["grid"]
    ]
    grids = [grid for grid in grids if grid["networks"]]
    used = dict.fromkeys(a for grid in grids for a in _closure(grid["attacks"], drawn.attacks))
    first = {name: network for network, name in reversed(pairs)}
    values = {
        **drawn.values,
        "networks": {n: {"weights": n, "data": drawn.networks[n]["data"]} for n in there},
        "defences": {name: drawn.defence(first[name], name)[0] for name in first},
        "attacks": {name: drawn.attacks[name] for name in used},
        "grid": grids,
    }
    return Table(f"plan {drawn.name}", "", values)


def _members(names: Iterable[str], attacks: Mapping[str, Values]) -> list[str]:
    """The simple attacks among and behind ``names``."""
    return [name for name in _closure(names, attacks) if not _over(attacks[name])]


def _closure(names: Iterable[str], attacks: Mapping[str, Values]) -> list[str]:
    """``names`` and the attacks that worst cases among them are over, "none" left out."""
    found = []
    for name in names:
        if name != NONE:
            found += [*_over(attacks[name]), name]
    return list(dict.fromkeys(found))


def _over(attack: Values) -> list[str]:
    """The attacks that a worst case is over."""
    return list(attack["of"]) if attack.get("kind") == WORST else []


def _merged(tables: Iterable[Mapping[str, Values]]) -> dict[str, Values]:
    """Tables by name, keys of later ones in place of those of earlier ones."""
    merged: dict[str, Values] = {}
    for table in tables:
        for name, values in table.items():
            merged[name] = {**merged.get(name, {}), **values}
    return merged


def _read(name: str) -> Values:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
