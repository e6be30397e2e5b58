"""`clcnn demo`: the main job on what comes with the package."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from clcnn.cli.app import AsJson, Device, app, check_place
from clcnn.cli.evaluate import MOST_SEED, Bars, as_numbers, make_workshop, stopped

NEXT = """What to try next{first}:
  clcnn models                                   the trained networks that are here
  clcnn attack resnet20-cifar10 --attack pgd     attack one of them
  clcnn experiment table1 --quick                a table of the paper, small
  clcnn bench --quick                            what control costs
  python examples/toy.py                         Figure 2: the states of a small network, steered
In your own code: robust = clcnn.control(model).fit(clean_loader); robust(x)"""


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="The folder to write to.")] = Path("demo"),
    n: Annotated[int, typer.Option(help="Test images a cell.", min=1, max=64)] = 64,
    seed: Annotated[int, typer.Option(help="Decides images and draws.", min=0, max=MOST_SEED)] = 0,
    device: Device = "cpu",
    threads: Annotated[int, typer.Option(help="Threads of the CPU.", min=1)] = 1,
    as_json: AsJson = False,
) -> None:
    """Attack a shipped network with and without control. Example: clcnn demo --out demo

    It takes one thread unless it is told otherwise: threads that wait for each other fare badly
    beside other programs, and the network is small.
    """
    from clcnn.evaluation import Store
    from clcnn.experiments.demo import run
    from clcnn.report import make_report, write_html

    workshop = make_workshop(None, device, threads)
    store, page = out / "demo.sqlite", out / "report.html"
    check_place(page)
    try:
        with Bars(quiet=as_json) as watch, Store(store) as opened:
            shown = run(opened, seed=seed, most=n, workshop=workshop, watch=watch)
            tell = watch.say
        write_html(make_report([store], workshop=workshop, tell=tell), page)
    except KeyboardInterrupt:
        raise stopped(store) from None
    if as_json:
        rows = [{**as_numbers(result.row()), "cost": result.cost} for result in shown.found]
        facts = {"results": rows, "warnings": shown.warnings, "report": str(page)}
        typer.echo(json.dumps(facts))
        return
    count = shown.found[0].n
    typer.echo(f"\nresnet20-cifar10, accuracy on {count} test images (95 % interval)")
    typer.echo("oblivious: the attack ignores the control; adaptive: it knows of it.")
    typer.echo("noise: Gaussian; adaptive: drawn once more for what the first draw left.\n")
    typer.echo("\n".join(shown.lines()))
    for sentence in shown.warnings:
        typer.echo(f"warning: {sentence}")
    typer.echo(f"\nWith pictures: {page}\n\n{NEXT.format(first=_activation())}")


def _activation() -> str:
    """How to reach the commands, where they lie in an environment that is not active."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("clcnn") is not None or not script.exists():
        return ""
    near = Path.cwd() in script.parents
    return f" (first: . {script.relative_to(Path.cwd()) if near else script})"
