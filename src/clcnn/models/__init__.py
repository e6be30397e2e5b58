"""Networks for small images, and their trained weights, each with a card."""

from clcnn.models.cards import Card
from clcnn.models.densenet import DenseNet40
from clcnn.models.hardening import hardened
from clcnn.models.layers import Classifier
from clcnn.models.resnet import ResNet20
from clcnn.models.shelf import list, load
from clcnn.models.weights import NETWORKS, build, read_weights

__all__ = [
    "NETWORKS",
    "Card",
    "Classifier",
    "DenseNet40",
    "ResNet20",
    "build",
    "hardened",
    "list",
    "load",
    "read_weights",
]
