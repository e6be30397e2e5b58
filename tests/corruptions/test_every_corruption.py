"""What every corruption promises: its own draws, its range, its size, its refusals."""

from __future__ import annotations

import sys
from itertools import pairwise

import pytest
import torch
from torch import Tensor

import clcnn
from clcnn.corruptions import NAMES, SEVERITIES, Corruption, corrupt
from clcnn.corruptions.digital import elastic_transform
from clcnn.corruptions.draws import Draws
from clcnn.data import sample
from clcnn.errors import DataError

each = pytest.mark.parametrize("name", NAMES)

RANDOM = sorted(
    set(NAMES)
    - {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression"}
)


@pytest.fixture(scope="module")
def images() -> Tensor:
    return sample().test[0]


def test_these_are_the_fifteen() -> None:
    assert len(set(NAMES)) == 15
    assert clcnn.corruptions.NAMES is NAMES


@each
@pytest.mark.parametrize("severity", SEVERITIES)
def test_an_image_is_corrupted_alike_in_any_batch(
    name: str, severity: int, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = images[:7]
    whole = corrupt(x, name, severity)
    assert torch.equal(corrupt(x, name, severity), whole)
    assert torch.equal(corrupt(x.flip(0), name, severity).flip(0), whole)
    assert torch.equal(torch.cat([corrupt(one[None], name, severity) for one in x]), whole)
    strangers = torch.cat([images[100:109], x[3:4], images[200:205]])
    assert torch.equal(corrupt(strangers, name, severity)[9], whole[3])
    monkeypatch.setattr(sys.modules["clcnn.corruptions.corrupt"], "_AT_ONCE", 2)
    assert torch.equal(corrupt(x, name, severity), whole)


@each
def test_the_result_is_an_image_of_256_levels(name: str, images: Tensor) -> None:
    x = images[:4].clone()
    state = torch.get_rng_state()
    z = corrupt(x.requires_grad_(), name, 5)
    assert torch.equal(torch.get_rng_state(), state)  # the global seed is not its business
    assert torch.equal(x, images[:4])
    assert not z.requires_grad
    assert (z.shape, z.dtype) == (x.shape, x.dtype)
    assert z.min() >= 0
    assert z.max() <= 1
    levels = 255 * z.double()
    torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)
    assert not torch.equal(z, x)
    assert torch.equal(corrupt(x.double(), name, 5).float(), z)


@each
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 5, 7), (1, 1, 1), (3, 20, 48), (3, 2, 3)])
def test_any_size_and_one_channel_or_three(name: str, shape: tuple[int, ...]) -> None:
    x = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    for severity in SEVERITIES:
        z = corrupt(x, name, severity)
        assert z.shape == x.shape
        assert z.isfinite().all()
    assert corrupt(x[:0], name, 1).shape == (0, *shape)


@each
def test_the_seed_decides_what_is_random_and_nothing_else(name: str, images: Tensor) -> None:
    x = images[:3]
    same = torch.equal(corrupt(x, name, 3, seed=0), corrupt(x, name, 3, seed=1))
    assert same == (name not in RANDOM)
    twins = corrupt(x[[0, 0]], name, 3)
    assert torch.equal(twins[0], twins[1])


def test_neighbouring_images_get_draws_of_their_own() -> None:
    x = torch.full((2, 3, 16, 16), 0.5)
    x[1, 0, 0, 0] = 0.5 + 1 / 255
    first, second = corrupt(x, "gaussian_noise", 1) - x
    assert abs(float(torch.corrcoef(torch.stack([first.ravel(), second.ravel()]))[0, 1])) < 0.15


GROWING = sorted(set(NAMES) - {"glass_blur", "motion_blur", "frost", "elastic_transform"})


def change(x: Tensor, name: str) -> list[float]:
    return [float((corrupt(x, name, s) - x).square().mean()) for s in SEVERITIES]


@pytest.mark.parametrize("name", GROWING)
def test_more_severe_is_farther_from_the_image(name: str, images: Tensor) -> None:
    found = change(images[:60], name)
    assert all(more > less for less, more in pairwise(found)), found


