"""Losses, augmentation, schedule, methods and settings, each against an oracle of its own."""

from __future__ import annotations

import pytest
import torch
from tiny_images import ENTRY
from torch import nn
from torch.nn.functional import cross_entropy, pad

from clcnn.attacks import FGSM, PGD
from clcnn.errors import DataError
from clcnn.models import ResNet20
from clcnn.training import Settings, smoothed_cross_entropy
from clcnn.training.augment import crop_and_flip, shrunk
from clcnn.training.methods import Adversarial, attack_for, faster, method_for
from clcnn.training.schedule import one_cycle
from clcnn.training.settings import generator


def test_label_smoothing_gives_the_true_class_nine_tenths() -> None:
    logits, y = torch.randn(6, 10, dtype=torch.float64), torch.arange(6)
    targets = torch.full((6, 10), 0.1 / 9, dtype=torch.float64)
    targets[torch.arange(6), y] = 0.9
    assert torch.allclose(smoothed_cross_entropy(logits, y), cross_entropy(logits, targets))
    other = cross_entropy(logits, y, label_smoothing=0.1)
    assert not torch.allclose(smoothed_cross_entropy(logits, y), other)
    same = cross_entropy(logits, y, label_smoothing=0.1 * 10 / 9)
    assert torch.allclose(smoothed_cross_entropy(logits, y), same)
    assert torch.allclose(smoothed_cross_entropy(logits, y, true=1.0), cross_entropy(logits, y))
    with pytest.raises(DataError, match="0 < true <= 1"):
        smoothed_cross_entropy(logits, y, true=0.0)


@pytest.mark.parametrize("flip", [True, False])
def test_every_crop_is_a_shifted_image(flip: bool) -> None:
    pixels = torch.randint(1, 256, (64, 3, 6, 5), dtype=torch.uint8)
    out = crop_and_flip(pixels, generator(3), padding=2, flip=flip)
    assert out.shape == pixels.shape
    assert out.is_contiguous(memory_format=torch.channels_last)
    seen = set()
    for image, result in zip(pixels, out, strict=True):
        padded = pad(image, (2, 2, 2, 2))
        matches = [
            (top, left, mirrored)
            for top in range(5)
            for left in range(5)
            for mirrored in ((False, True) if flip else (False,))
            for window in [padded[:, top : top + 6, left : left + 5]]
            if torch.equal(window.flip(-1) if mirrored else window, result)
        ]
        assert matches
        seen.add(matches[0])
    assert {top for top, _, _ in seen} == {left for _, left, _ in seen} == set(range(5))
    assert {mirrored for _, _, mirrored in seen} == ({False, True} if flip else {False})
    assert torch.equal(out, crop_and_flip(pixels, generator(3), padding=2, flip=flip))


def test_one_cycle() -> None:
    rates = [one_cycle(step, 100, 0.4) for step in range(100)]
    assert max(rates) == pytest.approx(0.4)
    assert rates.index(max(rates)) == 19
    assert rates[:20] == sorted(rates[:20])
    assert rates[19:] == sorted(rates[19:], reverse=True)
    assert rates[0] < 0.05
    assert rates[-1] == pytest.approx(0, abs=1e-12)
    assert one_cycle(0, 1, 0.4) == pytest.approx(0, abs=1e-12)


def test_generators_depend_on_everything_and_nothing_else() -> None:
    def draw(*where: int | str) -> float:
        return float(torch.rand(1, generator=generator(*where)))

    assert draw(0, 1, "order") == draw(0, 1, "order")
    values = {draw(0, 1, "order"), draw(1, 0, "order"), draw(0, 1, "noise"), draw(0, 1, "noise", 0)}
    assert len(values) == 4


@pytest.mark.parametrize(("method", "attack"), [("fgsm", FGSM), ("pgd", PGD)])
def test_adversarial_loss_is_the_mix(method: str, attack: type) -> None:
    network = ResNet20(num_classes=4, mean=ENTRY.mean, std=ENTRY.std).train()
    x, y = torch.rand(8, 3, 8, 8), torch.arange(8) % 4
    settings = Settings("resnet20", "cifar10", method, clean_weight=0.3)
    adversarial = method_for(settings)
    assert isinstance(adversarial, Adversarial)
    assert isinstance(adversarial.attack, attack)
    outcome = adversarial.loss(network, network, x, y, generator(0))
    assert network.training
    # the attack left no gradient and no trace in the batch statistics: one forward in train mode
    assert all(p.grad is None for p in network.parameters())
    assert int(network.state_dict()["stem.2.num_batches_tracked"]) == 1
    assert outcome.perturbed is not None
    clean, perturbed = cross_entropy(outcome.logits, y), cross_entropy(outcome.perturbed, y)
    assert torch.allclose(outcome.loss, 0.3 * clean + 0.7 * perturbed)
    assert perturbed > clean


