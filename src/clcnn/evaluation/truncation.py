"""One fit at a high energy gives those at all lower ones."""

from __future__ import annotations

from clcnn.embeddings.linear import LinearEmbedding


def truncated(embedding: LinearEmbedding, energy: float) -> LinearEmbedding:
    """The first r columns of V, r the least with lambda_1 + ... + lambda_r >= energy * total.

    What a fit at ``energy`` finds, as its directions are the first of those at a higher one.
    """
    assert embedding.shape_ is not None
    kept = embedding.eigenvalues.double()
    total = kept.sum() / embedding.explained_
    share = kept.cumsum(0) / total
    r = min(int((share < energy).sum()) + 1, len(kept))
    tensors = dict(embedding.state_dict())
    tensors["V"] = embedding.V[:, :r].contiguous()
    tensors["eigenvalues"] = embedding.eigenvalues[:r].clone()
    tensors["explained"] = share[r - 1].to(embedding.explained)
    settings = {k: v for k, v in embedding.config().items() if k != embedding.rule.kind}
    return LinearEmbedding(energy=energy, **settings).restore(tensors, embedding.shape_)
