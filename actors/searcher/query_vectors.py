"""The vector of a question, from the model in this process, bounded in time.

Owns the model, opened on first use (it takes a second or two), and the threads that use it: one, unless the model may
be used by several at once. A call into a model cannot be stopped, so nobody ever waits inside one: the caller waits for
a future as long as it likes and leaves. What kept the model busy for so long (a hanging call, the opening) goes on;
until it ends, later callers are told so at once instead of queueing behind it. A late vector is kept all the same, so
asking again helps. No failure is remembered.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

import msgspec

from actors.errors import EmbeddingUnavailable
from actors.messages.index import EmbeddingIdentity

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VECTORS_KEPT = 256
NORM_MIN = 1e-6
WARM_UP_TEXT = "warm up"


class QueryEmbedder(Protocol):
    """What is needed of an embedding model here."""

    @property
    def identity(self) -> EmbeddingIdentity: ...

    def embed_query(self, text: str) -> "NDArray[np.float32]": ...


class QueryVector(msgspec.Struct, frozen=True):
    """A usable vector (finite, not zero) and the space in which it lies."""

    identity: EmbeddingIdentity
    values: Sequence[float]


class EmbeddingLate(Exception):
    """The model did not answer in time, or is still busy with a question whose caller has left."""


class QueryVectors:
    """Embeds questions, at most `at_once` of them at a time. Any thread may call any method."""

    def __init__(self, opener: Callable[[], QueryEmbedder | None], *, at_once: int = 1) -> None:
        self._opener = opener
        self._embedder: QueryEmbedder | None = None
        self._opening = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="embed")
        self._kept: OrderedDict[str, QueryVector] = OrderedDict()
        self._lock = threading.Lock()
        self._submitted: list[Future[QueryVector]] = []  # in order; the first is being worked on
        self._left_behind: Future[QueryVector] | None = None

    @property
    def identity(self) -> EmbeddingIdentity | None:
        """Return the identity of the model, None while it is not open."""
        return None if self._embedder is None else self._embedder.identity

    def warm_up(self) -> None:
        """Open the model and use it once, however long it takes. Raises what the opening raises."""
        with self._lock:
            future = self._submit(WARM_UP_TEXT)
        future.result()

    def begin(self, text: str) -> "Future[QueryVector]":
        """Start embedding and return the future; raises EmbeddingLate when the model is stuck."""
        with self._lock:
            kept = self._kept.get(text)
            if kept is not None:
                self._kept.move_to_end(text)
                done: Future[QueryVector] = Future()
                done.set_result(kept)
                return done
            if self._left_behind is not None and not self._left_behind.done():
                raise EmbeddingLate("the embedding model is still busy with earlier work")
            return self._submit(text)

    def wait(self, future: "Future[QueryVector]", seconds: float) -> QueryVector:
        """Return the vector; raises EmbeddingLate after `seconds`, or what the model or its opening raised."""
        try:
            return future.result(timeout=max(0.0, seconds))
        except TimeoutError:
            future.cancel()
            with self._lock:
                self._left_behind = next((job for job in self._submitted if not job.done()), None)
            raise EmbeddingLate(f"the embedding model did not answer within {seconds:.1f} s") from None

    def _submit(self, text: str) -> "Future[QueryVector]":
        future = self._pool.submit(self._embed, text)
        self._submitted = [job for job in self._submitted if not job.done()] + [future]
        return future

    def _embed(self, text: str) -> QueryVector:
        with self._opening:
            if self._embedder is None:
                self._embedder = self._opener()
        if self._embedder is None:
            raise EmbeddingUnavailable("no embedding model runs in this process (config: embedding.provider)")
        vector = usable(self._embedder.embed_query(text), self._embedder.identity)
        with self._lock:
            self._kept[text] = vector
            if len(self._kept) > VECTORS_KEPT:
                self._kept.popitem(last=False)
        return vector


def from_bytes(blob: bytes, identity: EmbeddingIdentity) -> QueryVector:
    """Read little-endian float32 values; raises EmbeddingUnavailable when they are not a vector of this space."""
    import numpy as np

    if len(blob) != 4 * identity.dimensions:
        raise EmbeddingUnavailable(
            f"query vector of {len(blob)} bytes, {identity.dimensions} dimensions of float32 are expected"
        )
    return usable(np.frombuffer(blob, dtype="<f4"), identity)


def usable(values: "NDArray[np.float32]", identity: EmbeddingIdentity) -> QueryVector:
    """Check a vector: LanceDB answers NaN, infinity and the zero vector with an empty list instead of an error."""
    import numpy as np

    vector = np.asarray(values, dtype=np.float32)
    if vector.shape != (identity.dimensions,):
        raise EmbeddingUnavailable(f"query vector of shape {vector.shape}, ({identity.dimensions},) is expected")
    norm = float(np.linalg.norm(vector))
    if not NORM_MIN < norm < float("inf"):  # NaN compares false
        raise EmbeddingUnavailable(f"query vector has length {norm}, a finite positive one is expected")
    return QueryVector(identity, (vector / np.float32(norm)).tolist())
