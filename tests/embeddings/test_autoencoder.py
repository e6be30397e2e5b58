"""AutoencoderEmbedding: the paper's table of layers, training, padding, and what it learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from clcnn.embeddings import AutoencoderEmbedding, LinearEmbedding
from clcnn.embeddings.architectures import build
from clcnn.errors import DataError, FitError, LoadError


def images(n, shape, seed=0):
    """Smooth images: a few random waves, so that there is something to compress."""
    generator = torch.Generator().manual_seed(seed)
    c, H, W = shape
    waves = torch.randn(n, c, 2, 1, 1, generator=generator)
    rows = torch.linspace(0, 3, H).sin()[:, None].expand(H, W)
    columns = torch.linspace(0, 2, W).cos()[None, :].expand(H, W)
    return waves[:, :, 0] * rows + waves[:, :, 1] * columns


def parabola(n, seed=0, dtype=torch.float32):
    """States (2 z, z^2) of dimension 2 on a curve, which no line fits."""
    generator = torch.Generator().manual_seed(seed)
    z = 4 * torch.rand(n, generator=generator, dtype=torch.float64) - 2
    return torch.stack([2 * z, z.square()], 1).to(dtype)


def quick(**settings):
    return AutoencoderEmbedding(**({"epochs": 3, "batch_size": 16} | settings))


class TestLayers:
    @pytest.mark.parametrize(
        ("c1", "c2", "c3"), [(3, 18, 36), (16, 36, 72), (32, 128, 256), (1, 4, 8), (64, 256, 512)]
    )
    def test_table_of_the_paper(self, c1, c2, c3):
        network = build((c1, 8, 8), None, None, None, seed=0)
        halve = "kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))"
        expected = [
            f"Conv2d({c1}, {c2}, {halve}",
            "ELU(alpha=1.0)",
            f"BatchNorm2d({c2}, ",
            f"Conv2d({c2}, {c3}, {halve}",
            "ELU(alpha=1.0)",
            f"ConvTranspose2d({c3}, {c2}, {halve}",
            "ELU(alpha=1.0)",
            f"ConvTranspose2d({c2}, {c1}, {halve}",
        ]
        found = [repr(layer) for layer in (*network.encoder, *network.decoder)]
        assert len(found) == len(expected)
        assert all(map(str.startswith, found, expected))
        assert network.encoder(torch.zeros(2, c1, 8, 8)).shape == (2, c3, 2, 2)

    def test_given_channels(self):
        network = build((3, 8, 8), (5, 7), None, None, seed=0)
        assert network.encoder(torch.zeros(2, 3, 8, 8)).shape == (2, 7, 2, 2)

    @pytest.mark.parametrize("shape", [(6,), (2, 3), (6, 1, 1), (1, 2, 1, 3)])
    def test_other_states_are_flattened(self, shape):
        network = build(shape, None, (9, 5), None, seed=0)
        assert network.encoder(torch.zeros(2, 6)).shape == (2, 3)
        widths = [layer.out_features for layer in network.modules() if isinstance(layer, nn.Linear)]
        assert widths == [9, 5, 3, 5, 9, 6]
        assert network(torch.zeros(2, *shape)).shape == (2, *shape)

    @pytest.mark.parametrize(
        ("d", "width", "latent"), [(2, 64, 1), (100, 200, 50), (999, 1024, 499)]
    )
    def test_widths_left_out(self, d, width, latent):
        network = build((d,), None, None, None, seed=0)
        widths = [layer.out_features for layer in network.modules() if isinstance(layer, nn.Linear)]
        assert widths == [width, width, latent, width, width, d]


class TestPadding:
    @pytest.mark.parametrize("sides", [(14, 14), (8, 8), (5, 7), (1, 9), (3, 4)])
    def test_any_sides(self, sides):
        x = images(20, (2, *sides))
        embedding = quick().fit(x)
        assert embedding.project(x).shape == x.shape
        assert embedding.holdout_error_ < 2

    def test_the_border_is_replicated_evenly(self):
        network = build((1, 14, 13), None, None, None, seed=0).eval()
        x = torch.rand(3, 1, 14, 13)
        rows = torch.tensor([0, *range(14), 13])
        columns = torch.tensor([0, *range(13), 12, 12])
        padded = x[:, :, rows][:, :, :, columns]
        expected = network.decoder(network.encoder(padded))[:, :, 1:15, 1:14]
        torch.testing.assert_close(network(x), expected)

    def test_14_by_14_learns(self):
        x = images(300, (1, 14, 14))
        embedding = AutoencoderEmbedding(epochs=15, batch_size=16, lr=5e-3).fit(x)
        assert embedding.holdout_error_ < 0.1
        fresh = images(50, (1, 14, 14), seed=1)
        missed = embedding.energy(fresh).sum() / (fresh - x.mean(0)).square().sum()
        assert missed < 0.1


class TestTraining:
    def test_a_curve_that_no_line_fits(self):
        x = parabola(500)
        curved = AutoencoderEmbedding(epochs=60, patience=60, batch_size=64, lr=5e-3).fit(x)
        straight = LinearEmbedding(rank=1).fit(x)
        fresh = parabola(200, seed=1)
        assert curved.energy(fresh).mean() < 0.1 * straight.energy(fresh).mean()
        off = fresh + torch.tensor([0.0, 1.0])
        assert curved.energy(off).mean() > 10 * curved.energy(fresh).mean()

    def test_stops_early_with_the_best_weights(self):
        x = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))  # nothing to generalise
        embedding = quick(epochs=200, patience=4, lr=0.03, holdout=0.3).fit(x)
        losses = [epoch.holdout for epoch in embedding.history_]
        best = losses.index(min(losses)) + 1
        assert len(losses) == best + 4 < 200
        assert embedding.holdout_error_ == pytest.approx(min(losses))
        # A training that ends at the best epoch knows nothing of the worse ones after it.
        short = quick(epochs=best, patience=4, lr=0.03, holdout=0.3).fit(x)
        assert all(map(torch.equal, embedding.state_dict().values(), short.state_dict().values()))

    def test_at_most_the_epochs_asked_for(self):
        history = quick(epochs=3, patience=9).fit(parabola(50)).history_
        assert len(history) == 3
        assert history[-1].train < history[0].train

    def test_errors_are_shares_of_the_variance(self):
        # An auto-encoder that gives the mean back misses all of the variance.
        x = parabola(400, dtype=torch.float64)
        embedding = quick().fit(x)
        with torch.no_grad():
            embedding.network.decoder[-1].weight.zero_()
            embedding.network.decoder[-1].bias.zero_()
        missed = embedding.energy(x).sum() / (x - x.mean(0)).square().sum()
        assert float(missed) == pytest.approx(1.0)
        # And what is reported is what energy() says, here on a nearly complete hold-out.
        embedding = quick(holdout=0.99).fit(x)
        variance = (x - x.mean(0)).square().sum(1).mean()
        assert embedding.holdout_error_ == pytest.approx(
            float(embedding.energy(x).mean() / variance), rel=0.05
        )

    @pytest.mark.parametrize("shape", [(3,), (3, 8, 8)])
    def test_scale_and_shift_of_the_states_do_not_matter(self, shape):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(60, *shape, generator=generator, dtype=torch.float64)
        plain, moved = quick().fit(x), quick().fit(1e5 * x - 3e6)
        assert moved.holdout_error_ == pytest.approx(plain.holdout_error_, rel=1e-6)
        expected = 1e5 * plain.project(x) - 3e6
        torch.testing.assert_close(moved.project(1e5 * x - 3e6), expected)

    @pytest.mark.parametrize("shape", [(3,), (3, 8, 8)])
    def test_a_dead_channel_is_no_amplifier(self, shape):
        x = torch.randn(200, *shape, generator=torch.Generator().manual_seed(0))
        x[:, 1] = 5.0
        embedding = quick(epochs=10).fit(x)
        back = embedding.project(x)
        assert (back[:, 1] - 5.0).abs().max() < 0.1
        x[:, 1] += 0.01  # one percent of the others' scale
        assert (embedding.project(x) - back).abs().max() < 0.2

    @pytest.mark.parametrize("x", [parabola(20), images(20, (2, 1, 2))], ids=["flat", "image"])
    def test_a_lone_last_sample_is_a_batch(self, x):
        # 20 states, 2 held out: batches of 17 and 1, which batch normalisation must not refuse.
        assert 0 < quick(batch_size=17).fit(x).holdout_error_ < float("inf")

    def test_the_fewest_samples(self):
        assert quick().fit(parabola(3)).project(parabola(1)).shape == (1, 2)
        with pytest.raises(FitError, match="hold 2 samples, expected at least 3"):
            quick().fit(parabola(2))

    def test_the_seed_matters(self):
        x = parabola(50)
        a, b, c = (quick(seed=seed).fit(x).project(x) for seed in (0, 0, 1))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)

    def test_a_second_fit_forgets_the_first(self):
        embedding = quick().fit(images(20, (2, 8, 8)))
        embedding.fit(parabola(50))
        assert torch.equal(embedding.project(parabola(9)), quick().fit(parabola(50))(parabola(9)))

    def test_weights_are_frozen_and_in_eval_mode(self):
        embedding = quick().fit(parabola(50))
        nn.ModuleList([embedding]).train()
        assert not any(parameter.requires_grad for parameter in embedding.parameters())
        assert not any(module.training for module in embedding.modules())


class TestErrors:
    def test_memory(self):
        x = parabola(100).split(10)  # 8 bytes a state, twice
        quick(memory=1600).fit(x)
        with pytest.raises(FitError, match=r"first 100 states takes 1600 bytes.*fewer samples"):
            quick(memory=1599).fit(x)

    def test_divergence(self):
        with pytest.raises(FitError, match=r"diverged in epoch \d+.*Lower lr=1e\+30"):
            quick(lr=1e30).fit(parabola(100))
        embedding = quick().fit(parabola(100))
        embedding.lr = 1e30
        with pytest.raises(FitError, match="diverged"):
            embedding.fit(parabola(100))
        with pytest.raises(FitError, match="before it was fitted"):  # not half of a new fit
            embedding.project(parabola(5))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"epochs": 0},
            {"lr": 0.0},
            {"batch_size": 0},
            {"patience": 0},
            {"holdout": 0.0},
            {"holdout": 1.0},
            {"channels": (3,)},
            {"channels": (0, 3)},
            {"hidden": ()},
            {"hidden": (4, 0)},
            {"latent": 0},
            {"memory": 0},
        ],
        ids=str,
    )
    def test_settings(self, wrong):
        with pytest.raises(DataError, match=f"{next(iter(wrong))}.*expected"):
            AutoencoderEmbedding(**wrong)

    def test_restoring_what_does_not_fit(self):
        tensors = quick().fit(images(20, (2, 8, 8))).state_dict()
        with pytest.raises(LoadError, match=r"lack \['mean'\]"):
            quick().restore({k: v for k, v in tensors.items() if k != "mean"}, (2, 8, 8))
        with pytest.raises(LoadError, match="network"):
            quick().restore(tensors, (16,))
        with pytest.raises(LoadError, match="network"):
            quick(channels=(3, 3)).restore(tensors, (2, 8, 8))

    def test_error_before_fit(self):
        with pytest.raises(FitError, match="before it was fitted"):
            _ = quick().holdout_error_
        assert "not fitted" in repr(quick())
        assert "held-out error" in repr(quick().fit(parabola(20)))


def test_the_last_of_several_cuts_is_linear():
    prototype = quick()
    kinds = [type(prototype.for_cut(t, 3)) for t in range(3)]
    assert kinds == [AutoencoderEmbedding, AutoencoderEmbedding, LinearEmbedding]
    assert prototype.for_cut(2, 3).config()["energy"] == 0.99
    assert type(prototype.for_cut(0, 1)) is AutoencoderEmbedding
    assert type(quick(linear_last=False).for_cut(2, 3)) is AutoencoderEmbedding


def test_progress_is_shown_when_asked_for(capsys):
    quick().fit(parabola(20))  # captured output is no terminal
    assert capsys.readouterr() == ("", "")
    quick(progress=True, epochs=4).fit(parabola(20))
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "auto-encoder for (2,)" in shown.err
    assert "4/4" in shown.err
