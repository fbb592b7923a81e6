"""The embedding worker's process: turns pending texts into vectors, a few a call. Imports neither LanceDB nor Arrow.

It only computes: the actor puts the vectors into the cache, from where the next build takes them. A model or provider
that is not available is an EmbeddingUnavailable of the call, and the process stays; one text that it cannot embed is
told apart and named, so that it does not hold up those behind it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from actors.child import CallContext, serve
from actors.embedding import Embedder, TextsRefused, open_embedder
from actors.embedding.failures import ForeignSpace
from actors.embedding.identity import REMOTE
from actors.embedding.space import SpaceFile
from actors.errors import EmbeddingUnavailable
from actors.frames import Setup
from actors.generation import PendingText, count_pending, read_manifest, read_pending
from actors.generation_builder.chunk import ChunkLimits
from actors.generation_builder.rows import text_hash, texts_of_events, texts_of_units
from actors.generation_builder.vectors import sound
from actors.messages.base import Message
from actors.messages.builder_work import (
    EmbeddedBatch,
    EmbedderWork,
    EmbedPending,
    EmbedRows,
    PeekPending,
    PeekRows,
    PendingKeys,
)
from actors.messages.index import Skip
from actors.settings import RoomSetup

if TYPE_CHECKING:
    from actors.generation_builder.vectors import Matrix

LANE = "embed"
HARMLESS = "text"
REFUSED = "not_embedded"


class EmbedderRoom:
    """What `actors/child.py` runs: see Room there."""

    work: object = EmbedderWork
    lanes: Mapping[type[Message], str] = {EmbedPending: LANE, PeekPending: LANE, EmbedRows: LANE, PeekRows: LANE}

    def __init__(self, setup: Setup) -> None:
        room = msgspec.msgpack.decode(setup.settings, type=RoomSetup)
        self._settings = room.embedding
        limits = room.generation_builder
        self._chunks = ChunkLimits(limits.chunk_tokens, limits.chunk_tokens_max)
        self._spaces = SpaceFile(Path(room.directory))
        self._embedder: Embedder | None = None
        self._checked = ""
        self._counted = ("", 0)

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        """Load nothing yet: a model that cannot be loaded fails the calls, not the start of the process."""
        return {}

    def close(self, lane: str) -> None:
        """Free the model."""
        if self._embedder is not None:
            self._embedder.close()

    def idle(self, lane: str) -> bool:
        """Do nothing: there is no background work in this process."""
        return False

    def interrupt(self, lane: str) -> None:
        """Do nothing: a call into the model ends by itself, or with the process."""

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Look at the next pending texts, or embed them."""
        match message:
            case PeekPending():
                texts, following = read_pending(Path(message.path), message.offset, message.texts_max)
                return PendingKeys(keys=[text.hash for text in texts], next=following, total=self._count(message.path))
            case EmbedPending():
                self._doubt(message.anew)
                return self._embed_pending(message)
            case PeekRows():
                keys = [text.hash for text in self._texts(message)]
                return PendingKeys(keys=keys, next=None, total=len(keys))
            case EmbedRows():
                self._doubt(message.anew)
                wanted = set(message.keys)
                return self._embed(message.path, [text for text in self._texts(message) if text.hash in wanted], None)
            case _:
                raise TypeError(f"the embedding worker does not take {type(message).__name__}")

    def _count(self, path: str) -> int:
        """Count a list once."""
        if self._counted[0] != path:
            self._counted = path, count_pending(Path(path))
        return self._counted[1]

    def _embed_pending(self, message: EmbedPending) -> EmbeddedBatch:
        texts, following = read_pending(Path(message.path), message.offset, message.texts_max)
        skipped = set(message.skip)
        texts = [text for text in texts if text.hash not in skipped]
        batch = self._embed(message.path, texts, following)
        return batch if batch.foreign is None else msgspec.structs.replace(batch, next=message.offset)

    def _texts(self, message: PeekRows | EmbedRows) -> list[PendingText]:
        """Return the texts of rows, each once."""
        texts_of = texts_of_events if message.corpus == "events" else texts_of_units
        found: dict[bytes, PendingText] = {}
        for name, text in texts_of(message.rows, self._chunks):
            key = text_hash(text)
            found.setdefault(key, PendingText(key, text, f"{message.corpus}/{name}"))
        return list(found.values())

    def _embed(self, path: str, texts: list[PendingText], following: int | None) -> EmbeddedBatch:
        embedder = self._open(path)
        try:
            vectors, failed = embed_each(embedder, [text.text for text in texts])
        except ForeignSpace as error:
            return EmbeddedBatch(keys=[], dimensions=0, blob=b"", next=None, failed=[], foreign=error.message)
        good = [index for index in range(len(texts)) if index not in failed]
        return EmbeddedBatch(
            keys=[texts[index].hash for index in good],
            dimensions=embedder.identity.dimensions,
            blob=vectors[good].astype("<f4").tobytes(),
            next=following,
            failed=[_failure(texts[index], reason) for index, reason in sorted(failed.items())],
        )

    def _doubt(self, anew: bool) -> None:
        """Leave an endpoint whose model may be another by now: a new embedder looks before it uses a vector."""
        if anew and self._embedder is not None and self._embedder.identity.provider == REMOTE:
            self._embedder.close()
            self._embedder = None
            self._checked = ""

    def _open(self, path: str) -> Embedder:
        """Load the model once, and make sure that it is the one that the generation was built for."""
        if self._embedder is None:
            self._embedder = open_embedder(self._settings, spaces=self._spaces)
        if self._embedder is None:
            raise EmbeddingUnavailable("no embedding model is configured (config: embedding.provider)")
        if path != self._checked:
            wanted = read_manifest(Path(path)).identity
            if wanted != self._embedder.identity:
                raise EmbeddingUnavailable(
                    f"the model is {self._embedder.identity.key!r}, the generation wants vectors of "
                    f"{wanted.key if wanted is not None else None!r}"
                )
            self._checked = path
        return self._embedder


