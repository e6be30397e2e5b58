"""States with structure, and the dense projection that an embedding stands for."""

from __future__ import annotations

import torch


def states(n=60, shape=(2, 4, 6), dtype=torch.float64, seed=0):
    """Samples whose axes are correlated, around a mean that is not zero."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, *shape, generator=generator, dtype=torch.float64)
    for axis, size in enumerate(shape, start=1):
        mix = torch.randn(size, size, generator=generator, dtype=torch.float64)
        x = torch.tensordot(x, mix / size, ([axis], [0])).movedim(-1, axis)
    return (x + torch.randn(shape, generator=generator, dtype=torch.float64)).to(dtype)


def dense(embedding):
    """P by NumPy, one unit vector at a time through `project`: nothing of the embedding's own."""
    d = embedding.mean.numel()
    unit = (torch.eye(d, dtype=embedding.mean.dtype) + embedding.mean).reshape(d, *embedding.shape_)
    return (embedding.project(unit).flatten(1) - embedding.mean).numpy()
