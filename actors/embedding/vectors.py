"""What a model must give: one finite vector a text, of the right length, scaled to unit norm. Loads numpy."""

import numpy as np
from numpy.typing import NDArray

from actors.errors import EmbeddingUnavailable

NORM_MIN = 1e-6


def unit_vectors(values: NDArray[np.float32], *, count: int, dimensions: int, model: str) -> NDArray[np.float32]:
    """Return the vectors scaled to norm 1; raises EmbeddingUnavailable when there is one that cannot be."""
    vectors = np.asarray(values, dtype=np.float32)
    if vectors.shape != (count, dimensions):
        raise EmbeddingUnavailable(
            f"{model} gave an array of shape {vectors.shape}, ({count}, {dimensions}) is expected"
        )
    norms = np.linalg.norm(vectors, axis=1)
    bad = np.flatnonzero(~(np.isfinite(norms) & (norms > NORM_MIN)))
    if len(bad):
        raise EmbeddingUnavailable(f"{model} gave a vector of length {norms[bad[0]]} for text number {bad[0]}")
    return np.ascontiguousarray(vectors / norms[:, None], dtype=np.float32)
