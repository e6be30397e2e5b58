"""`clcnn attack`: one attack on one network, with or without its control."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clcnn.cli.app import AsJson, Device, Root, Threads, app, check_place
from clcnn.cli.evaluate import make_workshop

if TYPE_CHECKING:
    from torch import Tensor, nn

    from clcnn.control import ControlledModule
    from clcnn.evaluation.once import Once


class AttackName(StrEnum):
    """Attacks that need nothing but a network and images."""

    noise = "noise"
    fgsm = "fgsm"
    pgd = "pgd"
    cw = "cw"
    square = "square"
    autoattack = "autoattack"


class NormName(StrEnum):
    """How far is far."""

    linf = "linf"
    l2 = "l2"


@app.command()
def attack(
    network: Annotated[str, typer.Argument(help="A name that `clcnn models` lists, or a file.")],
    name: Annotated[AttackName, typer.Option("--attack", help="The attack.")] = AttackName.pgd,
    eps: Annotated[float, typer.Option(help="The radius, in 1/255.", min=0)] = 2.0,
    norm: Annotated[NormName, typer.Option(help="Of the radius.")] = NormName.linf,
    steps: Annotated[int | None, typer.Option(help="Steps of pgd [default: 20].", min=1)] = None,
    control: Annotated[
        Path | None, typer.Option(help="A controlled network's file (robust.save): attack it too.")
    ] = None,
    n: Annotated[int, typer.Option(help="Test images.", min=1)] = 200,
    whole: Annotated[
        bool, typer.Option("--whole", help="Images of the whole test set, not of the sample.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Keep images, labels and examples (safetensors).", dir_okay=False, writable=True
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides images and draws.", min=0, max=2**32 - 1)] = 0,
    root: Root = None,
    device: Device = "cpu",
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Attack a network. Example: clcnn attack resnet20-cifar10 --attack pgd --eps 2"""
    from clcnn.evaluation.kinds import ATTACKS
    from clcnn.evaluation.once import measure

    if steps is not None and name is not AttackName.pgd:
        raise typer.BadParameter(f"--steps goes with --attack pgd, not with {name}.")
    if not math.isfinite(eps):
        raise typer.BadParameter(f"expected a finite --eps in 1/255, got {eps}.")
    if out is not None:
        check_place(out, control, Path(network))
    model, x, y = _subject(network, n, whole, seed, root, device, threads)
    more = {} if steps is None else {"steps": steps}
    made = ATTACKS[name](eps / 255, norm=str(norm), seed=seed, **more)
    found = measure(model, made, x, y, None if control is None else _controlled(control, model))
    if as_json:
        facts: dict[str, Any] = {"network": network, "attack": repr(made), "n": len(x)}
        facts |= {"rows": _in_per_cent(found.rows), "warnings": found.warnings}
        typer.echo(json.dumps(facts))
    else:
        images = "test set" if whole else "shipped sample's test images"
        typer.echo(f"{network}, {name} at {eps:g}/255 ({norm}), {len(x)} images of the {images}")
        _tell(found)
    if out is not None:
        _keep(out, x, y, found.examples, network, repr(made))
        if not as_json:
            typer.echo(f"written: {out}")


def _in_per_cent(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Shares as the other commands' JSON and CSV have them."""
    shares = ("accuracy", "low", "high")
    return [{k: round(100 * v, 3) if k in shares else v for k, v in row.items()} for row in rows]


def _tell(found: Once) -> None:
    for row in found.rows:
        typer.echo(
            f"  {row['defence']:14}{row['threat']:12}{100 * row['accuracy']:6.1f} %  "
            f"({100 * row['low']:.1f} to {100 * row['high']:.1f})"
        )
    for sentence in found.warnings:
        typer.echo(f"warning: {sentence}")


def _subject(
    network: str,
    n: int,
    whole: bool,
    seed: int,
    root: Path | None,
    device: str,
    threads: int | None,
) -> tuple[nn.Module, Tensor, Tensor]:
    """The network and its test images, chosen as a plan chooses them."""
    from clcnn.evaluation.plan import Network, Plan
    from clcnn.models import read_weights, shelf

    workshop = make_workshop(root, device, threads)
    data = "cifar10"
    if network in shelf.list():
        data = shelf.card(network).data
    elif Path(network).is_file():
        data = str(read_weights(Path(network))[1].get("settings", {}).get("data", data))
    plan = Plan("attack", {network: Network(network, data)}, {}, {}, (), sample=not whole)
    trained = workshop.network(plan, network)
    chosen = workshop.images(plan, network, "test", n, seed)
    x, y = chosen.pictures.take(chosen.places)
    return trained.module, x.to(workshop.device), y.to(workshop.device)


def _controlled(path: Path, model: nn.Module) -> ControlledModule:
    import clcnn

    return clcnn.load(path, model)


def _keep(
    path: Path, x: Tensor, y: Tensor, examples: dict[str, Tensor], network: str, attack: str
) -> None:
    from safetensors.torch import save_file

    from clcnn.data.files import replacing

    tensors = {"x": x, "y": y, **{f"x_{threat}": found for threat, found in examples.items()}}
    facts = {"network": network, "attack": attack}
    with replacing(path) as partial:
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, partial, metadata=facts)
