"""Embeddings E_t: maps onto the manifold that the clean states of a layer live on."""

from clcnn.embeddings.auto import AutoEmbedding
from clcnn.embeddings.autoencoder import AutoencoderEmbedding
from clcnn.embeddings.base import Embedding, Lesson
from clcnn.embeddings.frequency import FrequencyEmbedding
from clcnn.embeddings.linear import LinearEmbedding
from clcnn.embeddings.orthogonal import OrthogonalEmbedding
from clcnn.embeddings.patch import PatchEmbedding
from clcnn.embeddings.refined import RefinedEmbedding
from clcnn.embeddings.separable import SeparableEmbedding
from clcnn.embeddings.spectral import SpectralEmbedding
from clcnn.embeddings.spectrum import Spectrum
from clcnn.embeddings.tail import TailEmbedding

__all__ = [
    "AutoEmbedding",
    "AutoencoderEmbedding",
    "Embedding",
    "FrequencyEmbedding",
    "Lesson",
    "LinearEmbedding",
    "OrthogonalEmbedding",
    "PatchEmbedding",
    "RefinedEmbedding",
    "SeparableEmbedding",
    "SpectralEmbedding",
    "Spectrum",
    "TailEmbedding",
]
