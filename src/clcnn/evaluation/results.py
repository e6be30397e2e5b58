"""What the store says: accuracies with intervals, differences on the same samples, CSV, signs."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from clcnn.attacks.flags import Finding, black_box_beats_white_box, epsilon_helps
from clcnn.errors import DataError
from clcnn.evaluation.plan import CORRUPTION, NONE, Entry
from clcnn.evaluation.store import Store
from clcnn.statistics import Paired, paired, wilson

_SQUARE, _ITSELF = "square", "itself"  # a black-box search; the view of what needs no gradient

COLUMNS = (
    "network",
    "defence",
    "attack",
    "eps",
    "threat",
    "n",
    "accuracy",
    "low",
    "high",
    "seconds",
)


class NoCommonSampleError(DataError):
    """Two cells have no sample that both have measured."""


@dataclass(frozen=True)
class Result:
    """One cell: its place in a table, and what was measured of it.

    ``n`` samples of ``wanted`` are stored. ``accuracy`` with its 95 % interval [``low``, ``high``]
    (Wilson) are shares; nan before the first sample. ``seconds`` a sample are the defence's alone,
    ``cost`` is their multiple of a plain forward, the median over chunks. ``eps`` is a radius in
    1/255, but of a corruption its severity.
    """

    network: str
    defence: str
    attack: str
    eps: float
    threat: str
    n: int
    wanted: int
    accuracy: float
    low: float
    high: float
    seconds: float
    cost: float
    findings: tuple[Finding, ...] = field(repr=False)
    cell: int = field(repr=False)
    is_corruption: bool = field(repr=False, default=False)

    @property
    def is_complete(self) -> bool:
        """Whether every sample is stored."""
        return self.n == self.wanted

    def row(self) -> dict[str, str]:
        """The line of the CSV file; accuracies in per cent."""
        return {
            "network": self.network,
            "defence": self.defence,
            "attack": self.attack,
            "eps": f"{self.eps:g}",
            "threat": self.threat,
            "n": str(self.n),
            "accuracy": f"{100 * self.accuracy:.2f}",
            "low": f"{100 * self.low:.2f}",
            "high": f"{100 * self.high:.2f}",
            "seconds": f"{self.seconds:.6f}",
        }


def plans(store: Store) -> list[str]:
    """The names of the plans that the store has cells of."""
    return [row[0] for row in store.read("SELECT DISTINCT plan FROM entries ORDER BY plan")]


def results(store: Store, plan: str) -> list[Result]:
    """The cells of a plan in their order, with what is stored of them so far."""
    rows = store.read(
        "SELECT network, defence, attack, eps, threat, cell FROM entries WHERE plan = ? "
        "ORDER BY place",
        plan,
    )
    made_with = manifest_of(store, plan)
    return [_result(store, made_with, *row) for row in rows]


def results_of(
    store: Store, cells: Sequence[tuple[Entry, int]], made_with: Mapping[str, Any]
) -> list[Result]:
    """What is stored of cells, each called by its entry, whatever plans the store has by now.

    ``made_with`` is the manifest of their plan.
    """
    return [
        _result(store, made_with, e.network, e.defence, e.attack, e.eps, e.threat, cell)
        for e, cell in cells
    ]


def manifest_of(store: Store, plan: str) -> dict[str, Any]:
    """What a plan was last run with; empty if the store does not say."""
    for (text,) in store.read("SELECT manifest FROM runs ORDER BY id DESC"):
        found: dict[str, Any] = json.loads(text)
        if found.get("plan", {}).get("name") == plan:
            return found
    return {}


def _result(
    store: Store,
    made_with: Mapping[str, Any],
    network: str,
    defence: str,
    attack: str,
    eps: float,
    threat: str,
    cell: int,
) -> Result:
    n, right, seconds = store.read(
        "SELECT count(*), coalesce(sum(correct), 0), avg(seconds) FROM samples WHERE cell = ?", cell
    )[0]
    attacks = _settings(store, cell)["attack"].get("attacks", ())
    described = made_with.get("plan", {}).get("defences", {}).get(defence, {}).get(network, {})
    signs = (
        *of_choice(defence, described.get("chosen")),
        *findings(store, cell),
        *black_box(store, cell),
    )
    accuracy, (low, high) = math.nan, (math.nan, math.nan)
    if n:
        accuracy, (low, high) = right / n, wilson(right / n, n)
    return Result(
        network=network,
        defence=defence,
        attack=attack,
        eps=eps,
        threat=threat,
        n=n,
        wanted=store.done(cell)[1],
        accuracy=accuracy,
        low=low,
        high=high,
        seconds=math.nan if seconds is None else seconds,
        cost=_cost(store, cell),
        findings=tuple(dict.fromkeys(signs)),
        cell=cell,
        is_corruption=any(a.get("kind") == CORRUPTION for a in attacks),
    )


def _cost(store: Store, cell: int) -> float:
    """Seconds of the defence as a multiple of a plain forward, measured side by side."""
    rows = store.read(
        "SELECT chunks.count * avg(samples.seconds) / chunks.plain_seconds FROM chunks "
        "JOIN samples ON samples.cell = chunks.cell AND samples.chunk = chunks.number "
        "WHERE chunks.cell = ? GROUP BY chunks.number",
        cell,
    )
    return float(statistics.median(multiple for (multiple,) in rows)) if rows else math.nan


def findings(store: Store, cell: int) -> tuple[Finding, ...]:
    """What warned of a cell while it was measured."""
    rows = store.read('SELECT "check", sentence FROM findings WHERE cell = ? ORDER BY 1, 2', cell)
    return tuple(Finding(*row) for row in rows)


def of_choice(defence: str, chosen: Mapping[str, Any] | None) -> list[Finding]:
    """Signs that a defence's settings, chosen as said, promise too much.

    They are the defence's and not the cell's: another one with the same settings shares that.
    """
    found = []
    if chosen and chosen.get("split") != "heldout":
        found.append(
            Finding(
                "tuned on test images",
                f"the settings of {defence} were chosen on {chosen.get('split')} images, so its "
                "accuracy there is too high. Choose them on held-out ones: clcnn tune.",
            )
        )
    if chosen and chosen.get("feasible") is False:
        found.append(
            Finding(
                "clean accuracy",
                f"no settings of {defence} kept the clean accuracy that was asked for; the ones "
                "that lost least were taken.",
            )
        )
    return found


def black_box(store: Store, cell: int) -> list[Finding]:
    """Samples of a worst case that Square broke where gradients through the control had failed."""
    attack = _settings(store, cell)["attack"]
    kinds = [member["kind"] for member in attack.get("attacks", ())]
    through = attack.get("through", ())
    earlier = through[: kinds.index(_SQUARE)] if _SQUARE in kinds else through
    if all(view == _ITSELF for views in earlier for view in views):
        return []  # nothing that knows more was tried before it
    rows = store.read("SELECT broken_by FROM samples WHERE cell = ?", cell)
    # Why is not known here: an attack may have had a sound gradient and too few steps.
    return [
        Finding(
            sign.check,
            f"{sign.sentence.partition(':')[0]}: their gradients mislead, or they had too few "
            "steps. The worst case counts these samples; more queries may break more.",
        )
        for sign in black_box_beats_white_box([by for (by,) in rows])
    ]


def warnings_of(found: Sequence[Result]) -> list[Finding]:
    """All signs in a plan's results: those of its cells, and what shows only between cells."""
    signs = [finding for result in found for finding in result.findings]
    rows: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in found:
        # A larger ball holds the smaller, but a severity holds nothing of the one before; and what
        # was made for the uncontrolled network may miss a controlled one at any radius.
        meant = result.threat == "adaptive" or result.defence == NONE
        if result.is_complete and result.eps and meant and not result.is_corruption:
            key = (result.network, result.defence, result.attack, result.threat)
            rows.setdefault(key, []).append(result)
    for key, cells in rows.items():
        for small, large in pairwise(sorted(cells, key=lambda cell: cell.eps)):
            if large.low > small.high:  # more than chance
                by_eps = {cell.eps: 100 * cell.accuracy for cell in (small, large)}
                where = " / ".join(key) + ", in %"
                for sign in epsilon_helps(by_eps):
                    sentence = sign.sentence
                    if large.attack == "fgsm":  # no setting of it can be told to change
                        rise, _, _ = sentence.partition(":")
                        sentence = f"{rise}: its one step leads too far. Go by PGD."
                    signs.append(Finding(sign.check, f"{where}: {sentence}"))
    return list(dict.fromkeys(signs))


