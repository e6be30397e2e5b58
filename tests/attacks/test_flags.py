"""Each sign of a lying evaluation, on a case that shows it and on one that does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from victims import Victim

from clcnn import ControlledModule
from clcnn.attacks import EvaluationWarning, flags
from clcnn.errors import DataError, GradientError


def test_zero_gradients() -> None:
    slopes = torch.randn(5, 3, 2, 2)
    assert flags.zero_gradients(slopes) == []
    slopes[1] = 0
    slopes[2, 0] = 0  # not all of it
    slopes[3] = float("nan")
    (finding,) = flags.zero_gradients(slopes)
    assert finding.sentence.startswith("2 of 5 samples have no gradient at all")


def test_loss_not_rising() -> None:
    rising = torch.tensor([[0.1, 0.5], [0.3, 0.4], [0.5, 0.6]])
    assert flags.loss_not_rising(rising) == []
    (finding,) = flags.loss_not_rising(rising.flip(0))
    assert "from 0.55 to 0.3 in 2 steps" in finding.sentence
    assert flags.loss_not_rising(rising * float("nan"))
    with pytest.raises(DataError, match="expected"):
        flags.loss_not_rising(rising[0])


def test_epsilon_helps() -> None:
    assert flags.epsilon_helps({0.1: 0.4, 0.0: 0.9, 0.2: 0.4}) == []
    (finding,) = flags.epsilon_helps({0.1: 0.4, 0.0: 0.9, 0.2: 0.5})
    assert "rises from 0.4 at epsilon 0.1 to 0.5 at 0.2" in finding.sentence


def test_randomness() -> None:
    z = torch.randn(6, 4)
    assert flags.randomness(z, z + 1e-7) == []
    assert flags.randomness(z[:0], z[:0]) == []
    other = z.clone()
    other[3, 1] += 0.1
    (finding,) = flags.randomness(z, other)
    assert "1 of 6" in finding.sentence


def test_outside_bounds() -> None:
    x = torch.rand(4, 3, 2, 2)
    assert flags.outside_bounds(x) == []
    x[2, 0, 0, 0] = 1.5
    x[3, 0, 0, 0] = float("nan")
    (finding,) = flags.outside_bounds(x)
    assert finding.sentence.startswith("2 of 4 images")


def test_findings_are_warned_of() -> None:
    findings = flags.epsilon_helps({0.0: 0.1, 0.1: 0.2})
    with pytest.warns(EvaluationWarning, match="more epsilon helps the defender: accuracy rises"):
        assert flags.report(findings) == findings


def test_examining_a_model(victim: Victim, robust: ControlledModule) -> None:
    x, y = victim.right(10)
    network = victim.network
    assert flags.examine(network, x, y) == []
    assert flags.examine(robust.configure(grad="straight_through"), x, y) == []
    with pytest.raises(GradientError, match="straight_through"):
        flags.examine(robust, x, y)

    def names(model: object, x: Tensor = x) -> list[str]:
        return [finding.check for finding in flags.examine(model, x, y)]  # type: ignore[arg-type]

    assert names(network, 255 * x) == ["outside [0,1]"]
    assert names(lambda x: network(x) + torch.rand(len(x), 10)) == ["randomness"]
    assert names(lambda x: network((255 * x).round() / 255 + 0 * x.detach())) == [
        "zero gradients",
        "loss does not rise",
    ]

    class Downhill(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, *grads: Tensor) -> Tensor:
            return -grads[0]

    assert names(lambda x: network(Downhill.apply(x))) == ["loss does not rise"]


def test_a_black_box_that_finds_what_gradients_left() -> None:
    assert flags.black_box_beats_white_box(["clean", "PGD", None, "known 0"]) == []
    (found,) = flags.black_box_beats_white_box(["PGD", "Square", None, "Square 2"])
    assert found.check == "black-box beats white-box"
    assert "Square broke 2 samples" in found.sentence
