"""A list of stages as a dynamical system."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn

from clcnn.dynamics.base import INPUT, Dynamics, check_logits, describe
from clcnn.dynamics.probe import probe
from clcnn.errors import CutError
from clcnn.types import Steer

Stage = Callable[[Tensor], Tensor]


class _Chain(nn.Module):
    """f_{T-1} o ... o f_0 as one module, so that devices and weights are found."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()
        self.stages = tuple(stages)
        self.registered = nn.ModuleList(s for s in stages if isinstance(s, nn.Module))
        # The mode is the stages' own affair: .eval() here would change the user's modules.
        self.training = self.registered.training = False

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return x


class StagedDynamics(Dynamics):
    """x_{t+1} = f_t(steer(t, x_t)) for stages f_0 ... f_{T-1}; every stage's input is a cut.

    ``stages`` is a sequence of modules or callables, or an nn.Sequential (whose child names then
    name the cuts). Stages may be compiled: no hook is needed here.
    """

    def __init__(
        self, stages: Iterable[Stage] | nn.Sequential, names: Sequence[str] | None = None
    ) -> None:
        if isinstance(stages, nn.Sequential) and names is None:
            names = [INPUT, *[name for name, _ in stages.named_children()][1:]]
        listed: list[Stage] = list(stages) if isinstance(stages, Iterable) else []
        odd = [stage for stage in listed if not callable(stage)]
        if odd:
            raise CutError(f"a stage is {describe(odd[0])}; expected modules or callables.")
        if not listed:
            raise CutError(
                "no stage was given; expected a list of modules or callables, or an nn.Sequential."
            )
        if names is None:
            names = [INPUT, *(f"stage{t}" for t in range(1, len(listed)))]
        if len(names) != len(listed) or len(set(names)) != len(names):
            raise CutError(
                f"found the names {', '.join(names)} for {len(listed)} stages; expected a distinct "
                "name for each."
            )
        self.model: nn.Module = stages if isinstance(stages, nn.Sequential) else _Chain(listed)
        self.stages = listed
        self.cuts = tuple(names)

    def rollout(self, x0: Tensor, steer: Steer) -> Tensor:
        """x_0 -> f_{T-1}(z_{T-1})."""
        return check_logits(self.stages[-1](self._to_last_cut(x0, steer)))

    def sweep(self, x0: Tensor, steer: Steer) -> None:
        """As `rollout` without the last stage."""
        self._to_last_cut(x0, steer)

    def inspect(self, x: Tensor) -> tuple[tuple[int, ...], ...]:
        """Probe the stages on x: tensors with the batch first, a gradient through each."""
        findings = probe(self, x)
        self.copied = frozenset(findings.changed_in_place)
        return findings.shapes

    def _to_last_cut(self, x: Tensor, steer: Steer) -> Tensor:
        for t, stage in enumerate(self.stages[:-1]):
            x = stage(self._steered(t, x, steer))
        return self._steered(self.T - 1, x, steer)

    def _steered(self, t: int, x: Tensor, steer: Steer) -> Tensor:
        if not isinstance(x, Tensor):
            raise CutError(
                f"the input of stage {self.cuts[t]!r} is {describe(x)}; expected one tensor."
            )
        z = steer(t, x)
        return z.clone() if self.cuts[t] in self.copied else z