def embed_each(embedder: Embedder, texts: list[str]) -> "tuple[Matrix, dict[int, str]]":
    """Return a vector a text, and why those in the dict (by index; their rows mean nothing) have none.

    Raises EmbeddingUnavailable when that is the provider's state, not a property of a text.
    """
    import numpy as np

    dimensions = embedder.identity.dimensions
    if not texts:
        return np.zeros((0, dimensions), dtype=np.float32), {}
    failed: dict[int, str] = {}
    try:
        vectors = embedder.embed_documents(texts)
    except TextsRefused as error:
        vectors, failed = error.vectors, dict(error.refused)
    except EmbeddingUnavailable as error:
        vectors, failed = _one_by_one(embedder, texts, error)
    if vectors.shape != (len(texts), dimensions):
        raise EmbeddingUnavailable(f"the model gave an array of shape {vectors.shape} for {len(texts)} texts")
    for index in np.flatnonzero(~sound(vectors, normalised=embedder.identity.normalised)):
        failed.setdefault(int(index), "its vector is not finite, or not of length 1")
    return vectors, failed


def _one_by_one(embedder: Embedder, texts: list[str], error: EmbeddingUnavailable) -> "tuple[Matrix, dict[int, str]]":
    """Find out which texts made a batch fail. When a harmless text fails as well, it is the provider: raise `error`."""
    import numpy as np

    if error.retry_after_ms is not None or isinstance(error, ForeignSpace):
        raise error
    try:
        embedder.embed_documents([HARMLESS])
    except EmbeddingUnavailable:
        raise error from None
    vectors = np.zeros((len(texts), embedder.identity.dimensions), dtype=np.float32)
    failed: dict[int, str] = {}
    for index, text in enumerate(texts):
        try:
            vectors[index] = embedder.embed_documents([text])[0]
        except (EmbeddingUnavailable, TextsRefused) as refused:
            failed[index] = refused.message
    return vectors, failed


def _failure(text: PendingText, reason: str) -> Skip:
    # By the id or the place of its row: what people wrote does not belong into logs and status.
    return Skip(path=text.name or text.hash.hex(), reason=REFUSED, detail=reason)


if __name__ == "__main__":
    serve(EmbedderRoom)
