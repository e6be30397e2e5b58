"""Attacks: images within epsilon of x that a model gets wrong.

    x_adv = PGD(8 / 255)(model, x, y)                       # any network, images in [0,1]
    x_adv = StraightThrough(PGD(8 / 255))(robust, x, y)     # by someone who knows of the control
    WorstCase([...]).strongest(robust, x, y).accuracy       # adaptive accuracy
    report(examine(model, x, y))                            # signs that an attack would mislead

Each docstring says what its attacker knows.
"""

from clcnn.attacks.adaptive import ExactGradient, StraightThrough, Transfer, Unrolled
from clcnn.attacks.base import Attack, AttackError
from clcnn.attacks.cw import CW
from clcnn.attacks.external import AutoAttack, Square
from clcnn.attacks.findings import EvaluationWarning, Finding, report
from clcnn.attacks.flags import black_box_beats_white_box, examine
from clcnn.attacks.gradient import FGSM, PGD
from clcnn.attacks.manifold import Manifold, departure
from clcnn.attacks.noise import Noise
from clcnn.attacks.norms import L2, LINF, Norm
from clcnn.attacks.stealth import Stealth, trajectory
from clcnn.attacks.worst import Strongest, WorstCase

__all__ = [
    "CW",
    "FGSM",
    "L2",
    "LINF",
    "PGD",
    "Attack",
    "AttackError",
    "AutoAttack",
    "EvaluationWarning",
    "ExactGradient",
    "Finding",
    "Manifold",
    "Noise",
    "Norm",
    "Square",
    "Stealth",
    "StraightThrough",
    "Strongest",
    "Transfer",
    "Unrolled",
    "WorstCase",
    "black_box_beats_white_box",
    "departure",
    "examine",
    "report",
    "trajectory",
]