def compare(store: Store, first: Result, second: Result) -> Paired:
    """``first`` minus ``second`` on the samples that both have, which must be the same images."""
    data = [_data(store, result.cell) for result in (first, second)]
    if data[0] != data[1]:
        raise DataError(
            f"found cells on {data[0]} and on {data[1]}; expected two on the same images, as only "
            "they can be compared sample by sample."
        )
    both, others, only_first, only_second = store.read(
        "SELECT count(*), coalesce(sum(a.label <> b.label), 0), "
        "coalesce(sum(a.correct AND NOT b.correct), 0), "
        "coalesce(sum(b.correct AND NOT a.correct), 0) "
        "FROM samples AS a JOIN samples AS b ON a.sample = b.sample "
        "WHERE a.cell = ? AND b.cell = ?",
        first.cell,
        second.cell,
    )[0]
    if others:
        raise DataError(
            f"found {others} of {both} samples with other labels in the second cell than in the "
            "first; expected two on the same images. Images of one's own need another name once "
            "they are others."
        )
    if not both:
        raise NoCommonSampleError(
            "the two cells have no sample in common; expected two of one plan that are measured."
        )
    return paired(both, only_first, only_second)


def _settings(store: Store, cell: int) -> dict[str, Any]:
    text = store.read("SELECT settings FROM cells WHERE id = ?", cell)[0][0]
    settings: dict[str, Any] = json.loads(text)
    return settings


def _data(store: Store, cell: int) -> str:
    data = _settings(store, cell)["data"]
    return f"{data['name']} ({data['split']}{', the shipped sample' if data['sample'] else ''})"


def to_csv(found: Sequence[Result]) -> str:
    """The results as CSV; accuracy, low and high in per cent, seconds a sample of the defence."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(result.row() for result in found)
    return text.getvalue()


def pick(found: Sequence[Result], entry: Entry) -> Result:
    """The result that stands where ``entry`` does."""
    key = (entry.network, entry.defence, entry.attack, entry.eps, entry.threat)
    for result in found:
        if (result.network, result.defence, result.attack, result.eps, result.threat) == key:
            return result
    raise DataError(f"there is no result for {entry}; expected a cell of the plan.")
