"""Who is attacked with what, per-sample results, and the store that keeps them.

plan = read_plan("mine.toml")
found = run(plan, "results.sqlite")            # killed at any time, it goes on where it was
with Store("results.sqlite") as store:
    compare(store, found[1], found[0])         # on the same samples
print(to_csv(found))
"""

from clcnn.evaluation.bench import Bench, Cell
from clcnn.evaluation.cache import ExampleCache, Examples
from clcnn.evaluation.centring import BatchCentred
from clcnn.evaluation.choice import Choice, Confirmation, Grid, Point
from clcnn.evaluation.confirm import confirm
from clcnn.evaluation.defence import Defence, Fit
from clcnn.evaluation.kinds import Kind
from clcnn.evaluation.plan import AttackPlan, Entry, Network, Plan, read_plan
from clcnn.evaluation.results import (
    Result,
    compare,
    pick,
    plans,
    results,
    to_csv,
    warnings_of,
)
from clcnn.evaluation.runner import run
from clcnn.evaluation.schema import StoreError
from clcnn.evaluation.store import Store
from clcnn.evaluation.tables import PlanError
from clcnn.evaluation.tune import tune
from clcnn.evaluation.watch import Watch
from clcnn.evaluation.workshop import Workshop

__all__ = [
    "AttackPlan",
    "BatchCentred",
    "Bench",
    "Cell",
    "Choice",
    "Confirmation",
    "Defence",
    "Entry",
    "ExampleCache",
    "Examples",
    "Fit",
    "Grid",
    "Kind",
    "Network",
    "Plan",
    "PlanError",
    "Point",
    "Result",
    "Store",
    "StoreError",
    "Watch",
    "Workshop",
    "compare",
    "confirm",
    "pick",
    "plans",
    "read_plan",
    "results",
    "run",
    "to_csv",
    "tune",
    "warnings_of",
]
