"""AutoEmbedding: the kind and rank it picks, by oracles on the same split; its way with streams."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
import torch
from conformance import CHECKS, Case
from networks import build, inputs
from projections import states

import clcnn
from clcnn.embeddings import (
    AutoEmbedding,
    Embedding,
    FrequencyEmbedding,
    LinearEmbedding,
    PatchEmbedding,
    SeparableEmbedding,
)
from clcnn.embeddings.auto import Weighed
from clcnn.errors import CutError, DataError, FitError

CASES = [
    Case("auto", AutoEmbedding, (2, 4, 6)),
    Case("auto-tokens", lambda: AutoEmbedding(energy=0.9), (5, 4)),
    Case("auto-vectors", AutoEmbedding, (7,)),
]
NOT_ITSELF = {"check_fit_returns_self"}  # what it returns is the embedding it chose


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c.__name__ not in NOT_ITSELF], ids=lambda c: c.__name__[6:]
)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_it_returns_conforms(case, check):
    check(case)


def noise(n, shape, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return 0.01 * torch.randn(n, *shape, generator=generator, dtype=torch.float64)


def low_rank(n=200, rank=5, shape=(3, 8, 8)):
    """Unstructured: a few random directions of the whole state."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, rank, generator=generator, dtype=torch.float64)
    V = torch.randn(rank, *shape, generator=generator, dtype=torch.float64)
    return torch.tensordot(z, V, 1) + noise(n, shape)


