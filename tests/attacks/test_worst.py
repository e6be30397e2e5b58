"""Adaptive accuracy is never above oblivious accuracy, sample by sample."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from victims import Victim

from clcnn import ControlledModule
from clcnn.attacks import (
    CW,
    FGSM,
    PGD,
    Attack,
    Noise,
    Stealth,
    StraightThrough,
    Transfer,
    Unrolled,
    WorstCase,
)
from clcnn.attacks.base import Model
from clcnn.errors import DataError

EPS = 0.1


def right(model: Model, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x).argmax(1) == y


@pytest.mark.parametrize(
    "oblivious",
    [
        PGD(EPS),
        PGD(EPS, random_start=True, seed=7),
        FGSM(EPS),
        CW(EPS, initial_const=0.1, max_iter=5),
        Noise(EPS),
    ],
    ids=lambda attack: attack.label,
)
def test_never_above_oblivious(oblivious: Attack, victim: Victim, robust: ControlledModule) -> None:
    x, y = victim.x[:150], victim.y[:150]
    known = oblivious(victim.network, x, y)
    withstands = right(robust, known, y)
    weak = WorstCase([StraightThrough(FGSM(EPS))])
    worst = weak.strongest(robust, x, y, known=[known])
    assert not (worst.robust & ~withstands).any()
    assert not (worst.robust & ~right(robust, x, y)).any()
    assert torch.equal(right(robust, worst.x_adv, y), worst.robust)
    assert worst.accuracy == pytest.approx(float(worst.robust.float().mean()))
    used = torch.tensor([name == "known 0" for name in worst.by])
    assert torch.equal(worst.x_adv[used], known[used])
    assert used.any() or oblivious.label == "Noise"


def test_pgd_on_the_plain_network_is_always_among_them(
    victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.x[:150], victim.y[:150]
    worst = WorstCase([Noise(EPS)]).strongest(robust, x, y)
    alone = Transfer(PGD(EPS))(robust, x, y)
    assert not (worst.robust & ~right(robust, alone, y)).any()
    assert "Transfer(PGD)" in worst.by
    chosen = WorstCase([Noise(EPS), Transfer(FGSM(EPS))]).strongest(robust, x, y)
    assert "Transfer(PGD)" not in chosen.by
    assert "Transfer(FGSM)" in chosen.by
    plain = WorstCase([Noise(EPS)]).strongest(victim.network, x, y)  # nothing to transfer from
    assert set(plain.by) <= {None, "clean", "Noise"}


@pytest.mark.parametrize(
    "attack",
    [
        PGD(EPS),
        PGD(EPS, loss="margin", random_start=True, restarts=2, seed=3),
        PGD(2.0, norm="l2"),
        StraightThrough(PGD(EPS)),
        Unrolled(PGD(EPS, steps=10, step_size=EPS / 2)),
    ],
    ids=repr,
)
def test_who_is_beaten_costs_nothing_more_and_stays_beaten(
    attack: Attack, victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.x[:100], victim.y[:100]
    model = victim.network if isinstance(attack, PGD) else robust
    seen: list[int] = []
    hook = victim.network.stem.register_forward_pre_hook(lambda _, args: seen.append(len(args[0])))
    whole = attack(model, x, y)
    all_of_it = sum(seen)
    seen.clear()
    short = attack.for_verdicts()(model, x, y)
    hook.remove()
    assert sum(seen) < 0.8 * all_of_it
    assert torch.equal(right(model, short, y), right(model, whole, y))
    assert attack.within(short, x).all()
    assert not torch.equal(short, whole)


def test_a_sample_meets_the_same_whoever_leaves(victim: Victim) -> None:
    x, y = victim.right(20)
    attack = PGD(EPS / 4, lead=0.5)
    together = attack(victim.network, x, y)
    alone = torch.cat([attack(victim.network, x[i : i + 1], y[i : i + 1]) for i in range(20)])
    assert torch.allclose(together, alone, atol=1e-5)


def test_examples_of_a_worst_case_go_all_the_way(victim: Victim, robust: ControlledModule) -> None:
    # Asked for images, not for verdicts: someone may judge them on another model.
    x, y = victim.x[:60], victim.y[:60]
    worst = WorstCase([PGD(EPS)])
    assert torch.equal(worst(victim.network, x, y), PGD(EPS)(victim.network, x, y))
    quick = worst.strongest(victim.network, x, y)
    whole = worst.strongest(victim.network, x, y, in_full=True)
    assert torch.equal(quick.robust, whole.robust)
    assert not torch.equal(quick.x_adv, whole.x_adv)
    transferred = Transfer(worst)(robust, x, y)
    assert torch.equal(transferred, Transfer(PGD(EPS))(robust, x, y))


def test_views_that_answer_otherwise_are_attacked_in_full(victim: Victim) -> None:
    @dataclass(frozen=True)
    class Surrogate(PGD):
        def view(self, model: Model) -> Model:
            return victim.network

    attack = Surrogate(EPS)
    assert attack.for_verdicts() is attack


def test_who_left_too_early_comes_back(victim: Victim) -> None:
    x, y = victim.right(30)
    calls = [0]

    def fickle(images: Tensor) -> Tensor:
        # wrong by far at the second look, and honest ever after
        calls[0] += 1
        z = victim.network(images)
        return torch.roll(z, 1, dims=1) if calls[0] == 2 else z

    short = PGD(EPS, lead=0.5)(fickle, x, y)
    whole = PGD(EPS)(victim.network, x, y)
    assert torch.equal(right(victim.network, short, y), right(victim.network, whole, y))


def test_transferred_examples_are_made_in_full(victim: Victim, robust: ControlledModule) -> None:
    # What beats the plain network only just is weaker under control: it must go all the way.
    attack = Transfer(PGD(EPS))
    assert attack.for_verdicts() is attack
    assert StraightThrough(PGD(EPS)).for_verdicts() == StraightThrough(PGD(EPS, lead=0.5))
    assert PGD(EPS, lead=2.0).for_verdicts() == PGD(EPS, lead=2.0)
    x, y = victim.x[:100], victim.y[:100]
    worst = WorstCase([attack]).strongest(robust, x, y)
    assert torch.equal(worst.robust, right(robust, attack(robust, x, y), y) & right(robust, x, y))


@pytest.mark.parametrize("lead", [-1.0, float("inf"), float("nan")])
def test_a_lead_that_makes_no_sense(lead: float) -> None:
    with pytest.raises(DataError, match="lead >= 0"):
        PGD(EPS, lead=lead)


@dataclass(frozen=True)
class Never(Attack):
    """An attack that must not be asked about what others broke."""

    def run(self, model: Model, x: Tensor, y: Tensor, generator: torch.Generator) -> Tensor:
        raise AssertionError("nothing was left")


def test_each_sample_is_named_by_its_first_success(
    victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.x[:100], victim.y[:100]
    clean = right(robust, x, y)
    first, second = StraightThrough(FGSM(EPS)), Stealth(EPS, steps=10)
    worst = WorstCase([Transfer(FGSM(EPS)), first, second])
    done = worst.strongest(robust, x, y)
    left = clean.clone()
    for attack in worst.attacks:
        gone = left & ~right(robust, attack(robust, x, y), y)
        assert all(done.by[i] == attack.label for i in gone.nonzero().squeeze(1).tolist())
        left &= ~gone
    assert torch.equal(done.robust, left)
    assert [name for name, fine in zip(done.by, clean, strict=True) if not fine] == (
        ["clean"] * int((~clean).sum())
    )
    assert torch.equal(done.x_adv[~clean], x[~clean])
    assert torch.equal(worst(robust, x, y), done.x_adv)
    gone = WorstCase([PGD(1.0), Never(1.0)]).strongest(victim.network, x[:20], y[:20])
    assert not gone.robust.any()


def test_known_examples_are_checked(victim: Victim, robust: ControlledModule) -> None:
    x, y = victim.x[:10], victim.y[:10]
    worst = WorstCase([StraightThrough(FGSM(EPS))])
    with pytest.raises(DataError, match=r"10 of the 10 images in known\[1\] are further than eps"):
        worst.strongest(robust, x, y, known=[x, (x + 2 * EPS).clamp(0, 1)])
    with pytest.raises(DataError, match=r"known\[0\] has shape \(9, 1, 28, 28\)"):
        worst.strongest(robust, x, y, known=[x[:9]])
    with pytest.raises(DataError, match="expected int64"):
        worst.strongest(robust, x, y.int())
    nothing = worst.strongest(robust, x[:0], y[:0])
    assert nothing.x_adv.shape == (0, 1, 28, 28)


def test_what_a_smaller_ball_broke_is_broken(victim: Victim, robust: ControlledModule) -> None:
    x, y = victim.x[:60], victim.y[:60]
    attack = StraightThrough(FGSM(EPS))
    small = WorstCase([Transfer(FGSM(EPS / 2)), StraightThrough(FGSM(EPS / 2))])
    inner = small.strongest(robust, x, y)
    assert 0 < inner.robust.sum() < 60
    done = WorstCase([Transfer(FGSM(EPS)), attack]).strongest(robust, x, y, within=inner)
    broken = ~inner.robust
    assert not (done.robust & broken).any()
    assert torch.equal(done.x_adv[broken], inner.x_adv[broken])
    assert all(done.by[i] == inner.by[i] for i in broken.nonzero().squeeze(1).tolist())
    # Of the others, and of nothing else, the attacks are asked.
    spared = WorstCase([Transfer(FGSM(EPS)), attack]).strongest(robust, x[~broken], y[~broken])
    assert torch.equal(done.robust[~broken], spared.robust)
    nothing = replace(inner, robust=torch.zeros_like(inner.robust))
    assert not WorstCase([Never(EPS)]).first_success(robust, x, y, within=nothing).robust.any()
    with pytest.raises(DataError, match=r"images in within\.x_adv are further than eps"):
        small.strongest(robust, x, y, within=done)
    with pytest.raises(DataError, match=r"within\.x_adv has shape \(60"):
        small.strongest(robust, x[:9], y[:9], within=inner)


def test_attacks_of_one_name_are_told_apart(victim: Victim) -> None:
    x, y = victim.right(60)
    worst = WorstCase([PGD(EPS, steps=1), Noise(EPS), PGD(EPS, steps=10), PGD(EPS, loss="margin")])
    done = worst.strongest(victim.network, x, y)
    first = ~right(victim.network, PGD(EPS, steps=1)(victim.network, x, y), y)
    third = ~right(victim.network, PGD(EPS, steps=10)(victim.network, x, y), y)
    names = {name for name in done.by if name is not None}
    assert {"PGD", "PGD 2"} <= names <= {"PGD", "Noise", "PGD 2", "PGD 3"}
    assert torch.equal(torch.tensor([name == "PGD" for name in done.by]), first)
    assert all(third[i] for i, name in enumerate(done.by) if name == "PGD 2")


def test_what_withstood_comes_back_as_it_was_last_tried(
    victim: Victim, robust: ControlledModule
) -> None:
    x, y = victim.x[:80], victim.y[:80]
    attacks = [Transfer(FGSM(0.03)), StraightThrough(FGSM(0.03))]
    done = WorstCase(attacks).strongest(robust, x, y)
    assert 10 < done.robust.sum() < 80
    left = done.robust
    last = attacks[-1](robust, x[left], y[left])
    assert torch.isclose(done.x_adv[left], last, atol=1e-6).float().mean() > 0.999
    assert torch.equal(right(robust, done.x_adv, y), left)


def test_no_attack_but_the_given_ones(victim: Victim, robust: ControlledModule) -> None:
    """With the oblivious examples at hand, none are made again."""
    x, y = victim.x[:100], victim.y[:100]
    known = PGD(EPS, steps=2)(victim.network, x, y)
    worst = WorstCase([Noise(EPS)])
    done = worst.first_success(robust, x, y, known=[known])
    assert set(done.by) <= {None, "clean", "known 0", "Noise"}
    assert "Transfer(PGD)" in worst.strongest(robust, x, y, known=[known]).by
    assert not (done.robust & ~right(robust, known, y)).any()
