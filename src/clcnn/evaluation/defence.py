"""A defence as JSON values: what is fitted on what, and how its controls are found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from clcnn.evaluation.kinds import EMBEDDINGS, SOLVERS, Kind, embedding_kind, solver_kind
from clcnn.evaluation.tables import MOST_SEED, PlanError, Table, read_json, shown
from clcnn.solvers.feedback import PRESETS

CHOICE = "clcnn choice"
"""What a file that `clcnn tune` wrote says of itself."""

CENTRINGS = ("fitted", "batch")
_FITTING = {"allow_bypass", "centring", "cuts", "embedding", "paper_literal", "tuned"}


def _kind(kinds: Mapping[str, Any], kind: str, **settings: Any) -> Kind:
    made = kinds[kind](**settings)
    return Kind(kind, made.config() if kinds is EMBEDDINGS else made.settings())


LINEAR = _kind(EMBEDDINGS, "linear", energy=0.99)
PAPERS_LINEAR = _kind(EMBEDDINGS, "linear", singular=0.99)
PMP = _kind(SOLVERS, "pmp")


@dataclass(frozen=True)
class Fit:
    """The training images that embeddings are fitted on: how many, and which by ``seed``.

    ``shipped`` names a preset of `clcnn.models.hardened`: then nothing is fitted, and cuts and
    embeddings are those of the package's own file.
    """

    images: int = 5000
    seed: int = 0
    correct_only: bool = False
    shipped: str | None = None


BFLOAT16 = "bfloat16"
"""As ``accelerate``: network and embeddings of the iterations in bfloat16, too."""


@dataclass(frozen=True)
class Defence:
    """A network under control, without the network.

    ``centring`` "batch" takes the mean of the batch at hand in place of the fitted one, as the
    authors' code does. ``accelerate`` runs the iterations on a faster copy of the network, up to
    rounding (`ControlledModule.accelerate`); "bfloat16" has it and the embeddings' products in
    that, where the processor has instructions for it. ``chosen`` says where tuned settings come
    from; it changes no result and is in no hash. ``own`` holds other settings for single networks,
    by their names.
    """

    cuts: tuple[str, ...] | None = None
    embedding: Kind = LINEAR
    solver: Kind = PMP
    weights: str | float | tuple[float, ...] = "sum"
    regularization: float | tuple[float, ...] = 0.0
    centring: str = "fitted"
    fit: Fit = Fit()
    allow_bypass: bool = False
    accelerate: bool | str = False
    chosen: Mapping[str, Any] | None = None
    own: Mapping[str, Defence] = field(default_factory=dict)

    def on(self, network: str) -> Defence:
        """The settings for one network."""
        return self.own.get(network, self)

    def with_images(self, most: int) -> Defence:
        """The same, fitted on no more images than ``most``."""
        fit = replace(self.fit, images=min(most, self.fit.images))
        own = {name: defence.with_images(most) for name, defence in self.own.items()}
        return replace(self, fit=fit, own=own)

    def fit_settings(self) -> dict[str, Any]:
        """What decides the fitted embeddings, as JSON values."""
        if self.fit.shipped is not None:
            return {"shipped": self.fit.shipped}
        return {
            "cuts": None if self.cuts is None else list(self.cuts),
            "allow_bypass": self.allow_bypass,
            "embedding": self.embedding.to_dict(),
            "correct_only": self.fit.correct_only,
        }

    def settings(self) -> dict[str, Any]:
        """What decides the controls of an image, as JSON values; `from_settings` reads them."""
        images = {"images": self.fit.images, "seed": self.fit.seed}
        return {
            **self.fit_settings(),
            "fit": images if self.fit.shipped is None else {},
            "solver": self.solver.to_dict(),
            "weights": _plain(self.weights),
            "regularization": _plain(self.regularization),
            "centring": self.centring,
            "accelerate": self.accelerate,
        }


def from_settings(values: Mapping[str, Any], where: str) -> Defence:
    """The defence whose `settings` these are."""
    if "shipped" in values:
        # Older ones say of cuts and embeddings, too, what nothing was made of.
        rest = {k: v for k, v in values.items() if k not in _FITTING | {"correct_only", "shipped"}}
        fit = {"shipped": values["shipped"]}
        return read_defence(Table(where, "defence", {**rest, "fit": fit}), Path(), ())
    fit = {**values["fit"], "correct_only": values["correct_only"]}
    rest = {k: v for k, v in values.items() if k != "correct_only"}
    if rest["cuts"] is None:
        del rest["cuts"]
    return read_defence(Table(where, "defence", {**rest, "fit": fit}), Path(), ())


def read_defence(table: Table, folder: Path, networks: Sequence[str]) -> Defence:
    """What [defences.NAME] describes; keys given beside ``tuned`` replace what was chosen."""
    tuned = table.get("tuned", (str, dict), "a file that `clcnn tune` wrote, or one a network")
    if tuned is None or "shipped" in table.table("fit").values:
        base = Defence()
        if table.flag("paper_literal"):
            base = Defence(embedding=PAPERS_LINEAR, weights="mean", centring="batch")
        return _overridden(table, base)
    if table.flag("paper_literal"):
        raise table.error(
            "paper_literal", "tuned beside it", "one of them: tune with --paper-literal"
        )
    if isinstance(tuned, str):
        return _overridden(table, read_choice(folder / tuned))
    table.known("tuned", tuned, networks)
    missing = [name for name in networks if name not in tuned]
    if missing:
        raise table.error("tuned", f"no file for {missing[0]!r}", "one for each network")
    given = {name: read_choice(folder / str(file)) for name, file in tuned.items()}
    own = {
        name: _overridden(Table(table.where, table.name, table.values), choice)
        for name, choice in given.items()
    }
    return replace(next(iter(own.values())), own=own)


def read_choice(path: Path) -> Defence:
    """The defence that `clcnn tune` chose and wrote to ``path``."""
    values = read_json(path)
    if values.get("kind") != CHOICE or not isinstance(values.get("defence"), dict):
        raise PlanError(f"{path} is not a choice of settings; expected what `clcnn tune` wrote.")
    try:
        defence = from_settings(values["defence"], str(path))
    except KeyError as error:
        raise PlanError(f"{path} lacks {error} in its defence. Run `clcnn tune` again.") from error
    facts = ("network", "fingerprint", "split", "n", "feasible")
    return replace(defence, chosen={"file": path.name, **{k: values.get(k) for k in facts}})


def _overridden(table: Table, base: Defence) -> Defence:
    table.skip("tuned", "paper_literal")
    cuts = table.get("cuts", (list,), "a list of names of submodules", base.cuts)
    if cuts is not None and not all(isinstance(cut, str) for cut in cuts):
        raise table.error("cuts", shown(cuts), "names of submodules in quotes")
    fit = table.table("fit")
    shipped = fit.get("shipped", (str,), "a preset of clcnn.models.hardened")
    solver = table.table("solver")
    if shipped is not None:
        base, solver = _with_preset(table, fit, solver, shipped)
    defence = replace(
        base,
        cuts=None if cuts is None else tuple(cuts),
        embedding=embedding_kind(table.table("embedding"), base.embedding),
        solver=solver_kind(solver, base.solver),
        weights=_numbers(table, "weights", base.weights, cuts, named=("sum", "mean")),
        regularization=_numbers(
            table, "regularization", base.regularization, cuts, may_be_zero=True
        ),
        centring=table.choice("centring", CENTRINGS, base.centring),
        fit=Fit(
            fit.whole("images", base.fit.images, least=2),  # one has no variance
            fit.whole("seed", base.fit.seed, least=0, most=MOST_SEED),
            fit.flag("correct_only", base.fit.correct_only),
            shipped,
        ),
        allow_bypass=table.flag("allow_bypass", base.allow_bypass),
        accelerate=_acceleration(table, base.accelerate),
    )
    fit.end()
    table.end()
    return defence


def _acceleration(table: Table, default: bool | str) -> bool | str:
    expected = f'true, false or "{BFLOAT16}"'
    found: bool | str = table.get("accelerate", (bool, str), expected, default)
    if isinstance(found, str) and found != BFLOAT16:
        raise table.error("accelerate", shown(found), expected)
    return found


def _with_preset(table: Table, fit: Table, solver: Table, preset: str) -> tuple[Defence, Table]:
    """The solver of a shipped control, beside which nothing may be said of how it is fitted."""
    given = sorted(_FITTING & set(table.values)) + [
        f"fit.{key}" for key in fit.values if key != "shipped"
    ]
    fit.known("shipped", [preset], PRESETS)
    if given:
        raise table.error(
            given[0],
            f"fit.shipped = {preset!r} beside it",
            "one of them: what is shipped has its own cuts and embeddings, fitted long ago",
        )
    base = Defence(solver=_kind(SOLVERS, "feedback", preset=preset))
    if solver.values.get("kind") == "feedback":
        solver = Table(solver.where, solver.name, {"preset": preset, **solver.values})
    return base, solver


def _numbers(
    table: Table,
    key: str,
    default: Any,
    cuts: Sequence[str] | None,
    *,
    named: tuple[str, ...] = (),
    may_be_zero: bool = False,
) -> Any:
    """A number for all cuts, or one for each; or one of the words in ``named``."""
    expected = " or ".join([*map(repr, named), "a number", "a list with one for each cut"])
    value = table.get(key, (str, int, float, list), expected, default)
    listed = value if isinstance(value, list) else [value]
    if isinstance(value, str) and value in named:
        return value
    if value is default:
        return value
    if not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in listed):
        raise table.error(key, shown(value), expected)
    if not all(isfinite(v) and (v > 0 or (v == 0 and may_be_zero)) for v in listed):
        least = "at least 0" if may_be_zero else "above 0"
        raise table.error(key, shown(value), f"{expected}, finite and {least}")
    if isinstance(value, list) and cuts is not None and len(value) != len(cuts):
        raise table.error(key, f"{len(value)} of them", f"one for each of the {len(cuts)} cuts")
    return tuple(map(float, value)) if isinstance(value, list) else float(value)


def _plain(value: str | float | tuple[float, ...]) -> str | float | list[float]:
    return list(value) if isinstance(value, tuple) else value
