"""All of `clcnn bench`: images, network, measurements, one JSON value."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import clcnn
from clcnn.benchmarks import speed
from clcnn.benchmarks.speed import Bench, Say
from clcnn.control import ControlledModule
from clcnn.data import Split, load, sample
from clcnn.embeddings import AutoEmbedding, Embedding, LinearEmbedding
from clcnn.errors import DataError
from clcnn.models import read_weights, shelf

Part = tuple[Tensor, Tensor]
CUTS = ("input", "layer1", "layer2", "layer3", "head")
SPLITS: tuple[Split, ...] = ("train", "heldout", "test")
SECTIONS = ("costs", "leaving", "growth", "fitting", "accuracy")
_QUICK_RANKS = (16, 64)
_QUICK = {"fit": 400, "heldout": 200, "n": 128, "rounds": 3, "batch": 32}


@dataclass(frozen=True)
class Settings:
    """What `clcnn bench` measures; ``quick`` shrinks it to the shipped sample and to minutes."""

    network: str = "resnet20-cifar10"
    fit: int = 5000
    heldout: int = 1000
    n: int = 1000
    batch: int = 64
    iterations: int = 5
    lr: float = 0.005
    energy: float = 0.99
    rounds: int = 7
    fit_ranks: tuple[int, ...] = (64, 256, 1000)
    threads: int | None = None
    seed: int = 0
    device: str = "cpu"
    sections: tuple[str, ...] = SECTIONS
    quick: bool = False

    def __post_init__(self) -> None:
        unknown = [name for name in self.sections if name not in SECTIONS]
        if unknown:
            raise DataError(
                f"found the section {unknown[0]!r}; expected some of {', '.join(SECTIONS)}."
            )
        if min(self.fit, self.heldout, self.n, self.batch, self.iterations, self.rounds) < 1:
            raise DataError(
                f"found fit={self.fit}, heldout={self.heldout}, n={self.n}, batch={self.batch}, "
                f"iterations={self.iterations}, rounds={self.rounds}; expected at least 1 each."
            )
        threads = 1 if self.threads is None else self.threads
        if not (0 < self.energy <= 1 and self.lr > 0 and threads >= 1):
            raise DataError(
                f"found energy={self.energy}, lr={self.lr}, threads={self.threads}; expected a "
                "share in (0, 1], a number above 0, and at least 1 thread."
            )
        if self.quick:
            for name, most in _QUICK.items():
                object.__setattr__(self, name, min(most, getattr(self, name)))
            object.__setattr__(self, "fit_ranks", _QUICK_RANKS)


def run(
    settings: Settings,
    root: Path | None,
    *,
    say: Say,
    keep: Callable[[dict[str, Any]], None] = lambda result: None,
) -> dict[str, Any]:
    """Measure every section; ``keep`` gets what is there after each of them."""
    threads_before = torch.get_num_threads()
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    try:
        bench, source = prepare(settings, root)
        result: dict[str, Any] = {
            "settings": asdict(settings),
            "versions": {"clcnn": clcnn.__version__, "torch": str(torch.__version__)},
            "machine": f"{platform.machine()}, {torch.get_num_threads()} threads",
            "images": source,
        }
        _measure(bench, settings, result, say, keep)
    finally:
        torch.set_num_threads(threads_before)
    return result


def _measure(
    bench: Bench, settings: Settings, result: dict[str, Any], say: Say, keep: Callable[..., None]
) -> None:
    wanted = settings.sections
    say(f"fitting the default embedding at energy {settings.energy:g} on {len(bench.fit)} images")
    robust = bench.controlled(AutoEmbedding(energy=settings.energy))
    heldout = speed.states_of(robust, bench.heldout)
    result["embeddings"] = {"default": speed.embeddings_table(robust, heldout)}
    keep(result)
    if "costs" in wanted:
        say("costs of the solvers, side by side")
        result["costs"] = speed.costs(bench, robust, literal=not settings.quick)
        keep(result)
    if "leaving" in wanted:
        say("a clean and an attacked batch")
        result["leaving"] = speed.leaving(bench, robust)
        keep(result)
    if "growth" in wanted:
        say("growth with batch, iterations, cuts, rank and width")
        result["growth"] = speed.growth(bench, robust)
        keep(result)
    if "fitting" in wanted:
        from clcnn.benchmarks.fitting import measure as measure_fitting

        say("fitting the widest cut's states beside scikit-learn")
        widest = max(range(len(heldout)), key=lambda t: heldout[t][0].numel())
        states = speed.states_of(robust, bench.fit)[widest]
        result["fitting"] = measure_fitting(
            states.flatten(1).cpu(),
            heldout[widest].flatten(1).cpu(),
            ranks=tuple(r for r in settings.fit_ranks if r < len(states) - 1),
            rounds=min(3, settings.rounds),
            seed=settings.seed,
        )
        result["fitting"]["cut"] = bench.cuts[widest]
        keep(result)
    if "accuracy" in wanted:
        say("fitting the full basis at the same energy")
        full = bench.controlled(LinearEmbedding(energy=settings.energy))
        table = speed.embeddings_table(full, heldout)
        result["embeddings"]["full basis"] = table
        say("fitting the default embedding at the energies that the full basis keeps held out")
        matched = matched_to(bench, table)
        result["embeddings"]["default, matched"] = speed.embeddings_table(matched, heldout)
        say("what these cost, side by side")
        defences = {"full basis": full, "default, matched": matched, "default": robust}
        result["accuracy_costs"] = speed.costs_of(bench, defences)
        keep(result)
        result["accuracy"] = speed.accuracies(bench, defences, "full basis", say=say)
        keep(result)


def matched_to(bench: Bench, table: list[dict[str, Any]]) -> ControlledModule:
    """The default kind, keeping of held-out states at each cut what another embedding keeps."""
    embeddings: dict[str, Embedding] = {
        row["cut"]: AutoEmbedding(energy=row["kept_heldout"]) for row in table
    }
    return bench.controlled(embeddings)


def prepare(settings: Settings, root: Path | None) -> tuple[Bench, str]:
    """The network and its images: the whole data set if it is there, else the shipped sample."""
    network, data = _network(settings.network)
    torch.manual_seed(settings.seed)
    (fit, heldout, test), source = _images(data, settings, root)
    try:
        device = torch.empty(0, device=settings.device).device
    except (RuntimeError, AssertionError) as error:
        raise DataError(f"found device {settings.device!r}, which cannot be used ({error}).") from (
            error
        )
    bench = Bench(
        network.to(device),
        CUTS,
        fit[0].to(device),
        heldout[0].to(device),
        test[0].to(device),
        test[1].to(device),
        settings.energy,
        settings.iterations,
        settings.lr,
        settings.batch,
        settings.rounds,
        settings.seed,
    )
    return bench, source


def _network(name: str) -> tuple[nn.Module, str]:
    path = Path(name)
    if path.is_file():
        network, facts = read_weights(path)
        return network.eval(), str(facts.get("settings", {}).get("data", "cifar10"))
    network = shelf.load(name)
    assert network.card is not None
    return network, network.card.data


def _images(data: str, settings: Settings, root: Path | None) -> tuple[list[Part], str]:
    """(fit, held-out, test) parts, seeded, and where they come from."""
    if not settings.quick:
        try:
            whole = [load(data, split, root).tensors() for split in SPLITS]
        except DataError:
            if root is not None:
                raise
        else:
            counts = (settings.fit, settings.heldout, settings.n)
            parts = [_some(part, n, settings.seed) for part, n in zip(whole, counts, strict=True)]
            return parts, f"{data}: training, held-out and test images"
    (x, y), test = sample(data).train, sample(data).test
    rest = len(x) - min(settings.fit, len(x) * 2 // 3)
    parts = [(x[rest:], y[rest:]), (x[:rest][: settings.heldout], y[:rest][: settings.heldout])]
    return [*parts, _some(test, settings.n, settings.seed)], f"{data}: the shipped sample"


def _some(part: Part, n: int, seed: int) -> Part:
    x, y = part
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))[:n]
    return x[order], y[order]
