"""Embeddings E_t: maps onto the manifold that the clean states of a layer live on."""
