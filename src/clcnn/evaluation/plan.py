"""A declarative experiment: networks x defences x attacks x epsilons x threats, in TOML.

    name = "mine"              # the rows' name in the store
    seed = 0                   # decides the images, their order and every attack's draws
    n = 1000                   # images a cell
    chunk = 250                # images at once; part of every result's identity

    [networks.standard]
    weights = "resnet20-cifar10"               # a name of clcnn.models.list(), or a file
    data = "cifar10"                           # of clcnn.data, or what a Workshop is given

    [defences.linear]                          # "none" is a defence too, and always there
    cuts = ["input", "layer1", "layer2", "layer3", "head"]
    embedding = { kind = "linear", energy = 0.99 }
    solver = { kind = "pmp", iterations = 10, lr = 0.005 }
    fit = { images = 5000, seed = 0 }         # or { shipped = "strong" }, see models.hardened

    [attacks.pgd]                              # "none" is an attack too: clean images
    kind = "pgd"
    steps = 20

    [attacks.fog]                              # chance, not an attack: eps is its severity, 1 to 5
    kind = "corruption"
    of = "fog"

    [[grid]]                                   # as many as you like; run in their order
    attacks = ["none", "pgd"]
    eps = [2, 4, 8]                            # in 1/255; all else as the classes have it
    threats = ["oblivious"]                    # and/or "adaptive"

A grid without ``networks``, ``defences`` or ``attacks`` takes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from clcnn import corruptions
from clcnn.attacks.norms import NORMS
from clcnn.evaluation.defence import Defence, read_defence
from clcnn.evaluation.kinds import ATTACKS, Kind, attack_kind, needs_embedding
from clcnn.evaluation.tables import MOST_SEED, Table, read, shown

UNBOUNDED = 255.0
"""The epsilon, in 1/255, that bounds nothing in l_inf."""

_MOST_EPS = 1e6
"""In l_2 and l_1 an image's diagonal is longer than a pixel's range, but no longer than this."""

NONE = "none"
WORST = "worst"
CORRUPTION = "corruption"
THREATS = ("oblivious", "adaptive")
VIEWS = ("straight_through", "unrolled", "exact", "itself")

Threat = Literal["none", "oblivious", "adaptive"]


@dataclass(frozen=True)
class Network:
    """Weights by their name or file, and the data set whose images they are for."""

    weights: str
    data: str = "cifar10"


@dataclass(frozen=True)
class AttackPlan:
    """An attack without its epsilon.

    ``through`` are the views by which an adaptive attacker runs it ("straight_through",
    "unrolled", "exact", "itself": as it is); empty, they follow from the solver. A worst case has
    ``of``, the attacks it is over. A manifold attack has ``embedding_of``, the defence whose input
    embedding it uses. A corruption is in no ball: its norm is "none", its epsilon a severity.
    """

    kind: str
    settings: Kind | None = None
    norm: str = "linf"
    through: tuple[str, ...] = ()
    of: tuple[str, ...] = ()
    embedding_of: str | None = None


@dataclass(frozen=True)
class Entry:
    """One cell by its names: what stands in one place of a table."""

    network: str
    defence: str
    attack: str
    eps: float  # in 1/255; of a corruption the severity
    threat: Threat
    n: int


@dataclass(frozen=True)
class Plan:
    """A whole experiment; `entries` lists its cells in the order in which they run."""

    name: str
    networks: Mapping[str, Network]
    defences: Mapping[str, Defence]
    attacks: Mapping[str, AttackPlan]
    entries: tuple[Entry, ...]
    seed: int = 0
    chunk: int = 250
    split: str = "test"
    sample: bool = False
    """Whether the images that come with the package are used in place of the whole data set."""
    folder: Path = field(default_factory=Path)
    quick_images: int = 100
    quick_fit: int = 1000

    def quick(self) -> Plan:
        """The same on the shipped sample with few images, under a name of its own."""
        n = self.quick_images
        entries = tuple(dict.fromkeys(replace(e, n=min(e.n, n)) for e in self.entries))
        defences = {k: d.with_images(self.quick_fit) for k, d in self.defences.items()}
        return replace(
            self,
            name=f"{self.name}-quick",
            entries=entries,
            defences=defences,
            chunk=min(self.chunk, n),
            sample=True,
        )

    def members(self, attack: str) -> tuple[str, ...]:
        """The attacks that a worst case is over, or the attack itself."""
        return self.attacks[attack].of or (attack,)


def read_plan(path: str | Path) -> Plan:
    """The plan in a TOML file; names in it that are files are relative to it."""
    path = Path(path)
    return parse(read(path), path.parent)


def parse(table: Table, folder: Path) -> Plan:
    """The plan in a table; everything that can be checked before any work is."""
    name = table.text("name")
    if not name.strip():
        raise table.error("name", repr(name), "a name for the plan, such as 'mine'")
    n = table.whole("n", 1000)
    networks = {k: _network(t) for k, t in table.tables("networks").items()}
    if not networks:
        raise table.error("networks", "none", "at least one table [networks.NAME]")
    defences = {
        k: read_defence(t, folder, list(networks))
        for k, t in table.tables("defences").items()
        if not _is_none(t)
    }
    tables = table.tables("attacks")
    attacks = {k: _attack(t, list(tables), list(defences)) for k, t in tables.items()}
    _check_members(tables, attacks)
    quick = table.table("quick")
    plan = Plan(
        name=name,
        networks=networks,
        defences=defences,
        attacks=attacks,
        entries=(),
        seed=table.whole("seed", 0, least=0, most=MOST_SEED),
        chunk=table.whole("chunk", 250),
        split=table.choice("split", ("test", "heldout"), "test"),
        folder=folder,
        quick_images=quick.whole("n", 100),
        quick_fit=quick.whole("fit", 1000),
    )
    quick.end()
    grids = table.array("grid")
    if not grids:
        raise table.error("grid", "none", "at least one table [[grid]]")
    entries = [entry for grid in grids for entry in _entries(grid, plan, n)]
    table.end()
    return replace(plan, entries=tuple(dict.fromkeys(entries)))


def _network(table: Table) -> Network:
    network = Network(table.text("weights"), table.text("data", "cifar10"))
    table.end()
    return network


def _is_none(table: Table) -> bool:
    """Whether the table merely names the defence that does nothing."""
    if table.name != f"defences.{NONE}":
        return False
    if table.values:
        found = f"the key {next(iter(table.values))!r}"
        raise table.error(None, found, "an empty table, as 'none' is the network by itself")
    return True


def _attack(table: Table, attacks: list[str], defences: list[str]) -> AttackPlan:
    if table.name == f"attacks.{NONE}":
        raise table.error(None, "an attack called 'none'", "another name, as that one is taken")
    kind = table.choice("kind", [*ATTACKS, WORST, CORRUPTION])
    if kind == CORRUPTION:
        settings = Kind(kind, {"of": table.choice("of", corruptions.NAMES)})
        table.end()
        return AttackPlan(kind, settings, NONE)
    through = table.names("through", VIEWS, ())
    norm = table.choice("norm", NORMS, "linf")
    if kind == WORST:
        of = table.names("of", [a for a in attacks if table.name != f"attacks.{a}"], ())
        table.end()
        if not of:
            raise table.error("of", "nothing", 'the attacks it is over: of = ["pgd", "cw"]')
        return AttackPlan(kind, None, norm, through, of)
    embedding_of = None
    if needs_embedding(kind):
        embedding_of = table.choice("embedding_of", defences)
    return AttackPlan(kind, attack_kind(table, kind), norm, through, (), embedding_of)


def _check_members(tables: Mapping[str, Table], attacks: Mapping[str, AttackPlan]) -> None:
    for name, attack in attacks.items():
        for member in attack.of:
            if attacks[member].kind == WORST or attacks[member].norm != attack.norm:
                raise tables[name].error("of", repr(member), "simple attacks of the same norm")


def _entries(table: Table, plan: Plan, n: int) -> list[Entry]:
    networks = table.names("networks", plan.networks, plan.networks)
    every_defence = [NONE, *plan.defences]
    defences = table.names("defences", every_defence, every_defence)
    every_attack = [NONE, *plan.attacks]
    attacks = table.names("attacks", every_attack, every_attack)
    threats = table.names("threats", THREATS, ("oblivious",))
    n = table.whole("n", n)
    eps = _epsilons(table)
    if any(attack != NONE and plan.attacks[attack].kind == CORRUPTION for attack in attacks):
        _check_severities(table, eps)
    for key, names in (("networks", networks), ("defences", defences), ("attacks", attacks)):
        _check_some(table, key, names)
    _check_some(table, "threats", threats)
    largest = max(eps, default=0.0)
    for attack in attacks:
        if attack != NONE and plan.attacks[attack].norm == "linf" and largest > UNBOUNDED:
            found = f"{largest:g} for attack {attack!r}"
            raise table.error("eps", found, f"at most {UNBOUNDED:g}, the whole range of a pixel")
    table.end()
    if not eps and any(attack != NONE for attack in attacks):
        raise table.error("eps", "nothing", "the radii in 1/255: eps = [2, 4, 8]")
    entries = []
    for network in networks:
        for defence in defences:
            for attack in attacks:
                if attack == NONE:
                    entries.append(Entry(network, defence, NONE, 0.0, "none", n))
                    continue
                for threat in threats:
                    if not possible(plan, defence, attack, threat):
                        continue
                    entries += [Entry(network, defence, attack, e, _as(threat), n) for e in eps]
    return entries


def _check_some(table: Table, key: str, names: Sequence[str]) -> None:
    if not names:
        raise table.error(key, "an empty list", "at least one name; left out, it means the usual")


def possible(plan: Plan, defence: str, attack: str, threat: str) -> bool:
    """Stealth is against a control: where none is, or is known of, it cannot be run.

    A corruption is by no one: there is none that knows of the control.
    """
    kinds = {plan.attacks[member].kind for member in plan.members(attack)}
    if kinds == {"stealth"}:
        return threat == "adaptive" and defence != NONE
    return kinds != {CORRUPTION} or threat != "adaptive"


def _as(threat: str) -> Threat:
    return "adaptive" if threat == "adaptive" else "oblivious"


def _epsilons(table: Table) -> list[float]:
    given: Any = table.get("eps", (list, int, float), "radii in 1/255, such as [2, 4, 8]", [])
    values = given if isinstance(given, list) else [given]
    for value in values:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0.1 <= value <= _MOST_EPS:
            expected = f"radii in 1/255 from 0.1 to {_MOST_EPS:g}: 8 for 8/255"
            raise table.error("eps", shown(value), expected)
    return [float(value) for value in values]


def _check_severities(table: Table, eps: list[float]) -> None:
    for value in eps:
        if value not in corruptions.SEVERITIES:
            expected = "severities of a corruption, whole numbers from 1 to 5"
            raise table.error("eps", shown(value), expected)
