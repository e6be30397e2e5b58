"""Which images a control gets wrong under an attack: lost to the attack, or wrong without it, too.

    python benchmarks/lost.py results.sqlite --plan strength --attack cw --eps 4

For each controlled defence of a plan that `clcnn experiment` or `clcnn evaluate` measured: how many
images are wrong under the oblivious attack, how many of these also without it, how many are lost to
it alone and of those to the class that the uncontrolled network answers, and how many are right
only under attack.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from clcnn.evaluation import Store, results

QUERY = """
SELECT count(*), sum(NOT a.correct), sum(NOT a.correct AND NOT c.correct),
       sum(NOT a.correct AND c.correct),
       sum(NOT a.correct AND c.correct AND a.predicted = p.predicted),
       sum(a.correct AND NOT c.correct)
FROM samples AS a JOIN samples AS c USING (sample) JOIN samples AS p USING (sample)
WHERE a.cell = ? AND c.cell = ? AND p.cell = ?
"""


def main() -> None:
    """Print one line a defence."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("--plan", default="strength")
    parser.add_argument("--attack", default="cw")
    parser.add_argument("--eps", type=float, default=4.0)
    given = parser.parse_args()
    print("| defence | n | wrong | clean, too | lost to it | to its class | right only then |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with Store(given.store, must_exist=True) as store:
        at = {
            (r.network, r.defence, r.attack, r.eps, r.threat): r for r in results(store, given.plan)
        }
        for (network, defence, attack, eps, threat), met in at.items():
            if (attack, eps, threat) != (given.attack, given.eps, "oblivious") or not met.n:
                continue
            clean = at.get((network, defence, "none", 0.0, "none"))
            plain = at.get((network, "none", attack, eps, threat))
            if defence == "none" or clean is None or plain is None:
                continue
            (row,) = store.read(QUERY, met.cell, clean.cell, plain.cell)
            print(f"| {defence} | " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
