"""`clcnn.harden`: all choices made, each as by hand, for any classifier."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import clcnn
from clcnn import DataError, Feedback, FitError, RefinedEmbedding, SpectralEmbedding, hardening


def images(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth waves whose direction is the class."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (count,), generator=generator)
    phase = 6.3 * torch.rand(count, 1, 1, generator=generator)
    wave = (torch.arange(8.0) * 0.9).expand(8, 8)
    x = torch.where(y[:, None, None] == 0, (wave + phase).sin(), (wave.T + phase).sin())
    noise = 0.02 * torch.randn(count, 1, 8, 8, generator=generator)
    return (0.5 + 0.3 * x[:, None] + noise).clamp(0, 1), y


@pytest.fixture
def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(256, 2)
        return nn.Sequential(*layers).eval()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    small = partial(RefinedEmbedding, widths=(2, 3, 4))
    monkeypatch.setattr(hardening, "RefinedEmbedding", small)


def hand_made(model: nn.Module, embedding: clcnn.Embedding, data: object) -> clcnn.ControlledModule:
    made = clcnn.control(model, ["input"], embedding=embedding, solver=Feedback(preset="strong"))
    return made.fit(data)  # type: ignore[arg-type]


def test_the_filter_alone_is_as_by_hand(model: nn.Module) -> None:
    x, y = images(60, 1)
    robust = clcnn.harden(model, (x, y), preset="strong", refine=False)
    other = hand_made(model, SpectralEmbedding(), (x, y))
    assert isinstance(robust.solver, Feedback)
    assert torch.equal(robust(x), other(x))
    assert not torch.equal(robust(x), model(x))
    assert robust.model is model


def test_with_a_network_behind_it_as_by_hand(model: nn.Module, quick: None) -> None:
    x, y = images(60, 1)
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    robust = clcnn.harden(
        model, loader, preset="strong", refine=True, seed=3, steps=2, progress=False
    )
    embedding = RefinedEmbedding(steps=2, widths=(2, 3, 4), seed=3, progress=False)
    assert torch.equal(robust(x), hand_made(model, embedding, loader)(x))


def test_whether_to_refine_follows_from_the_authority(
    model: nn.Module, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = images(60, 1)
    authority = float(hardening.spectrum_of(hardening.fit_filter(model, data)).authority)
    for least, kind in ((authority, RefinedEmbedding), (authority + 1e-6, SpectralEmbedding)):
        monkeypatch.setattr(hardening, "_ACTS", least)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            robust = clcnn.harden(model, data, steps=2, progress=False)
        assert type(robust.embeddings[0]) is kind


def test_what_is_no_image_gets_the_filter() -> None:
    flat = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).eval()
    x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        robust = clcnn.harden(flat, x)
        assert type(robust.embeddings[0]) is SpectralEmbedding
        with pytest.raises(FitError, match="expected images"):
            clcnn.harden(flat, x, refine=True, progress=False)


def test_detection_is_calibrated_where_data_are_given(model: nn.Module) -> None:
    fresh = images(99, 2)
    robust = clcnn.harden(model, images(60, 1), refine=False, calibrate_on=fresh, alpha=0.1)
    assert (len(robust.clean_scores), robust.alpha) == (99, 0.1)
    share = robust.detect(fresh[0]).flagged.double().mean()
    assert share == pytest.approx(0.1, abs=0.02)
    bare = clcnn.harden(model, images(60, 1), refine=False)
    with pytest.raises(clcnn.ClcnnError, match="calibrate"):
        bare.detect(fresh[0])


def test_what_is_refused(model: nn.Module) -> None:
    x, y = images(60, 1)
    with pytest.raises(DataError, match=r"'weak'.*'default', 'strong'"):
        clcnn.harden(model, (x, y), preset="weak")  # type: ignore[arg-type]
    with pytest.raises(FitError, match="only once"):
        clcnn.harden(model, iter([(x, y)]))


def test_arguments_are_looked_at_before_anything_is_fitted(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fitted(*given: object) -> None:
        raise AssertionError("too late")

    monkeypatch.setattr(hardening, "fit_filter", fitted)
    monkeypatch.setattr(hardening, "refined", fitted)
    data = images(60, 1)
    for settings, words in (
        ({"alpha": 5}, "found alpha=5"),
        ({"refine": "no"}, "found refine='no'"),
        ({"seed": 1.5}, "found seed=1.5"),
        ({"steps": 0}, "found steps=0"),
        ({"steps": 2.5}, "found steps=2.5"),
        ({"calibrate_on": 3}, "found a int as data"),
        ({"calibrate_on": images(15, 2)[0]}, "found 15 samples to calibrate on"),
        ({"calibrate_on": images(60, 2)[0][:, :, :5]}, r"shape \(1, 5, 8\) and torch.float32"),
    ):
        with pytest.raises(DataError, match=words):
            clcnn.harden(model, data, **settings)  # type: ignore[arg-type]


def test_bytes_are_no_images_to_calibrate_on(model: nn.Module) -> None:
    x, y = images(60, 1)
    with pytest.raises(DataError, match="uint8"):
        clcnn.harden(model, (x, y), refine=False, calibrate_on=(255 * x).byte())
    robust = clcnn.harden(model, (x, y), refine=False, calibrate_on=x.double())
    assert len(robust.clean_scores) == 60


def test_few_samples_are_remarked_upon(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardening, "_FEW", 60)
    x, y = images(60, 1)
    for count, words in ((59, ["found 59 clean samples"]), (60, [])):
        loader = DataLoader(TensorDataset(x[:count], y[:count]), batch_size=20)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            clcnn.harden(model, loader, refine=False)
        assert [str(warning.message).split(";")[0] for warning in heard] == words


class Grumbling(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        warnings.warn("corrupt EXIF data", stacklevel=2)
        return super().__getitem__(index)


def test_what_a_data_set_warns_of_is_heard_and_remarks_once(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clcnn.ControlledModule, "remarks", lambda self: ["leave it alone"])
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        clcnn.harden(model, DataLoader(Grumbling(*images(60, 1)), batch_size=30), refine=False)
    said = [str(warning.message) for warning in heard]
    assert "corrupt EXIF data" in said
    assert said.count("leave it alone") == 1
