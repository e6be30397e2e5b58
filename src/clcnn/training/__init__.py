"""Training: standard, label smoothing and adversarial, resumable bit for bit."""

from clcnn.training.checkpoint import Row
from clcnn.training.loop import TrainingError, Watch, train
from clcnn.training.losses import smoothed_cross_entropy
from clcnn.training.settings import METHODS, Settings

__all__ = [
    "METHODS",
    "Row",
    "Settings",
    "TrainingError",
    "Watch",
    "smoothed_cross_entropy",
    "train",
]
