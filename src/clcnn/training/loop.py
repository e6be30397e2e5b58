"""The training loop, on lightning-fabric: one core, several processes or several nodes."""

from __future__ import annotations

import csv
import io
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor, nn

from clcnn.data.datasets import Images, load, to_unit
from clcnn.data.files import explained, write_text
from clcnn.errors import ClcnnError, DataError, LoadError
from clcnn.models.layers import Classifier
from clcnn.models.shelf import SHELF
from clcnn.models.weights import build, read_weights
from clcnn.training.augment import crop_and_flip, shrunk
from clcnn.training.checkpoint import Progress, Row, restore, save, write_tensors
from clcnn.training.methods import method_for
from clcnn.training.schedule import one_cycle
from clcnn.training.settings import Settings, generator

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "weights.safetensors"
LOG = "log.csv"

_EVALUATION_BATCH = 500


class TrainingError(ClcnnError, RuntimeError):
    """A training cannot begin or go on."""


class Watch(Protocol):
    """Told of a training's progress, in the main process only."""

    def step(self, epoch: int, step: int, steps: int) -> None:
        """``step`` of the ``steps`` of ``epoch`` is done."""

    def epoch(self, row: Row) -> None:
        """An epoch is done and stored; ``row`` is its line of the log."""

    def done(self, weights: Path) -> None:
        """The training has ended; its weights are in the file ``weights``."""


def train(
    settings: Settings,
    run: Path,
    *,
    root: str | Path | None = None,
    images: tuple[Images, Images] | None = None,
    start: Path | None = None,
    resume: bool = False,
    accelerator: str = "auto",
    watch: Watch | None = None,
) -> Path:
    """Train as ``settings`` say in the folder ``run``; return the weight file.

    ``images`` are training and held-out images, read from ``root`` if not given. ``start`` is a
    weight file to begin with. After each epoch the checkpoint and the CSV log are replaced
    atomically; with ``resume`` a run goes on from there, to the same weights bit for bit.
    """
    checkpoint = run / CHECKPOINT
    if checkpoint.exists() and not resume:
        raise TrainingError(
            f"{checkpoint} exists: pass --resume to go on from it, or choose another --run folder"
        )
    if images is None:
        images = load(settings.data, "train", root), load(settings.data, "heldout", root)
    seen, heldout = images
    if len(seen) < settings.batch_size:
        raise DataError(
            f"{len(seen)} training images cannot fill a batch of {settings.batch_size}: choose a "
            "smaller --batch-size"
        )
    edge = seen.entry.shape[-1]
    if any((settings.edge(epoch) or 0) >= edge for epoch in range(settings.epochs)):
        raise DataError(
            f"--sizes {settings.sizes} are not smaller than the images of {settings.data}, which "
            f"are of {edge} x {edge} pixels: choose smaller ones"
        )
    network, name = _initial(settings, seen, start)
    settings = replace(settings, started_from=name)
    fabric = _launch(settings, accelerator)
    network.to(fabric.device)
    if settings.channels_last:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        nesterov=settings.momentum > 0,
    )
    progress = Progress()
    with explained(run):
        run.mkdir(parents=True, exist_ok=True)
    if checkpoint.exists():
        progress = restore(checkpoint, settings, network, optimizer)
        if fabric.global_rank == 0:  # it may have been stopped between checkpoint and log
            write_text(run / LOG, _csv(progress.history))
    called: Any = torch.compile(network) if settings.compiled else network
    model, stepper = fabric.setup(called, optimizer)
    while progress.epoch < settings.epochs:
        row = _epoch(fabric, settings, model, network, stepper, seen, progress.epoch, watch)
        _share_buffers(fabric, network)
        row["heldout_accuracy"] = _accuracy(fabric, network, heldout)
        progress.epoch += 1
        progress.history.append(row)
        if fabric.global_rank == 0:
            save(checkpoint, settings, network, optimizer, progress)
            write_text(run / LOG, _csv(progress.history))
            if watch is not None:
                watch.epoch(row)
        fabric.barrier()
    if fabric.global_rank == 0:
        write_tensors(run / WEIGHTS, network.state_dict(), _facts(settings, seen))
        if watch is not None:
            watch.done(run / WEIGHTS)
    fabric.barrier()
    return run / WEIGHTS


def _launch(settings: Settings, accelerator: str) -> Fabric:
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise TrainingError(
            "training needs lightning-fabric: pip install 'clcnn[training]'"
        ) from error
    try:
        fabric = Fabric(
            accelerator=accelerator,
            devices=settings.processes,
            num_nodes=settings.nodes,
            precision=settings.precision,  # type: ignore[arg-type]
        )
    except (ValueError, RuntimeError) as error:
        raise TrainingError(
            f"--device {accelerator} with --precision {settings.precision} cannot be used "
            f"here: {error}"
        ) from error
    fabric.launch()
    return fabric


