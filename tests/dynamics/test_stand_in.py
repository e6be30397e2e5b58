"""The faster copy that runs the iterations: the same numbers, and never the answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import clcnn
from clcnn.dynamics.stand_in import fold_batch_norms
from clcnn.models import DenseNet40, ResNet20


class Functional(nn.Module):
    """Batch norms after a convolution and a linear layer, joined by functions, not modules."""

    def __init__(self, tap: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6, 8)
        self.norm2 = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 4)
        self.tap = tap

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        z = torch.relu(self.norm(h)) + (h if self.tap else 0)
        return self.last(torch.tanh(self.norm2(self.hidden(z.mean((2, 3))))))


def lively(model: nn.Module) -> nn.Module:
    """Weights and running statistics that make every norm do something."""
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            for value, low in ((module.running_mean, -0.5), (module.running_var, 0.5)):
                value.copy_(torch.rand(value.shape, generator=generator) + low)
            module.weight.data.add_(0.3 * torch.randn(module.weight.shape, generator=generator))
    return model.eval()


def images(n: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize(
    ("make", "norms"), [(Functional, 2), (ResNet20, 21)], ids=["functional", "resnet20"]
)
def test_folding_changes_nothing_but_rounding(make: type[nn.Module], norms: int) -> None:
    torch.manual_seed(0)
    model = lively(make()).double()
    x = images(3)
    expected = model(x)
    assert fold_batch_norms(model, x) == norms
    assert not any(isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)) for m in model.modules())
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-10)


def test_a_norm_that_does_not_follow_a_layer_is_left_alone() -> None:
    torch.manual_seed(0)
    model = lively(DenseNet40()).double()
    x = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    expected = model(x)
    fold_batch_norms(model, x)
    assert any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-10)


def test_an_activation_in_place_between_layer_and_norm_is_seen() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(inplace=True),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 4, 1),
        nn.BatchNorm2d(4),
    )
    model, x = lively(model).double(), images(2)
    expected = model(x)
    assert fold_batch_norms(model, x) == 1, "only the last norm follows its layer"
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-10)


def test_a_layer_that_runs_twice_is_not_folded() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(self.norm(self.conv(x)))

    assert fold_batch_norms(lively(Twice()).double(), images(2)) == 0


def controlled(model: nn.Module, **settings: object) -> clcnn.ControlledModule:
    # Plain ascent: Adam's step is the gradient's sign at first, and rounding decides that of a 0.
    solver = clcnn.PMP(iterations=4, lr=1e-3, method="gradient")
    robust = clcnn.control(model, ["input", "layer1", "layer2"], solver=solver, **settings)
    return robust.fit(
        torch.rand(40, 3, 16, 16, generator=torch.Generator().manual_seed(2)).double()
    )


@pytest.fixture
def robust() -> clcnn.ControlledModule:
    torch.manual_seed(0)
    model = lively(ResNet20()).double()
    return controlled(model, embedding=clcnn.LinearEmbedding(rank=8))


@pytest.mark.parametrize("compile", [False, "aot_eager"], ids=["plain", "compiled"])
def test_the_controls_agree(robust: clcnn.ControlledModule, compile: bool | str) -> None:
    x = images(5)
    expected, found = robust.solve(x), robust.accelerate(compile=compile).solve(x)
    for u, v in zip(expected.u, found.u, strict=True):
        assert u.abs().max() > 1e-4
        torch.testing.assert_close(v, u, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-7, atol=1e-7)


def test_the_logits_come_from_the_users_own_modules(robust: clcnn.ControlledModule) -> None:
    x = images(3)
    idle = robust.configure(solver=clcnn.PMP(iterations=0)).accelerate()
    with torch.no_grad():
        assert torch.equal(idle(x), robust.model(x))


def test_the_model_itself_is_not_touched(robust: clcnn.ControlledModule) -> None:
    before = {name: value.clone() for name, value in robust.model.state_dict().items()}
    robust.accelerate()(images(3))
    after = robust.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert all(not m._forward_hooks and not m._forward_pre_hooks for m in robust.model.modules())
    assert all(p.requires_grad for p in robust.model.parameters())


def test_the_copy_follows_changed_weights(robust: clcnn.ControlledModule) -> None:
    x, fast = images(3), robust.accelerate()
    before = fast.solve(x)
    with torch.no_grad():
        robust.model.layer1[0].bn1.weight.mul_(1.5)
    expected, found = robust.solve(x), fast.solve(x)
    assert not torch.allclose(before.J, expected.J)
    torch.testing.assert_close(found.J, expected.J, rtol=1e-8, atol=0)


def test_an_output_that_goes_elsewhere_too_is_not_folded() -> None:
    torch.manual_seed(0)
    model = lively(Functional(tap=True)).double()
    x = images(3)
    expected = model(x)
    assert fold_batch_norms(model, x) == 1  # the linear layer's
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-10)


def test_weights_used_behind_the_layers_back_are_noticed() -> None:
    class Sly(Functional):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * self.first.weight.sum().detach()

    torch.manual_seed(0)
    robust = clcnn.control(lively(Sly()).double(), ["input"]).fit(images(30))
    with pytest.raises(clcnn.CutError, match=r"changed a state or the output.*fold=False"):
        robust.accelerate()
    assert robust.accelerate(fold=False)(images(2)).shape == (2, 4)


def test_what_cannot_be_accelerated_says_so() -> None:
    model = ResNet20().eval()
    with pytest.raises(clcnn.FitError, match="before"):
        clcnn.control(model, ["input"]).accelerate()
    stages = clcnn.StagedDynamics([nn.Linear(3, 3).eval(), nn.Linear(3, 2).eval()])
    robust = clcnn.control(stages, embedding=clcnn.LinearEmbedding(rank=1)).fit(torch.rand(9, 3))
    with pytest.raises(clcnn.CutError, match="StagedDynamics"):
        robust.accelerate()
