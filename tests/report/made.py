"""Small stores whose plans carry the names of the paper's tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path

from evaluation.tiny import TEXT, network, pictures, plan

from clcnn.evaluation import Workshop, run, seals
from clcnn.evaluation.results import Result
from clcnn.report import Document
from clcnn.report.blocks import Figure
from clcnn.report.gather import Experiment, Made
from clcnn.statistics import wilson

BASE = (
    TEXT.replace('name = "tiny"\n', "")
    .replace('weights = "tiny"', 'weights = "resnet20-cifar10"')
    .split("[[grid]]")[0]
    + """
[defences.reactive]
cuts = ["input", "middle", "head"]
embedding = { kind = "linear", energy = 0.8 }
solver = { kind = "reactive" }
fit = { images = 60 }

[attacks.pgd]
kind = "pgd"
steps = 2
"""
)
GRIDS = {
    "table1": 'defences = ["none", "linear"]\nattacks = ["none", "fgsm", "pgd"]\neps = [2, 8]',
    "table3": 'defences = ["linear", "reactive"]\nattacks = ["none", "fgsm", "pgd"]\neps = [8]',
    "robust": 'defences = ["none", "feedback-strong"]\nattacks = ["none", "fgsm"]\neps = [8]\n'
    'threats = ["oblivious", "adaptive"]',
    "adaptive": 'defences = ["none", "linear"]\nattacks = ["fgsm"]\neps = [8]\n'
    'threats = ["adaptive"]\nn = 10',
}


def workshop() -> Workshop:
    images = {"train": pictures(80, 1), "heldout": pictures(40, 2), "test": pictures(40, 3)}
    return Workshop(networks={"resnet20-cifar10": network()}, images={"mnist": images})


def text(name: str, base: str = BASE) -> str:
    return f'name = "{name}"\n{base}\n[[grid]]\n{GRIDS[name]}\n'


def fill(store: Path, *names: str, base: str = BASE) -> Path:
    """Measure plans into a store."""
    for name in names:
        run(plan(text(name, base), store.parent), store, workshop=workshop())
    return store


def change(store: Path, *statements: str) -> None:
    """Run SQL on a store, behind its back but with digests that fit."""
    with closing(sqlite3.connect(store)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
        seals.enable(connection)
        seals.seal_all(connection)


def drop(store: Path, cells: str, chunks: str) -> None:
    """Take measured chunks out of a store; both are conditions in SQL."""
    chosen = f"cell IN (SELECT cell FROM entries WHERE {cells})"
    change(
        store,
        f"DELETE FROM samples WHERE chunk {chunks} AND {chosen}",
        f"UPDATE chunks SET done = 0 WHERE number {chunks} AND {chosen}",
    )


def read(store: Path, query: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(store)) as connection:
        return connection.execute(query, values).fetchall()


def measured(
    defence: str,
    attack: str = "none",
    eps: float = 0.0,
    threat: str = "oblivious",
    *,
    n: int = 20,
    right: int = 10,
    cell: int = 1,
) -> Result:
    """A cell of 20 samples that nothing was run for."""
    low, high = wilson(right / n, n) if n else (float("nan"), float("nan"))
    accuracy = right / n if n else float("nan")
    threat = threat if eps else "none"
    place = ("tiny", defence, attack, eps, threat)
    return Result(*place, n, 20, accuracy, low, high, 0.1, 2.0, (), cell)


def made_up(
    *results: Result, plan: str = "mine", kinds: dict[str, str] | None = None
) -> Experiment:
    """An experiment of given cells; ``kinds`` are those of its attacks."""
    attacks = {name: {"kind": kind, "embedding_of": None} for name, kind in (kinds or {}).items()}
    described = {"name": plan, "attacks": attacks, "defences": {}, "networks": {}}
    return Experiment(
        name=plan,
        plan=plan,
        store=Path("s.sqlite"),
        results=results,
        weights={"tiny": "tiny"},
        data={"tiny": "mnist"},
        cuts={},
        made=(Made(("now",), {"plan": described, "weights": {}}),),
        sample=False,
    )


class Page(HTMLParser):
    """All tags, whether they nest, and the cells of every table by row."""

    EMPTY = frozenset({"meta", "img", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._cell: list[str] | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("td", "th") and self._cell is not None:
            self.tables[-1][-1].append(" ".join("".join(self._cell).split()))
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell is not None:
            self._cell.append(data)


def figure(document: Document, name: str) -> Figure:
    """The figure of a page by its name."""
    return next(b for b in document.blocks if isinstance(b, Figure) and b.name == name)