def _initial(settings: Settings, seen: Images, start: Path | None) -> tuple[Classifier, str | None]:
    """The network to train, and the name of the weights that it starts from."""
    shape = {"in_channels": seen.entry.shape[0], "num_classes": seen.entry.num_classes}
    if start is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            fresh = build(settings.network, mean=seen.entry.mean, std=seen.entry.std, **shape)
        return fresh, None
    network, facts = read_weights(start)
    expected = {"network": settings.network, **shape}
    found = {key: facts[key] for key in expected}
    if found != expected:
        raise LoadError(f"{start} is of {found}, expected {expected}: start from other weights")
    shipped = start.resolve().parent == SHELF.resolve()
    return network, str(facts["name"]) if shipped else str(start)


def _epoch(
    fabric: Fabric,
    settings: Settings,
    model: nn.Module,
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    seen: Images,
    epoch: int,
    watch: Watch | None,
) -> Row:
    """One pass over the training images, in an order that seed and epoch decide."""
    rank, world = fabric.global_rank, fabric.world_size
    order = torch.randperm(len(seen), generator=generator(settings.seed, epoch, "order"))
    noise = generator(settings.seed, epoch, "noise", rank)
    count = len(seen) // settings.batch_size * settings.batch_size  # a last small batch is left out
    batches = order[:count].view(-1, settings.batch_size)
    total = settings.epochs * len(batches)
    method = method_for(settings, epoch)
    began = time.perf_counter()
    loss_sum = torch.zeros((), device=fabric.device)
    correct, withstood = loss_sum.clone(), loss_sum.clone()
    network.train()
    for step, batch in enumerate(batches):
        lr = one_cycle(epoch * len(batches) + step, total, settings.lr)
        for group in optimizer.param_groups:
            group["lr"] = lr
        mine = batch[rank::world]
        cropped = crop_and_flip(seen.pixels[mine], noise, flip=seen.entry.flips)
        x = shrunk(to_unit(cropped.to(fabric.device)), settings.edge(epoch))
        y = seen.labels[mine].to(fabric.device)
        outcome = method.loss(model, network, x, y, noise)
        optimizer.zero_grad()
        fabric.backward(outcome.loss)
        optimizer.step()
        loss_sum += outcome.loss.detach()
        correct += (outcome.logits.detach().argmax(1) == y).sum()
        if outcome.perturbed is not None:
            withstood += (outcome.perturbed.detach().argmax(1) == y).sum()
        if watch is not None and rank == 0:
            watch.step(epoch, step + 1, len(batches))
    mean_loss = float(_total(fabric, loss_sum)) / (len(batches) * world)
    if not math.isfinite(mean_loss):
        raise TrainingError(
            f"the loss became {mean_loss} in epoch {epoch + 1}: lower --lr. The checkpoint of the "
            "epoch before is kept."
        )
    seconds = time.perf_counter() - began
    row = {
        "epoch": epoch + 1,
        "lr": lr,
        "loss": mean_loss,
        "train_accuracy": 100 * float(_total(fabric, correct)) / count,
        "seconds": seconds,
        "images_per_second": count / seconds,
    }
    if settings.eps is not None:
        row["perturbed_accuracy"] = 100 * float(_total(fabric, withstood)) / count
    return row


@torch.no_grad()
def _accuracy(fabric: Fabric, network: nn.Module, images: Images) -> float:
    """The percentage of ``images`` that the network gets right, each process doing its share."""
    network.eval()
    share = torch.arange(fabric.global_rank, len(images), fabric.world_size)
    correct = torch.zeros((), device=fabric.device)
    for batch in torch.split(share, _EVALUATION_BATCH):
        x, y = images.pixels[batch].to(fabric.device), images.labels[batch].to(fabric.device)
        correct += (network(to_unit(x)).argmax(1) == y).sum()
    return 100 * float(_total(fabric, correct)) / len(images)


def _share_buffers(fabric: Fabric, network: nn.Module) -> None:
    """Batch statistics as the first process has them, which are the ones that are stored."""
    if fabric.world_size > 1:
        for buffer in network.buffers():
            torch.distributed.broadcast(buffer, src=0)


def _total(fabric: Fabric, value: Tensor) -> Tensor:
    return cast(Tensor, fabric.all_reduce(value, reduce_op="sum"))


def _facts(settings: Settings, seen: Images) -> dict[str, Any]:
    return {
        "kind": "weights",
        "name": settings.name,
        "network": settings.network,
        "in_channels": seen.entry.shape[0],
        "num_classes": seen.entry.num_classes,
        "command": settings.command,
        "settings": settings.to_dict(),
    }


def _csv(history: list[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(history[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(history)
    return text.getvalue()
