"""What can go wrong, each said as: what was found, what was expected, what to do."""

from __future__ import annotations


class ClcnnError(Exception):
    """Any error that clcnn raises on purpose; catch this one to catch them all."""


class CutError(ClcnnError, ValueError):
    """A cut cannot be a controlled state: unknown, bypassed, fired twice or never, not a tensor."""


class FitError(ClcnnError, RuntimeError):
    """An embedding cannot be fitted, or is used before it was."""


class SolveError(ClcnnError, RuntimeError):
    """The controls of a batch cannot be computed."""


class GradientError(ClcnnError, RuntimeError):
    """A gradient was asked for that the chosen ``grad`` mode does not give."""


class DataError(ClcnnError, ValueError):
    """Input that cannot be used: wrong shape or dtype, not finite, empty, corrupt."""


class LoadError(ClcnnError, RuntimeError):
    """A file cannot be loaded: truncated, foreign, or made for another network."""