def test_where_the_published_constants_do_not_move_images_farther(images: Tensor) -> None:
    x = images[:60]
    glass = change(x, "glass_blur")  # 1 to 3 and 4 to 5 differ in smoothing, 4 from 2 in moving
    assert min(glass[3:]) > max(glass[:3])
    assert glass[0] > glass[1] > glass[2]
    motion = change(x, "motion_blur")  # 3 and 4 have the same sigma, and radii of no matter
    assert motion[0] < motion[1] < min(motion[2:4])
    assert max(motion[2:4]) < motion[4]
    assert motion[2] == pytest.approx(motion[3], rel=0.1)
    elastic = change(x, "elastic_transform")  # the affine part shrinks
    assert all(more < less for less, more in pairwise(elastic))


def test_frost_covers_more_while_it_darkens(images: Tensor) -> None:
    """1 - r^2, r the correlation with the clean image: no shift or scale counts."""
    x = images[:60].flatten(1)
    hidden = []
    for severity in SEVERITIES:
        z = corrupt(images[:60], "frost", severity).flatten(1)
        pairs = [torch.corrcoef(torch.stack(pair))[0, 1] for pair in zip(x, z, strict=True)]
        hidden.append(1 - float(torch.stack(pairs).square().mean()))
    assert all(more > less for less, more in pairwise(hidden)), hidden


def test_elastic_transforms_crumple_more_while_they_warp_less() -> None:
    """The second differences of a warped ramp, which no affine map has."""
    ramp = torch.linspace(0, 1, 64, dtype=torch.float64).expand(1, 1, 64, 64)
    found = []
    for severity in SEVERITIES:
        warped = [elastic_transform(ramp, severity, Draws(ramp, f"{seed}")) for seed in range(8)]
        bent = torch.cat(warped)[:, :, 16:-16, 16:-16].diff(n=2, dim=3)
        found.append(float(bent.square().mean()))
    assert all(more > less for less, more in pairwise(found)), found


def test_the_form_of_an_attack_corrupts_all_images(images: Tensor) -> None:
    x, y = images[:4], torch.zeros(4, dtype=torch.int64)

    def never(x: Tensor) -> Tensor:
        raise AssertionError("the model is not its business")

    assert torch.equal(Corruption("fog", 3, seed=2)(never, x, y), corrupt(x, "fog", 3, seed=2))


GOOD = torch.full((2, 3, 4, 4), 0.5)


@pytest.mark.parametrize(
    ("x", "name", "severity", "words"),
    [
        (GOOD, "mist", 1, "corruption 'mist' is unknown, expected one of gaussian_noise"),
        (GOOD, "fog", 0, r"expected a severity from 1 \(weak\) to 5 \(strong\), got 0"),
        (GOOD, "fog", 6, "got 6"),
        (GOOD, "fog", 2.0, r"expected severity as a whole number, got 2\.0"),
        (GOOD, "fog", True, "got True"),
        (GOOD.numpy(), "fog", 1, "got images as a ndarray, expected a torch.Tensor"),
        (GOOD[0], "fog", 1, r"shape \(3, 4, 4\).*x\.unsqueeze\(0\)"),
        (GOOD[:, :2], "fog", 1, "with 1 or 3 channels"),
        (GOOD[..., :0], "fog", 1, r"got images of shape \(2, 3, 4, 0\)"),
        (GOOD.to(torch.uint8), "fog", 1, r"torch\.uint8.*x\.float\(\) / 255"),
        (GOOD * torch.nan, "fog", 1, "got nan in 2 of 2 images"),
        (GOOD + 1, "fog", 1, r"values in \[1\.5, 1\.5\].*before any normalisation"),
        (-GOOD, "fog", 1, r"expected \[0, 1\]"),
        (GOOD * torch.inf, "fog", 1, r"expected \[0, 1\]"),
    ],
)
def test_refusals(x: Tensor, name: str, severity: int, words: str) -> None:
    with pytest.raises(DataError, match=words):
        corrupt(x, name, severity)


def test_settings_are_refused_before_there_are_images(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="'mist' is unknown"):
        Corruption("mist", 1)
    with pytest.raises(DataError, match="expected seed as a whole number"):
        Corruption("fog", 1, seed=0.5)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"pip install 'clcnn\[data\]'"):
        corrupt(GOOD, "jpeg_compression", 1)
