"""A controlled network inside foolbox, ART and pyautoattack; FGSM and PGD against foolbox's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from victims import Victim

from clcnn import ControlledModule
from clcnn.attacks import FGSM, PGD, Attack
from clcnn.errors import GradientError

EPS = 0.1
MODES = ("straight_through", "unroll")


def right(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(1) == y


@pytest.mark.parametrize("eps", [0.02, 0.05, 0.1])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (FGSM, lambda attacks, eps: attacks.LinfFastGradientAttack()),
        (
            lambda eps: PGD(eps, steps=10),
            lambda attacks, eps: attacks.LinfProjectedGradientDescentAttack(
                steps=10, abs_stepsize=eps / 4, random_start=False
            ),
        ),
        (
            lambda eps: PGD(20 * eps, norm="l2", steps=10),
            lambda attacks, eps: attacks.L2ProjectedGradientDescentAttack(
                steps=10, abs_stepsize=20 * eps / 4, random_start=False
            ),
        ),
    ],
    ids=["fgsm", "pgd", "pgd-l2"],
)
def test_fgsm_and_pgd_agree_with_foolbox(
    ours: Callable[[float], Attack],
    theirs: Callable[[Any, float], Any],
    eps: float,
    victim: Victim,
) -> None:
    """The same success rate within one image in 500, in the same ball."""
    foolbox = pytest.importorskip("foolbox")
    x, y = victim.x[:500], victim.y[:500]
    attack = ours(eps)
    fmodel = foolbox.PyTorchModel(victim.network, bounds=(0, 1))
    _, x_fb, _ = theirs(foolbox.attacks, eps)(fmodel, x, y, epsilons=attack.eps)
    x_adv = attack(victim.network, x, y)
    broken, broken_fb = ~right(victim.network, x_adv, y), ~right(victim.network, x_fb, y)
    assert abs(int(broken.sum()) - int(broken_fb.sum())) <= 1
    assert broken.sum() > 160  # more than were wrong from the start
    order = {"linf": float("inf"), "l2": 2.0}[attack.norm]
    for moved in (x_adv, x_fb):
        reach = torch.linalg.vector_norm((moved - x).flatten(1), ord=order, dim=1).max()
        assert 0.99 * attack.eps <= reach <= attack.eps + 1e-6


def test_inside_foolbox(victim: Victim, robust: ControlledModule) -> None:
    foolbox = pytest.importorskip("foolbox")
    x, y = victim.x[:20], victim.y[:20]
    pgd = foolbox.attacks.LinfPGD(steps=3, abs_stepsize=EPS / 2, random_start=False)
    fmodel = foolbox.PyTorchModel(robust, bounds=(0, 1))
    assert torch.allclose(fmodel(x), robust(x), atol=1e-5)
    assert foolbox.accuracy(fmodel, x, y) == pytest.approx(
        float(right(robust, x, y).float().mean())
    )
    with pytest.raises(GradientError, match="straight_through"):
        pgd(fmodel, x, y, epsilons=EPS)
    for mode in MODES:
        chosen = robust.configure(grad=mode)
        fmodel = foolbox.PyTorchModel(chosen, bounds=(0, 1))
        _, x_fb, success = pgd(fmodel, x, y, epsilons=EPS)
        x_adv = PGD(EPS, steps=3, step_size=EPS / 2)(chosen, x, y)
        assert abs(int(success.sum()) - int((~right(robust, x_adv, y)).sum())) <= 1
        assert success.sum() > (~right(robust, x, y)).sum()
        assert (x_fb - x).abs().max() <= EPS + 1e-6
    boundary = foolbox.attacks.LinfAdditiveUniformNoiseAttack()  # needs predictions only
    boundary(foolbox.PyTorchModel(robust, bounds=(0, 1)), x, y, epsilons=EPS)


def test_inside_art(victim: Victim, robust: ControlledModule) -> None:
    evasion = pytest.importorskip("art.attacks.evasion")
    from art.estimators.classification import PyTorchClassifier

    x, y = victim.x[:20], victim.y[:20]
    one_hot = nn.functional.one_hot(y, 10).numpy()

    def classifier(model: nn.Module) -> Any:
        return PyTorchClassifier(
            model, nn.CrossEntropyLoss(), x.shape[1:], 10, clip_values=(0.0, 1.0)
        )

    def pgd(model: nn.Module) -> Tensor:
        attack = evasion.ProjectedGradientDescentPyTorch(
            classifier(model), eps=EPS, eps_step=EPS / 2, max_iter=3, verbose=False
        )
        return torch.from_numpy(attack.generate(x.numpy(), y.numpy()))

    predicted = classifier(robust).predict(x.numpy())
    assert np.allclose(predicted, robust(x).detach().numpy(), atol=1e-5)
    with pytest.raises(GradientError, match="straight_through"):
        pgd(robust)
    with pytest.raises(GradientError, match="straight_through"):
        classifier(robust).loss_gradient(x.numpy(), one_hot)
    for mode in MODES:
        chosen = robust.configure(grad=mode)
        slopes = torch.from_numpy(classifier(chosen).loss_gradient(x.numpy(), one_hot))
        at = x.clone().requires_grad_()
        nn.CrossEntropyLoss(reduction="sum")(chosen(at), y).backward()
        assert at.grad is not None
        scale = at.grad.abs().max()
        ratio = slopes.abs().max() / scale  # ART's loss is the mean over the batch, or the sum
        assert torch.allclose(slopes, ratio * at.grad, atol=float(1e-3 * ratio * scale))
        x_adv = pgd(chosen)
        assert (~right(robust, x_adv, y)).sum() > (~right(robust, x, y)).sum()
    assert not robust.training
    assert not victim.network.training


def test_inside_pyautoattack(victim: Victim, robust: ControlledModule) -> None:
    autoattack = pytest.importorskip("pyautoattack").AutoAttack
    x, y = victim.x[:8], victim.y[:8]

    def run(model: nn.Module, part: str) -> Tensor:
        suite = autoattack(model, eps=EPS, version="custom", attacks=[part], seed=0)
        suite.square.n_queries, suite.apgd.n_iter = 20, 10
        return suite.run_standard_evaluation(x, y)[0]

    assert (~right(robust, run(robust, "square"), y)).sum() >= (~right(robust, x, y)).sum()
    with pytest.raises(GradientError, match="straight_through"):
        run(robust, "apgd-ce")
    chosen = robust.configure(grad="straight_through")
    x_adv = run(chosen, "apgd-ce")
    assert (~right(robust, x_adv, y)).sum() > (~right(robust, x, y)).sum()
    assert (x_adv - x).abs().max() <= EPS + 1e-6