def product(n=200, shape=(3, 8, 8)):
    """A few directions along each axis, all their products."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, 2, 4, 4, generator=generator, dtype=torch.float64)
    for axis, size in enumerate(shape, start=1):
        mix = torch.randn(z.shape[axis], size, generator=generator, dtype=torch.float64)
        z = torch.tensordot(z, mix, ([axis], [0])).movedim(-1, axis)
    return z + noise(n, shape)


def patchwork(n=200, directions=2, p=4, shape=(3, 8, 8)):
    """Patches of their own, each in the same few directions."""
    generator = torch.Generator().manual_seed(0)
    C, H, W = shape
    z = torch.randn(n, H // p, W // p, directions, generator=generator, dtype=torch.float64)
    V = torch.randn(directions, C, p, p, generator=generator, dtype=torch.float64)
    x = torch.einsum("nijk,kcab->nciajb", z, V).reshape(n, *shape)
    return x + noise(n, shape)


@pytest.mark.parametrize(
    ("x", "kind", "rank"),
    [(low_rank(), LinearEmbedding, 5), (product(n=40), SeparableEmbedding, 32)],
    ids=["low rank", "product"],
)
def test_the_structure_of_the_states_decides(x, kind, rank):
    chosen = AutoEmbedding(energy=0.99).fit(x)
    assert type(chosen) is kind
    assert chosen.rank_ <= rank
    assert chosen.kept(x) > 0.98
    assert chosen.n_samples_ == len(x)  # fitted on all of them in the end


def test_patches_are_found_where_the_whole_is_too_large():
    x = patchwork(n=40, shape=(3, 16, 16))  # 16 patches: 32 directions, more than 32 samples span
    chosen = AutoEmbedding(energy=0.99).fit(x)
    assert type(chosen) is PatchEmbedding
    assert (chosen.patch, chosen.rank_) == (4, 32)


def waves(n=600, shape=(4, 16, 16)):
    """Frequencies that are independent, each with a mixture of the channels of its own."""
    generator = torch.Generator().manual_seed(0)
    C, H, W = shape
    z = torch.randn(n, C, H, W, generator=generator, dtype=torch.float64)
    mix = torch.randn(H, W, C, C, generator=generator, dtype=torch.float64)
    z = torch.einsum("ncij,ijcd->ndij", z, mix)
    falling = 1.0 + torch.arange(H, dtype=torch.float64)
    z /= (falling[:, None] + falling).square()
    A = torch.linalg.qr(torch.randn(H, H, generator=generator, dtype=torch.float64))[0]
    return torch.einsum("ndij,hi,wj->ndhw", z, A, A)


def test_waves_are_found_where_each_has_channels_of_its_own():
    x = waves()
    chosen = AutoEmbedding(energy=0.99).fit(x)
    assert type(chosen) is FrequencyEmbedding
    ranks = {one["kind"]: one["rank"] for one in chosen.choice_["weighed"]}
    assert {"frequency 4", "frequency 2"} < set(ranks)
    assert "frequency 1" not in ranks
    assert chosen.choice_["picked"] == f"frequency {chosen.block}"
    assert chosen.rank_ < 0.95 * min(ranks["separable"], ranks["patch 4"])
    only = AutoEmbedding(energy=0.99, kinds=["frequency"]).fit(x)
    assert (only.block, only.rank_) == (chosen.block, chosen.rank_)


def split(n, m, seed=0):
    out = torch.zeros(n, dtype=torch.bool)
    out[torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:m]] = True
    return out


@pytest.mark.parametrize("energy", [0.5, 0.9, 0.97])
def test_the_rank_is_the_smallest_that_keeps_the_energy_of_held_out_states(energy):
    x = states(300, (2, 4, 6))
    out = split(300, 60)
    rest, held = x[~out].flatten(1).numpy(), x[out].flatten(1).numpy()
    mean = rest.mean(0)
    V = np.linalg.svd(rest - mean, full_matrices=False)[2]
    kept = np.square((held - mean) @ V.T).sum(0).cumsum() / np.square(held - mean).sum()
    expected = int(np.argmax(kept >= energy)) + 1
    chosen = AutoEmbedding(energy, kinds=["linear"]).fit(list(x.split(23)))
    assert chosen.rank_ == expected
    (weighed,) = chosen.choice_["weighed"]
    assert weighed["kept"] == pytest.approx(kept[expected - 1])
    assert chosen.choice_["held_out"] == 60
    separable = AutoEmbedding(energy, kinds=["separable"]).fit(x)
    part = SeparableEmbedding(rank=separable.rank_).fit(x[~out])
    assert part.kept(x[out]) >= energy
    assert part.truncated(part.rank_ - 1).kept(x[out]) < energy


def test_a_full_basis_is_not_trusted_on_few_samples():
    """Of 40 samples a full basis keeps all, and little of new ones; what is picked keeps enough."""
    x, new = states(240, (4, 8, 8)).split([40, 200])
    chosen = AutoEmbedding(energy=0.95).fit(x)
    assert type(chosen) is not LinearEmbedding
    assert chosen.kept(new) > 0.93 > LinearEmbedding(energy=0.95).fit(x).kept(new) + 0.1
    with pytest.raises(FitError, match=r"no kind keeps 0.95 of 8 held-out.*linear keeps 0\.\d"):
        AutoEmbedding(0.95, kinds=["linear"]).fit(x)


class TestBudget:
    x = product()

    def weighed(self, chosen):
        return {one["kind"]: one for one in chosen.choice_["weighed"]}

    def test_what_is_too_expensive_is_not_taken(self):
        x = low_rank(rank=30)
        free, chosen = AutoEmbedding().fit(x), AutoEmbedding(budget=45).fit(x)
        assert type(free) is LinearEmbedding
        assert free.multiply_adds_ > 45 * 192 >= chosen.multiply_adds_
        assert chosen.rank_ > free.rank_
        for one in chosen.choice_["weighed"]:
            if one["rank"] is not None:
                assert one["within_budget"] == (one["multiply_adds"] <= 45 * 192)

    def test_nothing_within_it(self):
        with pytest.warns(UserWarning, match="no kind keeps .* within budget=2 .* Raise budget="):
            chosen = AutoEmbedding(budget=2).fit(self.x)
        able = [one for one in chosen.choice_["weighed"] if one["rank"] is not None]
        assert self.weighed(chosen)[chosen.choice_["picked"]]["multiply_adds"] == min(
            one["multiply_adds"] for one in able
        )
        assert "none does within the budget" in chosen.choice_["why"]

    def test_ruling_out_by_the_held_out_states_alone_agrees_with_fitting(self):
        x = states(400, (4, 8, 8))
        chosen = AutoEmbedding(energy=0.99, budget=60).fit(x)
        linear = self.weighed(chosen)["linear"]
        assert linear["rank"] is None
        out = split(400, 80)
        assert LinearEmbedding(rank=30).fit(x[~out]).kept(x[out]) <= linear["kept"] < 0.99

    def test_what_is_cheap_for_the_whole_state_is_never_too_dear(self):
        """Unless a budget is given: then that is what counts."""
        x = low_rank(n=400, rank=200, shape=(4, 16, 16))
        free, bound = AutoEmbedding().fit(x), AutoEmbedding(budget=256).fit(x)
        assert free.choice_["budget"] == 2**22 / 1024
        assert type(free) is LinearEmbedding
        assert 256 * 1024 < free.multiply_adds_ < 2**22
        assert bound.choice_["budget"] == 256
        assert bound.multiply_adds_ <= 256 * 1024
        large = AutoEmbedding(0.5, kinds=["separable"]).fit(noise(10, (8, 64, 64)))
        assert large.choice_["budget"] == 256

    def test_equal_ranks_go_to_the_cheaper(self):
        auto = AutoEmbedding()
        weighed = [Weighed("a", 1000, 90, 0.99, True), Weighed("b", 1029, 50, 0.99, True)]
        assert auto._pick(weighed, 5, 256.0)[0].kind == "b"
        weighed[1] = Weighed("b", 1031, 50, 0.99, True)
        assert auto._pick(weighed, 5, 256.0)[0].kind == "a"

    def test_where_nothing_is_within_the_budget_the_cheapest_of_all_is_taken(self):
        x = low_rank(n=500, rank=40, shape=(3, 16, 16))
        free = self.weighed(AutoEmbedding().fit(x))
        with pytest.warns(UserWarning, match="no kind keeps"):
            bound = AutoEmbedding(budget=1e-3).fit(x)
        able = [one for one in free.values() if one["rank"] is not None]
        cheapest = min(able, key=lambda one: one["multiply_adds"])
        assert bound.choice_["picked"] == cheapest["kind"]
        assert bound.multiply_adds_ <= 1.1 * cheapest["multiply_adds"]

    def test_a_full_basis_near_the_least_rank_goes_before(self):
        auto = AutoEmbedding()
        weighed = [Weighed("a", 1000, 90, 0.99, True), Weighed("linear", 1079, 500, 0.99, True)]
        assert auto._pick(weighed, 5, 256.0)[0].kind == "linear"
        weighed[1] = Weighed("linear", 1081, 500, 0.99, True)
        assert auto._pick(weighed, 5, 256.0)[0].kind == "a"
        weighed[1] = Weighed("linear", 900, 500, 0.99, False)
        assert auto._pick(weighed, 5, 256.0)[0].kind == "a"


class TestStreams:
    x = states(60, (2, 4, 6))

    def test_an_iterator_is_kept_while_it_fits(self):
        expected = AutoEmbedding().fit(list(self.x.split(10)))
        chosen = AutoEmbedding().fit(iter(self.x.split(10)))
        assert torch.equal(chosen.project(self.x), expected.project(self.x))
        assert chosen.choice_ == expected.choice_
        with pytest.raises(FitError, match=r"exceed memory=9999 .*re-iterable"):
            AutoEmbedding(memory=9999).fit(iter(self.x.split(10)))

    def test_batches_do_not_matter(self):
        a, b = AutoEmbedding().fit(self.x), AutoEmbedding().fit(self.x.split(7))
        assert (type(a), a.rank_) == (type(b), b.rank_)

    def test_a_stream_that_changes(self):
        x = self.x

        class Shrinking:
            passes = 0

            def __iter__(self):
                self.passes += 1
                return iter(x[: 60 - self.passes].split(10))

        with pytest.raises(FitError, match="differ between two passes: 59 samples, then 58"):
            AutoEmbedding().fit(Shrinking())

    def test_few_samples(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for n in (2, 3, 9):
                chosen = AutoEmbedding().fit(self.x[:n])
                assert type(chosen) is LinearEmbedding
                assert f"{n} samples are too few" in chosen.choice_["why"]
            assert AutoEmbedding().fit(self.x[:10]).choice_["held_out"] == 2
        with pytest.raises(FitError, match="3 samples found, expected at least 4"):
            AutoEmbedding(kinds=["separable"]).fit(self.x[:3])

    def test_half_precision(self):
        chosen = AutoEmbedding(0.9).fit(self.x.to(torch.bfloat16))
        exact = AutoEmbedding(0.9).fit(self.x.to(torch.bfloat16).float())
        assert (type(chosen), chosen.rank_) == (type(exact), exact.rank_)
        assert chosen.mean.dtype == torch.bfloat16

    def test_vectors(self):
        chosen = AutoEmbedding(0.9).fit(states(80, (12,)))
        assert (type(chosen), chosen.choice_["why"]) == (LinearEmbedding, "the states are vectors")
        assert chosen.config()["energy"] == 0.9


class TestUnderControl:
    def controlled(self, **settings):
        model = build("residual", torch.float32)
        return clcnn.control(model, model.cuts, **settings).fit(inputs(model, 60, torch.float32))

    def test_it_is_the_default_and_has_a_name(self):
        kinds = [
            [repr(E) for E in self.controlled(**given).embeddings]
            for given in ({}, {"embedding": "auto"}, {"embedding": AutoEmbedding()})
        ]
        assert kinds[0] == kinds[1] == kinds[2]

    def test_by_name_at_one_cut(self):
        model = build("residual", torch.float32)
        given = dict.fromkeys(model.cuts, LinearEmbedding(rank=2)) | {"layer1": "auto"}
        robust = clcnn.control(model, model.cuts, embedding=given)
        robust.fit(inputs(model, 60, torch.float32))
        chosen = [E.choice_ is not None for E in robust.embeddings]
        assert chosen == [name == "layer1" for name in model.cuts]

    def test_other_names_are_refused(self):
        with pytest.raises(CutError, match="found a str as embedding"):
            self.controlled(embedding="pca")

    def test_what_was_weighed_is_saved(self, tmp_path):
        robust = self.controlled()
        robust.save(tmp_path / "r.safetensors")
        loaded = clcnn.load(tmp_path / "r.safetensors", robust.model)
        x = inputs(robust.model, 4, torch.float32, seed=7)
        assert torch.equal(loaded(x), robust(x))
        for old, new in zip(robust.embeddings, loaded.embeddings, strict=True):
            assert new.choice_ == old.choice_
            assert json.loads(json.dumps(old.choice_)) == old.choice_
            assert new.choice_["picked"]
        assert LinearEmbedding(rank=2).choice_ is None


def test_settings():
    for wrong in ({"energy": 0}, {"energy": 99}):
        with pytest.raises(DataError, match="expected a share"):
            AutoEmbedding(**wrong)
    for wrong in ({"holdout": 0}, {"holdout": 1}, {"budget": 0}, {"memory": 0}):
        with pytest.raises(DataError, match="multiply-adds a feature"):
            AutoEmbedding(**wrong)
    for wrong in (["pca"], [], "linear"):
        with pytest.raises(DataError, match="expected some of separable, patch, frequency"):
            AutoEmbedding(kinds=wrong)
    with pytest.raises(FitError, match=r"no patch of 2, 4, 8, 16 divides .*\(2, 5, 5\)"):
        AutoEmbedding(kinds=["patch"]).fit(states(20, (2, 5, 5)))
    auto = AutoEmbedding(0.9, kinds=["patch", "separable"])
    assert AutoEmbedding(**json.loads(json.dumps(auto.config()))).config() == auto.config()
    assert isinstance(auto, Embedding)
    for method in ("project", "residual", "energy"):
        with pytest.raises(FitError, match="AutoEmbedding is used before it was fitted"):
            getattr(auto, method)(torch.zeros(2, 3))
