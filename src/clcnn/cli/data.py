"""`clcnn data`: list, fetch and sample data sets."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from clcnn.cli.app import AsJson, Root, app

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data", help="Data sets: list them, fetch them.")


class Data(StrEnum):
    """Data sets that are known."""

    cifar10 = "cifar10"
    cifar100 = "cifar100"
    mnist = "mnist"
    fashion_mnist = "fashion-mnist"


class Via(StrEnum):
    """Kinds of sources."""

    http = "http"
    npm = "npm"
    apt = "apt"


@data_app.command("list")
def data_list(root: Root = None, as_json: AsJson = False) -> None:
    """List the data sets and where they lie. Example: clcnn data list"""
    from clcnn.data.catalogue import CATALOGUE
    from clcnn.data.datasets import default_root, locate
    from clcnn.errors import DataError

    places: dict[str, str | None] = {}
    for name, entry in CATALOGUE.items():
        try:
            places[name] = str(locate(entry, root)[1])
        except DataError:
            places[name] = None
    if as_json:
        facts = {
            name: {"shape": entry.shape, "classes": entry.num_classes, "place": places[name]}
            for name, entry in CATALOGUE.items()
        }
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"root: {root or default_root()}")
    there = "" if root is None else f" --root {root}"
    for name, entry in CATALOGUE.items():
        where = places[name] or f"not here: clcnn data get {name}{there}"
        shape = " x ".join(map(str, entry.shape))
        typer.echo(f"{name:14} {shape:12} {entry.num_classes:4} classes   {where}")


@data_app.command("get")
def data_get(
    name: Annotated[Data, typer.Argument(help="The data set.")],
    root: Root = None,
    via: Annotated[Via | None, typer.Option(help="Use only this kind of source.")] = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set and check it. Example: clcnn data get cifar10"""
    from clcnn.data import get

    if as_json:
        place = get(name.value, root, via and via.value, say=partial(typer.echo, err=True))
        typer.echo(json.dumps({"name": name.value, "place": str(place)}))
        return
    typer.echo(get(name.value, root, via and via.value, say=typer.echo))


@data_app.command("sample")
def data_sample(
    name: Annotated[Data, typer.Argument(help="The data set.")],
    out: Annotated[Path, typer.Option(help="The folder to write to.")],
    train: Annotated[int, typer.Option(help="Training images.", min=1)] = 2000,
    test: Annotated[int, typer.Option(help="Test images.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="Decides which images.", min=0)] = 0,
    root: Root = None,
    as_json: AsJson = False,
) -> None:
    """Make the sample that comes with the package. Example: clcnn data sample cifar10 --out ."""
    from clcnn.data.sample import make

    paths = make(name, out, train, test, seed, root)
    if as_json:
        typer.echo(json.dumps({str(path): path.stat().st_size for path in paths}))
        return
    for path in paths:
        typer.echo(f"{path} ({path.stat().st_size / 1e6:.2f} MB)")
