"""The interface of an embedding model in a worker process, and the door that opens the configured one."""

from typing import TYPE_CHECKING, Protocol

from actors.embedding.identity import LOCAL_E5, NONE, REMOTE, resolve_identity, resolve_provider
from actors.errors import InvalidParams
from actors.messages.index import EmbeddingIdentity
from actors.settings import EmbeddingSettings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from actors.embedding.space import SpaceFile


class Embedder(Protocol):
    """A model that turns texts into unit vectors (float32). Any text is accepted: blank, with NUL, with surrogates.

    Both methods block and raise EmbeddingUnavailable; `retry_after_ms` is set where the provider asked for a pause.
    """

    @property
    def identity(self) -> EmbeddingIdentity:
        """What the vectors can be compared with."""
        ...

    def embed_documents(self, texts: list[str]) -> "NDArray[np.float32]":
        """Return one vector a text, shape (n, dimensions); raises TextsRefused when the provider takes only some."""
        ...

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return the vector of a question, shape (dimensions,)."""
        ...

    def close(self) -> None:
        """Free what the model holds."""
        ...


class TextsRefused(InvalidParams):
    """The provider refuses some of the texts for what they are; asking again will not help.

    `refused` says which (index into the call) and why. `vectors` has a row for every text of the call; the rows of
    the refused are zero, the others are good.
    """

    def __init__(self, refused: dict[int, str], vectors: "NDArray[np.float32]") -> None:
        index, reason = next(iter(refused.items()))
        super().__init__(f"{len(refused)} of {len(vectors)} texts refused, the first is number {index}: {reason}")
        self.refused = refused
        self.vectors = vectors


def open_embedder(settings: EmbeddingSettings, *, spaces: "SpaceFile | None" = None) -> Embedder | None:
    """Load the configured model; None when there is to be none. With `spaces` an endpoint is held to its model.

    Loads numpy and takes up to a second or two: call this in a worker only. Raises EmbeddingUnavailable when the model
    cannot be loaded here, InvalidParams when the settings are wrong. It never loads another model instead.
    """
    identity = resolve_identity(settings)
    provider = resolve_provider(settings)
    if identity is None or provider == NONE:
        return None
    if provider == REMOTE:
        from actors.embedding.remote import RemoteEmbedder

        return RemoteEmbedder(settings, identity, spaces=spaces)
    if provider == LOCAL_E5:
        from actors.embedding.local_e5 import LocalE5

        return LocalE5(identity, threads=settings.threads)
    from actors.embedding.local_use import LocalUse

    return LocalUse(identity, threads=settings.threads)
