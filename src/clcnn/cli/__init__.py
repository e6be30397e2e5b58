"""The command line: a thin front on the library, one file for each family of commands."""

from clcnn.cli.app import app, run
from clcnn.cli.data import Data
from clcnn.cli.train import Method, Network

__all__ = ["Data", "Method", "Network", "app", "run"]
