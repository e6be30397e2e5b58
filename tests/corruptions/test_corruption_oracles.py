"""Each corruption beside its closed form, or what another library makes of it."""

from __future__ import annotations

import colorsys
import io
import math

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor

from clcnn.corruptions import SEVERITIES, corrupt
from clcnn.corruptions.blur import disk
from clcnn.corruptions.grids import bilinear, gaussian_weights, mirrored, smoothed, trailed
from clcnn.data import sample

each_severity = pytest.mark.parametrize("severity", SEVERITIES)
LEVEL = 1 / 255
HALF = 0.5001 * LEVEL  # what rounding to 256 levels may add


def noise(*shape: int, seed: int = 0) -> Tensor:
    """Images of random bytes."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, generator=generator) / 255


def grey(value: float, channels: int = 3, side: int = 128) -> Tensor:
    return torch.full((1, channels, side, side), round(255 * value) / 255)


@each_severity
def test_gaussian_noise_has_its_standard_deviation(severity: int) -> None:
    x = grey(0.5)
    d = (corrupt(x, "gaussian_noise", severity) - x).double()
    c = [0.04, 0.06, 0.08, 0.09, 0.10][severity - 1]
    assert float(d.std()) == pytest.approx(c, rel=0.02)
    assert float(d.mean()) == pytest.approx(0, abs=5 * c / d.numel() ** 0.5)
    assert float((d**4).mean() / d.var() ** 2) == pytest.approx(3, abs=0.15)


@each_severity
def test_shot_noise_has_a_variance_in_proportion_to_the_light(severity: int) -> None:
    photons = [500, 250, 100, 75, 50][severity - 1]
    for light in (0.2, 0.4):
        x = grey(light)
        z = corrupt(x, "shot_noise", severity).double()
        # The 256 levels add a little, the more so where they beat with the steps of 1 / photons.
        assert float(z.var()) == pytest.approx(float(x.mean()) / photons, rel=0.06)
        assert float(z.mean()) == pytest.approx(float(x.mean()), rel=0.005)
    assert torch.equal(corrupt(grey(0), "shot_noise", severity), grey(0))


@each_severity
def test_impulse_noise_hits_its_share_of_values(severity: int) -> None:
    x = grey(0.5)
    z = corrupt(x, "impulse_noise", severity)
    c = [0.01, 0.02, 0.03, 0.05, 0.07][severity - 1]
    hit = z != x
    spread = 4 * (c / x.numel()) ** 0.5
    assert float(hit.float().mean()) == pytest.approx(c, abs=spread)
    assert set(z[hit].tolist()) == {0.0, 1.0}
    assert float(z[hit].mean()) == pytest.approx(0.5, abs=0.06)


@each_severity
@pytest.mark.parametrize(
    "name",
    ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "elastic_transform", "pixelate"],
)
def test_what_only_moves_light_leaves_a_constant_image_alone(name: str, severity: int) -> None:
    x = torch.stack([grey(v, side=17)[0] for v in (0.0, 0.3, 1.0)])
    assert torch.equal(corrupt(x, name, severity), x)


@each_severity
def test_defocus_is_a_correlation_with_a_softened_disk(severity: int) -> None:
    radius, sigma = [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)][severity - 1]
    sharp = np.zeros((17, 17))
    for i in range(17):
        for j in range(17):
            sharp[i, j] = math.hypot(i - 8, j - 8) <= radius
    w = np.exp(-np.array([1, 0, 1]) / (2 * sigma**2))
    kernel = ndimage.convolve(sharp / sharp.sum(), np.outer(w, w) / w.sum() ** 2)
    assert float(disk(radius, sigma).sum()) == pytest.approx(1)
    x = noise(1, 3, 12, 15)
    expected = np.stack([ndimage.correlate(c, kernel, mode="mirror") for c in x[0].double()])
    found = corrupt(x, "defocus_blur", severity)[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=HALF)


def test_glass_takes_each_pixel_from_itself_or_up_or_left() -> None:
    x = noise(1, 3, 20, 24)[0]
    z = corrupt(x[None], "glass_blur", 1)[0]  # whose sigma smooths nothing
    assert torch.equal(z[:, :2], x[:, :2])
    assert torch.equal(z[:, :, :2], x[:, :, :2])
    counts = [0, 0, 0, 0]
    for i in range(2, 20):
        for j in range(2, 24):
            near = [x[:, i - k // 2, j - k % 2] for k in range(4)]
            found = [k for k, pixel in enumerate(near) if torch.equal(pixel, z[:, i, j])]
            assert len(found) == 1
            counts[found[0]] += 1
    assert min(counts) > sum(counts) / 4 - 4 * sum(counts) ** 0.5


def test_a_trail_is_the_weighted_sum_along_its_direction() -> None:
    x = noise(2, 1, 9, 11).double()
    degrees = torch.tensor([30.0, -80.0], dtype=torch.float64)
    found = trailed(x, 4, 2.0, degrees)
    w = [math.exp(-(k**2) / 8) for k in range(9)]
    for b, angle in enumerate(map(math.radians, degrees.tolist())):
        for i in range(9):
            for j in range(11):
                total = 0.0
                for k, weight in enumerate(w):
                    row = min(max(i + round(k * math.sin(angle)), 0), 8)
                    column = min(max(j + round(k * math.cos(angle)), 0), 10)
                    total += weight * float(x[b, 0, row, column])
                assert float(found[b, 0, i, j]) == pytest.approx(total / sum(w))


@each_severity
def test_motion_blur_spreads_a_point_along_a_line(severity: int) -> None:
    x = torch.zeros(1, 1, 64, 64)
    x[..., 32, 32] = 1
    z = corrupt(x, "motion_blur", severity)[0, 0]
    assert float(z.sum()) == pytest.approx(1, abs=0.03)
    i, j = z.nonzero().double().unbind(1)
    right, down = (j - 32).abs(), (i - 32).abs()
    assert (down <= right + 0.5).all()  # at most 45 degrees from the horizontal
    slope = float(i[-1] - i[0]) / float(j[-1] - j[0]) if j[-1] != j[0] else 0.0
    assert ((i - i[0]) - slope * (j - j[0])).abs().max() <= 1


@each_severity
def test_zoom_blur_is_the_mean_of_enlargements(severity: int) -> None:
    x = noise(1, 3, 32, 32)
    image = x[0].double().numpy()
    last = [1.06, 1.11, 1.15, 1.20, 1.25][severity - 1]
    factors = np.arange(1, last + 0.005, 0.01)
    total = image.copy()
    for factor in factors:
        inner = math.ceil(32 / factor)
        top = (32 - inner) // 2
        crop = image[:, top : top + inner, top : top + inner]
        large = ndimage.zoom(crop, (1, factor, factor), order=1)
        top = (large.shape[1] - 32) // 2
        total += large[:, top : top + 32, top : top + 32]
    expected = total / (len(factors) + 1)
    np.testing.assert_allclose(corrupt(x, "zoom_blur", severity)[0].numpy(), expected, atol=HALF)


@each_severity
def test_snow_falls_on_both_halves_alike_and_pales_the_rest(severity: int) -> None:
    m = [0.95, 0.9, 0.9, 0.85, 0.8][severity - 1]
    black = torch.zeros(1, 3, 32, 32)
    z = corrupt(black, "snow", severity)
    assert torch.equal(z, z.flip(2, 3))
    assert torch.equal(z[:, :1].expand_as(z), z)  # white flakes
    assert float(z.min()) >= (1 - m) * 0.5 - HALF
    assert float(z.max()) > (1 - m) * 0.5 + 0.1
    if severity < 4:  # between few flakes there is none
        assert float(z.min()) == pytest.approx((1 - m) * 0.5, abs=HALF)
    assert torch.equal(corrupt(1 - black, "snow", severity), 1 - black)


@each_severity
def test_frost_is_a_mixture_with_ice(severity: int) -> None:
    a, b = [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)][severity - 1]
    ice = corrupt(torch.zeros(1, 3, 32, 32), "frost", severity)
    assert float(ice[:, 2].max()) == pytest.approx(b, abs=HALF)
    assert float(ice.min()) == pytest.approx(0, abs=HALF)
    x = torch.full((1, 1, 32, 32), 0.2)
    z = corrupt(x, "frost", severity)
    assert float(z.min()) == pytest.approx(0.2 * a, abs=HALF)
    assert float(z.max()) == pytest.approx(0.2 * a + b, abs=HALF)
    assert 0.3 * b < float(z.mean()) - 0.2 * a < 0.7 * b


@each_severity
def test_fog_on_a_flat_image_runs_from_its_closed_forms(severity: int) -> None:
    c = [0.2, 0.5, 0.75, 1, 1.5][severity - 1]
    x = grey(0.6, side=32)
    z = corrupt(x, "fog", severity)
    v = float(x.max())
    assert float(z.max()) == pytest.approx(v, abs=HALF)  # (v + c) v / (v + c)
    assert float(z.min()) == pytest.approx(v * v / (v + c), abs=HALF)
    fog = z[0, 0]
    rough = (fog - fog.roll(1, 0)).square().mean() / (fog - fog.mean()).square().mean()
    assert rough < 0.5, "neighbours are alike"


@each_severity
def test_brightness_raises_the_value_of_hsv(severity: int) -> None:
    c = [0.05, 0.1, 0.15, 0.2, 0.3][severity - 1]
    x = noise(1, 3, 8, 8)
    x[..., 0, 0] = 0
    z = corrupt(x, "brightness", severity)
    for i in range(8):
        for j in range(8):
            h, s, v = colorsys.rgb_to_hsv(*x[0, :, i, j].double().tolist())
            expected = colorsys.hsv_to_rgb(h, s, min(v + c, 1))
            assert z[0, :, i, j].tolist() == pytest.approx(expected, abs=HALF)
    one = noise(1, 1, 8, 8)
    expected_one = (one + c).clamp(max=1)
    torch.testing.assert_close(
        corrupt(one, "brightness", severity), expected_one, atol=HALF, rtol=0
    )


@each_severity
def test_contrast_pulls_each_channel_to_its_mean(severity: int) -> None:
    c = [0.75, 0.5, 0.4, 0.3, 0.15][severity - 1]
    x = noise(2, 3, 9, 9).double().numpy()
    mean = np.array([[[[np.mean(plane)]] for plane in image] for image in x])
    z = corrupt(torch.from_numpy(x), "contrast", severity).numpy()
    np.testing.assert_allclose(z, c * x + (1 - c) * mean, atol=HALF)


def test_the_mildest_elastic_transform_is_affine() -> None:
    """A plane stays one where nothing comes from beyond the border, at a new slope."""
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    x = ((rows + 2 * columns) / 189).expand(1, 1, 64, 64)
    z = corrupt(x, "elastic_transform", 1)[0, 0].double().numpy()
    i, j = np.mgrid[16:48, 16:48]
    A = np.stack([i.ravel(), j.ravel(), np.ones(i.size)], 1)
    inner = z[16:48, 16:48].ravel()
    plane, *_ = np.linalg.lstsq(A, inner, rcond=None)
    np.testing.assert_allclose(A @ plane, inner, atol=1.5 * HALF)
    assert not np.allclose(plane * 189, [1, 2, 0], atol=0.05)
    # No point of the triangle moves by more than 0.08 of the side, along either axis.
    centre = 189 * plane @ [32, 32, 1]
    assert abs(centre - (32 + 2 * 32)) <= 3 * 0.08 * 64 + 1


@pytest.mark.parametrize("twice", [False, True])
def test_bilinear_values_mirror_as_another_library_does(twice: bool) -> None:
    x = noise(2, 3, 7, 9).double()
    generator = torch.Generator().manual_seed(1)
    rows = 12 * torch.rand(2, 7, 9, generator=generator, dtype=torch.float64) - 3
    columns = 14 * torch.rand(2, 7, 9, generator=generator, dtype=torch.float64) - 3
    found = bilinear(x, rows, columns, twice=twice)
    mode = "reflect" if twice else "mirror"
    for b in range(2):
        for c in range(3):
            at = np.stack([rows[b].numpy(), columns[b].numpy()])
            expected = ndimage.map_coordinates(x[b, c].numpy(), at, order=1, mode=mode)
            np.testing.assert_allclose(found[b, c].numpy(), expected, atol=1e-12)
    far = mirrored(torch.arange(-20, 30), 5, twice=twice).numpy()
    width = (20, 25)
    padded = np.pad(np.arange(5), width, mode="symmetric" if twice else "reflect")
    np.testing.assert_array_equal(far, padded)


@pytest.mark.parametrize(("sigma", "truncate"), [(0.25, 4), (0.4, 4), (0.96, 3), (6.4, 3)])
def test_smoothing_is_a_gaussian_filter(sigma: float, truncate: float) -> None:
    x = noise(1, 2, 10, 13).double()
    for mirror, mode in ((False, "nearest"), (True, "reflect")):
        found = smoothed(x, sigma, truncate, mirror=mirror)[0]
        for c in range(2):
            expected = ndimage.gaussian_filter(x[0, c].numpy(), sigma, mode=mode, truncate=truncate)
            np.testing.assert_allclose(found[c].numpy(), expected, atol=1e-12)
    assert float(gaussian_weights(3, sigma).sum()) == pytest.approx(1)


@each_severity
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 20, 46)])
def test_pixelate_is_two_resizes_by_boxes(severity: int, shape: tuple[int, int, int]) -> None:
    c = [0.95, 0.9, 0.85, 0.75, 0.65][severity - 1]
    x = noise(1, *shape)
    height, width = shape[1:]
    small = picture(x[0]).resize((int(width * c), int(height * c)), Image.Resampling.BOX)
    back = small.resize((width, height), Image.Resampling.BOX)
    # Pillow rounds to bytes after every pass, of which two mix pixels. In these sizes no centre
    # lies on the border of a box, which Pillow would decide by the last bit.
    found = corrupt(x, "pixelate", severity)[0]
    np.testing.assert_allclose(found.numpy(), unit(back, shape), atol=1.01 * LEVEL)


@each_severity
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_what_pillow_writes(severity: int, channels: int) -> None:
    x = sample().test[0][:3, :channels]
    found = corrupt(x, "jpeg_compression", severity)
    for image, z in zip(x, found, strict=True):
        file = io.BytesIO()
        picture(image).save(file, "JPEG", quality=[80, 65, 58, 50, 40][severity - 1])
        with Image.open(file) as opened:
            np.testing.assert_array_equal(z.numpy(), unit(opened, tuple(image.shape)))


def picture(image: Tensor) -> Image.Image:
    pixels = np.rint(255 * image.numpy().transpose(1, 2, 0)).astype(np.uint8)
    return Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)


def unit(image: Image.Image, shape: tuple[int, ...]) -> np.ndarray:
    pixels = np.asarray(image).reshape(shape[1], shape[2], shape[0]).transpose(2, 0, 1)
    return pixels.astype(np.float32) / np.float32(255)
