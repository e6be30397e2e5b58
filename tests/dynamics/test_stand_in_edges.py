"""The faster copy: cuts at batch norms, other dtypes, backends that are none, unseen writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import clcnn
from clcnn.errors import CutError


class NormFirst(nn.Module):
    """A block that begins with the norm of what the layer before it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.norm(x)))


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), NormFirst(), NormFirst()]
    made = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 36, 3)).double()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.3, 3)
            module.weight.data.uniform_(0.5, 2)
    return made.eval()


def images(n: int, seed: int = 0) -> Tensor:
    return torch.randn(n, 2, 6, 6, generator=torch.Generator().manual_seed(seed)).double()


def controlled(cuts: list[str]) -> clcnn.ControlledModule:
    solver = clcnn.PMP(iterations=4, lr=0.05)
    embedding = clcnn.LinearEmbedding(energy=0.9)
    return clcnn.control(model(), cuts, embedding=embedding, solver=solver).fit(images(200))


@pytest.mark.parametrize(
    ("cuts", "folded"),
    [(["input", "2"], 2), (["1"], 1), (["input", "4"], 1), (["1", "4"], 0), (["4.norm"], 1)],
)
def test_a_cut_between_a_layer_and_its_norm_keeps_them_apart(cuts: list[str], folded: int) -> None:
    robust = controlled(cuts)
    fast = robust.accelerate()
    assert fast.dynamics.stand_in.folded == folded
    plain, quick = robust.solve(images(5, 1)), fast.solve(images(5, 1))
    assert torch.allclose(plain.J, quick.J, rtol=1e-9)
    assert torch.allclose(plain.logits, quick.logits, rtol=1e-9)


def test_it_goes_along_to_another_dtype() -> None:
    robust = controlled(["input", "2"])
    fast = robust.accelerate().float()
    x = images(4, 1).float()
    assert torch.allclose(fast(x), robust.float()(x), atol=1e-4)


def test_a_backend_that_is_none_is_refused() -> None:
    with pytest.raises(CutError, match=r"compile='nonsense'.*inductor"):
        controlled(["2"]).accelerate(compile="nonsense")


def test_leaving_early_takes_a_solver_a_cut_and_refuses_no_data() -> None:
    robust = controlled(["input", "2"])
    each = robust.configure(solver={"input": clcnn.PMP(lr=0.1), "2": clcnn.PMP(lr=0.2)})
    assert (each.leaving_early(images(50, 2)).solve(images(20, 3)).steps == 0).any()
    for empty in ([], images(1)[:0]):
        with pytest.raises(clcnn.DataError, match="no "):
            robust.leaving_early(empty)
        with pytest.raises(clcnn.DataError, match="no "):
            robust.calibrate(empty)
