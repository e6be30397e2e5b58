"""The paper's own figures: its Tables 1 to 5 and the growth of a manifold attack, as data.

A cell is found by (table, network, defence, attack, eps). Networks go by the names of their
weights, defences by "none", "linear", "nonlinear", "reactive" and "layerwise", attacks by "none",
"manifold", "fgsm", "pgd" and "cw"; eps is in 1/255, and 0 for clean images. Every attack of the
paper is computed on the uncontrolled network: the threat is "oblivious".

Table 3 has differences: its defence is "linear-reactive", CLC-NN minus reactive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ATTACKS = ("none", "manifold", "fgsm", "pgd", "cw")
EPSILONS = (2.0, 4.0, 8.0)
DIFFERENCE = "linear-reactive"

MANIFOLD_GROWTH = (0.0, 0.016, 0.0438, 0.0107, 0.0552)
"""||P_t x_eps,t - P_t x_t|| at t = 0 ... 4, P_t onto the complement; which norm is not said."""

CONTRADICTS = "contradicts Table 1: it implies an accuracy of the reactive defence of {:+.0f} %"


@dataclass(frozen=True)
class Cell:
    """One figure as printed, in percent (Table 3: points), and what is to be said of it."""

    table: str
    network: str
    defence: str
    attack: str
    eps: float
    value: float
    open: bool
    """Whether its data set (CIFAR-100) is not at hand, so that nothing of ours stands beside it."""
    note: str | None = None

    @property
    def key(self) -> tuple[str, str, str, str, float]:
        """(table, network, defence, attack, eps)."""
        return self.table, self.network, self.defence, self.attack, self.eps


@dataclass(frozen=True)
class PaperTable:
    """One table's layout: what is a block of rows, and what stands in a place side by side."""

    name: str
    caption: str
    networks: tuple[str, ...]
    defences: tuple[str, ...]
    differences: bool = False


TABLES = {
    table.name: table
    for table in (
        PaperTable(
            "table1",
            "ResNet-20 from standard training: no control / linear / nonlinear embedding",
            ("resnet20-cifar10", "resnet20-cifar100"),
            ("none", "linear", "nonlinear"),
        ),
        PaperTable(
            "table2",
            "Robustly trained ResNet-20: no control / linear embedding",
            tuple(
                f"resnet20-{data}-{method}"
                for data in ("cifar10", "cifar100")
                for method in ("fgsm", "labelsmooth", "pgd")
            ),
            ("none", "linear"),
        ),
        PaperTable(
            "table3",
            "CLC-NN with the linear embedding minus the reactive defence",
            ("resnet20-cifar10", "resnet20-cifar100"),
            (DIFFERENCE,),
            differences=True,
        ),
        PaperTable(
            "table4",
            "DenseNet-40 from standard training: no control / nonlinear embedding",
            ("densenet40-cifar10", "densenet40-cifar100"),
            ("none", "nonlinear"),
        ),
        PaperTable(
            "table5",
            "Layer-wise projection / CLC-NN, both with the linear embedding",
            ("resnet20-cifar10", "resnet20-cifar100"),
            ("layerwise", "linear"),
        ),
    )
}

# One block a network: clean images, then a line for each epsilon (manifold, FGSM, PGD, CW).
_PRINTED = {
    "table1": """
        92/88/89
        24/79/82  21/56/56   0/50/50   8/75/79
         5/78/81  11/40/30   0/31/19   0/75/79
         1/78/81   8/20/12   0/11/2    0/76/79

        69/60/58
         9/51/52   9/25/23   0/17/22   4/47/49
         3/50/52   5/15/9    0/6/4     1/47/49
         2/50/52   4/9/5     0/1/0     0/47/49
    """,
    "table2": """
        92/90
        43/82  90/87   1/60  14/81
        17/81  95/90   0/36   2/81
         3/80  96/93   0/10   0/81

        93/89
        42/78  57/69  10/60  29/76
        20/77  51/61   1/49  11/76
         6/77  40/47   0/26   2/76

        83/80
        80/78  75/73  74/73  75/75
        78/76  66/66  63/65  66/71
        74/73  49/51  40/46  48/64

        69/66
        21/55  59/54   1/27   9/57
         8/54  66/55   0/9    2/57
         3/53  67/56   0/1    0/57

        69/62
        10/43  16/28   1/19   5/46
         3/42  12/19   0/9    1/46
         2/42   8/11   0/2    0/46

        58/52
        52/50  46/43  45/43  45/47
        49/48  36/36  34/35  35/43
        43/45  22/24  16/21  21/40
    """,
    "table3": """
        -3
        47  27  43  66
        63  20  35  76
        66  13  25  77

        1
        34  22  44  37
        37   0  30  30
        38   9  11  16
    """,
    "table4": """
        92/89
        19/67  27/57   0/52   5/79
         4/56  20/48   0/37   0/79
         1/59  15/33   0/17   0/79

        70/64
         8/25   8/24   0/25   3/47
         2/24   4/15   0/10   0/45
         1/24   3/7    0/5    0/45
    """,
    "table5": """
        92/88
        68/79  29/56   4/50  51/75
        64/78  15/40   0/31  50/75
        64/78  10/20   0/11  49/76

        67/60
        45/51  13/25   2/17  35/47
        44/50   8/15   0/6   34/47
        44/50   5/9    0/1   34/47
    """,
}


def _cells(table: PaperTable, blocks: Sequence[str]) -> list[Cell]:
    """What is printed for each network of a table; clean images first."""
    cells = []
    for network, block in zip(table.networks, blocks, strict=True):
        clean, *lines = [line.split() for line in block.strip().splitlines()]
        places = [("none", 0.0, clean[0])]
        for eps, line in zip(EPSILONS, lines, strict=True):
            places += [(a, eps, text) for a, text in zip(ATTACKS[1:], line, strict=True)]
        for attack, eps, text in places:
            for defence, value in zip(table.defences, text.split("/"), strict=True):
                key = (table.name, network, defence, attack, eps)
                cells.append(Cell(*key, float(value), open="cifar100" in network))
    return cells


def _read() -> dict[tuple[str, str, str, str, float], Cell]:
    read = [cell for name in TABLES for cell in _cells(TABLES[name], _PRINTED[name].split("\n\n"))]
    by_key = {cell.key: cell for cell in read}
    return {key: _noted(cell, by_key) for key, cell in by_key.items()}


def _noted(cell: Cell, by_key: dict[tuple[str, str, str, str, float], Cell]) -> Cell:
    """Table 1's linear cell minus Table 3's difference is an accuracy: never below zero."""
    note = None
    if cell.table == "table3":
        linear = by_key["table1", cell.network, "linear", cell.attack, cell.eps]
        implied = linear.value - cell.value
        if implied < 0:
            note = CONTRADICTS.format(implied)
            if implied >= -1:
                note += " (both figures are rounded, which explains up to one point)"
    if cell.table == "table2" and cell.attack == "fgsm":
        clean = by_key[cell.table, cell.network, cell.defence, "none", 0.0]
        if cell.value > clean.value:
            note = "above the clean accuracy of the same row"
    return Cell(*cell.key, cell.value, cell.open, note)


CELLS = _read()
"""Every cell of the five tables by its key."""


def find(table: str, network: str, defence: str, attack: str, eps: float) -> Cell | None:
    """The paper's figure in this place, or None."""
    return CELLS.get((table, network, defence, attack, 0.0 if attack == "none" else float(eps)))
