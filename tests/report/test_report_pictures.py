"""The pictures of a report: which images, and whose."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluation.tiny import network, pictures
from PIL import Image
from report.made import change, read, workshop

from clcnn.evaluation import Workshop
from clcnn.report import Document, ReportError, make_report
from clcnn.report.blocks import Paragraph, Pictures
from clcnn.report.gather import gather
from clcnn.report.pictures import choose, replan
from clcnn.report.png import to_png


def test_pictures_are_the_images(shared: Path, document: Document) -> None:
    shown = next(b for b in document.blocks if isinstance(b, Pictures))
    assert shown.heads == ("input", "attacked", "control × 10", "controlled")
    assert len(shown.rows) == 6
    assert "differ from the stored" not in shown.caption
    everything = (pictures(40, 3)[0] * 255).round()
    for row in shown.rows:
        x, x_adv, u, z = (
            torch.from_numpy(np.array(Image.open(io.BytesIO(p.png)))).float() for p in row
        )
        assert (everything[:, 0] == x).flatten(1).all(1).any()
        assert 0 < (x_adv - x).abs().max() <= 8 + 1
        inside = (u > 0) & (u < 255) & (z > 0) & (z < 255)
        assert ((z - x_adv) - (u - 127.5) / 10)[inside].abs().max() <= 1.2


def test_pictures_are_chosen_from_both_sides() -> None:
    # label 1 throughout; control sets 0, 2, 4, 6 and 8 right, and harms 9
    plain = {k: (1, 0 if k % 2 == 0 else 1) for k in range(10)}
    controlled = dict.fromkeys(range(9), (1, 1)) | {9: (1, 0)}
    assert choose(controlled, plain, 6) == ([0, 2, 4, 6, 1, 3], 4)
    assert choose(controlled, plain, 1) == ([0], 1)
    assert choose(controlled, dict.fromkeys(range(10), (1, 1)), 3) == ([0, 1, 2], 0)
    assert choose({0: (1, 1), 2: (1, 1)}, plain, 6) == ([0, 2], 2)
    with pytest.raises(ReportError, match="not measured both with and without"):
        choose(controlled, {}, 3)


def test_a_plan_comes_back_from_its_manifest(shared: Path) -> None:
    from clcnn.evaluation.bench import Bench
    from clcnn.evaluation.watch import Silent

    experiment = next(e for e in gather([shared]) if e.name == "table1")
    result = next(r for r in experiment.results if (r.defence, r.attack) == ("linear", "pgd"))
    bench = Bench(replan(experiment, result), workshop(), shared.parent, Silent())
    stored = read(shared, "SELECT hash FROM cells WHERE id = ?", result.cell)[0][0]
    assert bench.cells()[0].key.hash == stored


def test_without_data_the_page_says_why_there_are_no_pictures(shared: Path) -> None:
    blocks = make_report([shared]).blocks
    texts = [b.text for b in blocks if isinstance(b, Paragraph)]
    assert any(text.startswith("No pictures: ") for text in texts)


def test_another_network_of_the_same_name_is_not_pictured(shared: Path) -> None:
    images = {"train": pictures(80, 1), "test": pictures(40, 3)}
    for shop, word in (
        (Workshop(networks={"resnet20-cifar10": network(1)}, images={"mnist": images}), "network"),
        (
            Workshop(
                networks={"resnet20-cifar10": network()},
                images={"mnist": {**images, "test": pictures(40, 4)}},
            ),
            "data",
        ),
    ):
        blocks = make_report([shared], workshop=shop).blocks
        texts = [block.text for block in blocks if isinstance(block, Paragraph)]
        assert any(t.startswith(f"No pictures: the {word} that this store") for t in texts)


def test_a_manifest_of_another_kind_costs_the_pictures_only(store: Path) -> None:
    change(store, """UPDATE runs SET manifest = replace(manifest, '"fit"', '"fitted"')""")
    texts = [b.text for b in make_report([store]).blocks if isinstance(b, Paragraph)]
    assert any("is not one that this version can make the plan" in text for text in texts)


@pytest.mark.parametrize("channels", [1, 3])
def test_png(channels: int) -> None:
    image = torch.rand(channels, 5, 7)
    back = torch.from_numpy(np.array(Image.open(io.BytesIO(to_png(image)))))
    back = back[None] if channels == 1 else back.permute(2, 0, 1)
    assert torch.equal(back, (image * 255).round().byte())
    with pytest.raises(ReportError, match="2 channels"):
        to_png(torch.rand(2, 4, 4))
