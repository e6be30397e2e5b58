"""A network as a dynamical system x_{t+1} = f_t(x_t + u_t)."""

from clcnn.dynamics.base import INPUT as INPUT
from clcnn.dynamics.base import Dynamics as Dynamics
from clcnn.dynamics.hooked import HookedDynamics as HookedDynamics
from clcnn.dynamics.staged import StagedDynamics as StagedDynamics