def test_training_attacks_a_folded_copy_of_the_network() -> None:
    network = ResNet20().double()
    x, y = torch.rand(4, 3, 32, 32, dtype=torch.float64), torch.arange(4)
    network(torch.rand(8, 3, 32, 32, dtype=torch.float64))  # statistics other than 0 and 1
    network.eval()
    attack = PGD(0.03, steps=3)
    expected = attack.run(network, x, y, generator(0))
    assert torch.allclose(attack.run(faster(network, x), x, y, generator(0)), expected)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in faster(network, x).modules())


def test_attacks_of_the_paper() -> None:
    pgd = attack_for(Settings("resnet20", "cifar10", "pgd"))
    assert pgd == PGD(8 / 255, steps=7, step_size=2 / 255, random_start=True)
    other = attack_for(Settings("resnet20", "cifar10", "pgd", eps=2, step_size=0.5))
    assert other == PGD(2 / 255, steps=7, step_size=0.5 / 255, random_start=True)
    assert attack_for(Settings("resnet20", "cifar10", "fgsm")) == FGSM(4 / 255)
    with pytest.raises(DataError, match="has no attack"):
        attack_for(Settings("resnet20", "cifar10"))


def test_the_radius_moves_by_half_time() -> None:
    settings = Settings("resnet20", "cifar10", "fgsm", epochs=8, eps=4, eps_start=16)
    radii = [attack_for(settings, epoch).eps * 255 for epoch in range(8)]
    assert radii == pytest.approx([16, 13, 10, 7, 4, 4, 4, 4])
    constant = Settings("resnet20", "cifar10", "fgsm", epochs=8)
    assert {attack_for(constant, epoch).eps for epoch in range(8)} == {4 / 255}
    assert "--eps-start 16" in settings.command


def test_small_images_come_first() -> None:
    settings = Settings("resnet20", "cifar10", epochs=7, sizes="20x3,24x2")
    assert [settings.edge(epoch) for epoch in range(7)] == [20, 20, 20, 24, 24, None, None]
    assert settings.command.endswith("--sizes 20x3,24x2")
    assert Settings("resnet20", "cifar10", epochs=7, sizes="20x3, 24x2") == settings
    assert Settings("resnet20", "cifar10").edge(0) is None


def test_shrunk_images_keep_their_mean_and_their_layout() -> None:
    x = torch.rand(4, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    assert shrunk(x, None) is x
    small = shrunk(x, 16)
    assert small.shape == (4, 3, 16, 16)
    assert small.is_contiguous(memory_format=torch.channels_last)
    # 2 x 2 pixels and their neighbours: away from the border the averages agree
    assert torch.allclose(small.mean((2, 3)), x.mean((2, 3)), atol=0.01)
    flat = torch.full((1, 1, 32, 32), 0.25)
    assert torch.allclose(shrunk(flat, 20), torch.full((1, 1, 20, 20), 0.25))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": "20"}, "expected EDGExEPOCHS"),
        ({"sizes": "20x1000000000000"}, "1000000000000 epochs of 40"),
        ({"momentum": -1.0}, r"momentum in \[0, 1\)"),
        ({"weight_decay": -1.0}, "weight_decay >= 0"),
        ({"seed": 2**70}, "expected a seed"),
        ({"precision": "bf16-true"}, "expected one of .*bf16-mixed"),
        ({"method": "pgd", "eps": -4.0}, "expected eps > 0, got -4"),
        ({"lr": float("nan")}, "expected lr > 0"),
        ({"sizes": "20x0"}, "expected EDGExEPOCHS"),
        ({"sizes": "20x3,24x3", "epochs": 6}, "6 epochs of 6"),
        ({"sizes": "2x1"}, "at least 4 pixels"),
        ({"method": "trades"}, "expected one of"),
        ({"epochs": 0}, "expected epochs > 0, got 0"),
        ({"batch_size": -1}, "expected batch_size > 0"),
        ({"batch_size": 10, "processes": 3}, "multiple of 3"),
        ({"clean_weight": 1.5}, r"in \[0, 1\]"),
        ({"steps": 3}, "no meaning"),
        ({"eps_start": 3}, "no meaning"),
        ({"method": "fgsm", "steps": 3}, "no meaning"),
    ],
)
def test_settings_that_make_no_sense(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Settings("resnet20", "cifar10", **changes)  # type: ignore[arg-type]


def test_the_command_repeats_the_settings() -> None:
    settings = Settings("resnet20", "cifar10", "pgd", epochs=3, lr=0.1, random_start=False)
    assert settings.command == (
        "clcnn train resnet20 --data cifar10 --method pgd --epochs 3 --seed 0 --lr 0.1 "
        "--no-random-start"
    )
    assert settings.name == "resnet20-cifar10-pgd"
    assert Settings("densenet40", "mnist").name == "densenet40-mnist"
