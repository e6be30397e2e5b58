"""The command line: a thin front on the library, one file for each family of commands."""

from clcnn.cli.app import app, run
from clcnn.cli.attack import AttackName
from clcnn.cli.bench import bench
from clcnn.cli.data import Data
from clcnn.cli.demo import demo
from clcnn.cli.evaluate import Bars
from clcnn.cli.experiment import Experiment
from clcnn.cli.report import report
from clcnn.cli.store import store_app
from clcnn.cli.train import Method, Network
from clcnn.cli.tune import TuneSplit

__all__ = [
    "AttackName",
    "Bars",
    "Data",
    "Experiment",
    "Method",
    "Network",
    "TuneSplit",
    "app",
    "bench",
    "demo",
    "report",
    "run",
    "store_app",
]
