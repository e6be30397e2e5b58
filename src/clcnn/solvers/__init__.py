"""Solvers: the controls of a batch, every sample by itself."""

from clcnn.solvers.base import FeedbackSolver as FeedbackSolver
from clcnn.solvers.base import Solver as Solver
from clcnn.solvers.feedback import Feedback as Feedback
from clcnn.solvers.greedy import Greedy as Greedy
from clcnn.solvers.greedy import Reactive as Reactive
from clcnn.solvers.loop import IterativeSolver as IterativeSolver
from clcnn.solvers.msa import MSA as MSA
from clcnn.solvers.pmp import PMP as PMP
from clcnn.solvers.riccati import Riccati as Riccati
