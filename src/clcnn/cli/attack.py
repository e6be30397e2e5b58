"""`clcnn attack`: one attack on one network, with or without its control."""

from __future__ import annotations

import json
import math
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clcnn.cli.app import Root, app
from clcnn.cli.evaluate import AsJson, Device, Threads, make_workshop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from clcnn.attacks import Attack
    from clcnn.control import ControlledModule


_EXAMINED = 64
"""Images on which the checks are made, so that they cost little beside an attack."""


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

    if steps is not None and name is not AttackName.pgd:
        raise typer.BadParameter(f"--steps goes with --attack pgd, not with {name}.")
    if not math.isfinite(eps):
        raise typer.BadParameter(f"expected a finite --eps in 1/255, got {eps}.")
    if out is not None:
        _check_place(out)
    model, x, y = _subject(network, n, whole, seed, root, device, threads)
    more = {} if steps is None else {"steps": steps}
    made = ATTACKS[name](eps / 255, norm=str(norm), seed=seed, **more)
    found = measure(model, made, x, y, None if control is None else _controlled(control, model))
    examples = found.pop("examples")
    if as_json:
        typer.echo(json.dumps({"network": network, "attack": repr(made), "n": len(x), **found}))
    else:
        images = "test set" if whole else "shipped sample's test images"
        typer.echo(f"{network}, {name} at {eps:g}/255 ({norm}), {len(x)} images of the {images}")
        _tell(found)
    if out is not None:
        _keep(out, x, y, examples, network, repr(made))
        if not as_json:
            typer.echo(f"written: {out}")


def _tell(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        typer.echo(
            f"  {row['defence']:14}{row['threat']:12}{100 * row['accuracy']:6.1f} %  "
            f"({100 * row['low']:.1f} to {100 * row['high']:.1f})"
        )
    for sentence in found["warnings"]:
        typer.echo(f"warning: {sentence}")


def measure(
    model: nn.Module, attack: Attack, x: Tensor, y: Tensor, robust: ControlledModule | None
) -> dict[str, Any]:
    """Accuracies with 95 % intervals, each with its threat; warnings; the examples by threat.

    An adaptive example that is withstood is the last one that was tried.
    """
    from clcnn.attacks import WorstCase
    from clcnn.evaluation.threats import timed

    signs = _signs("uncontrolled", model, attack, x, y)
    made = timed(lambda: (attack(model, x, y), None))
    findings = list(made.findings)
    examples = {"oblivious": made.x}
    rows = [
        _row("uncontrolled", "clean", _right(model, x, y)),
        _row("uncontrolled", "attacked", _right(model, made.x, y)),
    ]
    if robust is not None:
        rows.append(_row("controlled", "clean", _right(robust, x, y)))
        rows.append(_row("controlled", "oblivious", _right(robust, made.x, y)))
        signs += _signs("controlled", robust.configure(grad="straight_through"), attack, x, y)
        worst = WorstCase(_informed(attack, robust))

        def strongest() -> tuple[Tensor, list[str | None]]:
            # The attack on the uncontrolled network is known already, and no other was asked for.
            found = worst.first_success(robust, x, y, [made.x])
            return found.x_adv, list(found.by)

        adaptive = timed(strongest)
        findings += adaptive.findings
        examples["adaptive"] = adaptive.x
        withstood = [name is None for name in adaptive.broken_by or ()]
        rows.append(_row("controlled", "adaptive", withstood))
    sentences = [*signs, *(str(finding) for finding in dict.fromkeys(findings))]
    return {"rows": rows, "warnings": sentences, "examples": examples}


def _informed(attack: Attack, robust: ControlledModule) -> list[Attack]:
    """The attack by someone who knows of the control, in each way to differentiate it."""
    from clcnn.attacks import AutoAttack, ExactGradient, Noise, Square, StraightThrough, Unrolled
    from clcnn.solvers.base import FeedbackSolver

    if isinstance(attack, (Noise, Square)):
        return [attack]
    if isinstance(robust.solver, FeedbackSolver):
        return [ExactGradient(attack)]
    if isinstance(attack, AutoAttack):
        return [StraightThrough(attack)]
    return [StraightThrough(attack), Unrolled(attack)]


def _signs(defence: str, model: nn.Module, attack: Attack, x: Tensor, y: Tensor) -> list[str]:
    """What `examine` finds on some of the images."""
    from clcnn.attacks import examine

    # as far along each pixel as a perturbation of that length goes
    eps = attack.eps if attack.norm == "linf" else attack.eps / x[0].numel() ** 0.5
    found = examine(model, x[:_EXAMINED], y[:_EXAMINED], eps=eps)
    return [f"{defence}, {finding}" for finding in found]


def _right(model: nn.Module, x: Tensor, y: Tensor) -> list[bool]:
    import torch

    from clcnn.attacks.base import is_correct

    pairs = zip(torch.split(x, 250), torch.split(y, 250), strict=True)
    return [
        right for images, labels in pairs for right in is_correct(model, images, labels).tolist()
    ]


def _row(defence: str, threat: str, right: Sequence[bool]) -> dict[str, Any]:
    from clcnn.statistics import wilson

    accuracy = sum(right) / len(right)
    low, high = wilson(accuracy, len(right))
    return {"defence": defence, "threat": threat, "accuracy": accuracy, "low": low, "high": high}


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


def _check_place(path: Path) -> None:
    """Fail before the attack, not after it, where no file can be written."""
    from clcnn.data.files import explained

    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass


def _keep(
    path: Path, x: Tensor, y: Tensor, examples: dict[str, Tensor], network: str, attack: str
) -> None:
    from safetensors.torch import save_file

    from clcnn.data.files import replacing

    tensors = {"x": x, "y": y, **{f"x_{threat}": found for threat, found in examples.items()}}
    facts = {"network": network, "attack": attack}
    with replacing(path) as partial:
        save_file({k: v.cpu().contiguous() for k, v in tensors.items()}, partial, metadata=facts)
