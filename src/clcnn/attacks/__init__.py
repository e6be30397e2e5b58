"""Attacks: images within epsilon of x that a model gets wrong."""

from clcnn.attacks.base import Attack, AttackError
from clcnn.attacks.gradient import FGSM, PGD
from clcnn.attacks.norms import L2, LINF, Norm

__all__ = ["FGSM", "L2", "LINF", "PGD", "Attack", "AttackError", "Norm"]
