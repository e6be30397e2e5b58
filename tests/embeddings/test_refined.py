"""RefinedEmbedding: it starts as its filter, learns through the network, and is saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch import nn

import clcnn
from clcnn import Feedback, RefinedEmbedding, SpectralEmbedding
from clcnn.embeddings.base import Lesson
from clcnn.errors import DataError, FitError, LoadError

Pictures = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]
SMALL = {"widths": (4, 8, 8), "batch_size": 32, "progress": False}


def images(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Smooth pictures of 7 x 6 pixels, in four classes by their brightest corner."""
    generator = torch.Generator().manual_seed(seed)
    rough = torch.rand(n, 1, 2, 2, generator=generator)
    return nn.functional.interpolate(rough, size=(7, 6), mode="bilinear"), rough.flatten(1).argmax(
        1
    )


def far_apart(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Such pictures whose brightest corner stands out: four heaps, which no linear filter knows."""
    generator = torch.Generator().manual_seed(seed)
    rough = 0.4 * torch.rand(n, 4, generator=generator)
    y = rough.argmax(1)
    rough[torch.arange(n), y] += 0.5
    return nn.functional.interpolate(rough.view(n, 1, 2, 2), size=(7, 6), mode="bilinear"), y


def network(pictures: Pictures = images) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(336, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = pictures(400, 9)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.zero_grad()
    return model.eval()


def controlled(
    embedding: clcnn.Embedding, at: str = "input", pictures: Pictures = images
) -> clcnn.ControlledModule:
    # This network goes by the whole picture, and feedback would hold back.
    solver = Feedback(preset="strong", authority=1)
    return clcnn.control(network(pictures), [at], embedding=embedding, solver=solver)


@pytest.fixture(scope="module")
def trained() -> clcnn.ControlledModule:
    return controlled(RefinedEmbedding(steps=150, lr=0.003, loudest=2.0, **SMALL)).fit(images(400))


def noisy(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return (x + 0.3 * torch.randn(x.shape, generator=generator)).clamp(0, 1)


def test_untrained_it_is_the_filter(trained: clcnn.ControlledModule) -> None:
    x, y = images(200)
    solver = Feedback(strength=128, floor=0.01)
    plain = controlled(SpectralEmbedding()).fit((x, y)).configure(solver=solver)
    fresh = controlled(RefinedEmbedding(steps=0, **SMALL)).fit((x, y)).configure(solver=solver)
    other = noisy(images(20, 2)[0])
    assert torch.equal(plain(other), fresh(other))
    assert not torch.allclose(trained(other), plain(other))


def test_presets_are_its_own(trained: clcnn.ControlledModule) -> None:
    x = noisy(images(9, 7)[0])
    for preset, (strength, floor) in {"default": (512, 0.004), "strong": (512, 0.128)}.items():
        named, said = Feedback(preset=preset), Feedback(strength=strength, floor=floor)
        a, b = (trained.configure(solver=solver)(x) for solver in (named, said))
        assert torch.equal(a, b)


def test_it_learns_to_restore_what_the_network_needs() -> None:
    model = network(far_apart)
    x, y = far_apart(1000, 5)
    # Steps of 0.01 leave so small a network dead or alive by chance of rounding.
    learning = RefinedEmbedding(steps=300, lr=0.003, loudest=2.0, **SMALL)
    trained, filtered = (
        controlled(embedding, pictures=far_apart).fit(far_apart(400))
        for embedding in (learning, SpectralEmbedding())
    )
    with torch.no_grad():
        refined_loss, filtered_loss = (
            float(nn.functional.cross_entropy(robust(noisy(x)), y))
            for robust in (trained, filtered)
        )
    assert refined_loss < 0.9 * filtered_loss
    assert (trained(x).argmax(1) == model(x).argmax(1)).double().mean() > 0.9


def test_the_network_is_left_as_it_was_and_random_numbers_too() -> None:
    before = network().state_dict()
    state = torch.random.get_rng_state()
    robust = controlled(RefinedEmbedding(steps=3, **SMALL))
    torch.random.set_rng_state(state)
    robust.fit(images(60))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in robust.model.state_dict().items())
    assert all(p.grad is None for p in robust.model.parameters())
    again = controlled(RefinedEmbedding(steps=3, **SMALL)).fit(images(60))
    x = noisy(images(5, 1)[0])
    assert torch.equal(again(x), robust(x))
    assert not any(p.requires_grad for p in robust.embeddings.parameters())


def test_every_sample_by_itself_and_exact_gradients(trained: clcnn.ControlledModule) -> None:
    x = noisy(images(6, 4)[0])
    together = trained(x)
    alone = torch.cat([trained(one) for one in torch.split(x, 1)])
    assert torch.allclose(together, alone, atol=1e-5)
    double = trained.configure(grad="unroll").double()
    at = x.double()[:2].requires_grad_()
    assert torch.autograd.gradcheck(double, (at,), atol=1e-4)
    trained.float()


def test_files(trained: clcnn.ControlledModule, tmp_path: Path) -> None:
    trained.save(tmp_path / "r.safetensors")
    back = clcnn.load(tmp_path / "r.safetensors", network())
    x = noisy(images(8, 6)[0])
    assert torch.equal(back(x), trained(x))
    embedding = trained.embeddings[0]
    assert isinstance(embedding, RefinedEmbedding)
    wrong = RefinedEmbedding(**{**SMALL, "widths": (4, 8, 9)})
    with pytest.raises(LoadError, match=r"widths=\(4, 8, 9\)"):
        wrong.restore(embedding.state_dict(), (1, 7, 6))


def test_inside_the_network_and_without_labels() -> None:
    x, _ = images(100)
    robust = controlled(RefinedEmbedding(steps=4, **SMALL), at="1").fit(x)
    assert robust(x[:4]).shape == (4, 4)
    answers = network()(x).argmax(1)
    labelled = controlled(RefinedEmbedding(steps=4, **SMALL), at="1").fit((x, answers))
    assert torch.allclose(robust(x[:9]), labelled(x[:9]), atol=1e-5)


class Listener(SpectralEmbedding):
    """Counts what it is told; learns to be another embedding."""

    lesson_size = 16

    def hear(self, gradients: Iterable[torch.Tensor], states: Iterable[torch.Tensor]) -> Listener:
        gradients = list(gradients)
        self.heard = sum(map(len, gradients))
        return super().hear(gradients, states)

    def learn(self, lessons: Iterable[Lesson]) -> clcnn.Embedding:
        other = SpectralEmbedding().restore(self.state_dict(), self.shape_ or ())
        other.heard, other.taught = self.heard, sum(len(lesson.state) for lesson in lessons)
        return other


def test_what_correct_only_leaves_out_is_neither_heard_nor_taught() -> None:
    x, y = images(60)
    wrong = torch.where(torch.arange(60) < 44, (y + 1) % 4, y)
    robust = controlled(Listener()).fit((x, wrong), correct_only=True)
    (embedding,) = robust.embeddings
    assert type(embedding) is SpectralEmbedding
    assert embedding.heard == embedding.taught == int((network()(x).argmax(1) == wrong).sum()) < 60


def test_what_is_asked_wrongly() -> None:
    with pytest.raises(DataError, match="three widths and a batch size"):
        RefinedEmbedding(widths=(4, 8))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="lr=0"):
        RefinedEmbedding(lr=0)
    with pytest.raises(DataError, match=r"strengths=\(4.0, 2.0\)"):
        RefinedEmbedding(strengths=(4.0, 2.0))
    x, y = images(40)
    with pytest.raises(FitError, match=r"at cut '3': found states of shape \(336,\)"):
        controlled(RefinedEmbedding(steps=1, **SMALL), at="3").fit((x, y))
    with pytest.raises(FitError, match="iterated only once"):
        controlled(RefinedEmbedding(steps=1, **SMALL)).fit(iter([(x, y)]))
    with pytest.raises(FitError, match="diverged"):
        controlled(RefinedEmbedding(steps=20, **{**SMALL, "lr": 1e30})).fit((x, y))
    for labels, found in (
        (y.float(), "torch.float32"),
        (y[:, None], r"\(32, 1\)"),
        (y + 2, "labels from"),
        (torch.full_like(y, -100), "labels from -100 to -100"),
    ):
        with pytest.raises(DataError, match=f"at cut 'input': found .*{found}"):
            controlled(RefinedEmbedding(steps=2, **SMALL)).fit((x, labels))
    controlled(RefinedEmbedding(steps=1, **SMALL)).fit((x, y.int()))
    with pytest.raises(DataError, match="lr=inf"):
        RefinedEmbedding(lr=float("inf"))
    with pytest.raises(DataError, match="float16"):
        controlled(RefinedEmbedding(steps=1, **SMALL)).fit((x, y)).half()(x.half())
    fitted = RefinedEmbedding(steps=2, **SMALL).fit([x])
    with pytest.raises(FitError, match="no lessons"):
        fitted.learn([])
    with pytest.raises(NotImplementedError, match="takes no lessons"):
        SpectralEmbedding().learn([Lesson(x, y, network())])
