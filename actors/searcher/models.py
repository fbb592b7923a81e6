"""The models of this process, one for each space that is asked for: at most the configured one and the one before.

While the embedding model is being changed, the generation that serves is of the old one, and its successor of the new
one. Both are asked for a moment: by the searches that are under way at the flip, and by the comparison before it.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from actors.embedding.identity import LOCAL_E5, LOCAL_USE, resolve_identity, settings_for
from actors.errors import BulkheadError
from actors.messages.index import EmbeddingIdentity
from actors.searcher.query_vectors import QueryEmbedder, QueryVectors
from actors.settings import EmbeddingSettings

MODELS_MAX = 2


class Models:
    """Opens a model when it is first asked for. Any thread may call any method."""

    def __init__(self, settings: EmbeddingSettings, *, threads: int) -> None:
        self._settings = settings
        self._threads = threads
        self._lock = threading.Lock()
        self._configured = self._make(settings)
        self._others: OrderedDict[str, QueryVectors] = OrderedDict()

    @property
    def configured(self) -> QueryVectors:
        """Return the model that the settings mean."""
        return self._configured

    def of(self, identity: EmbeddingIdentity | None) -> QueryVectors:
        """Return the model that a generation was made with; the configured one when that is out of reach here.

        Nothing is mixed up then: whoever compares looks at the identity of each vector.
        """
        settings = None if identity is None else self._reach(identity)
        if identity is None or settings is None or settings == self._settings:
            return self._configured
        with self._lock:
            vectors = self._others.pop(identity.key, None) or self._make(settings)
            self._others[identity.key] = vectors
            while len(self._others) >= MODELS_MAX:
                self._others.popitem(last=False)
            return vectors

    def _reach(self, identity: EmbeddingIdentity) -> EmbeddingSettings | None:
        try:
            return settings_for(identity, self._settings)
        except BulkheadError:
            return None  # whoever opens the model is told what is wrong with the configuration

    def _make(self, settings: EmbeddingSettings) -> QueryVectors:
        return QueryVectors(self._opener(settings), at_once=self._at_once(settings))

    def _opener(self, settings: EmbeddingSettings) -> "Callable[[], QueryEmbedder | None]":
        def opener() -> QueryEmbedder | None:
            """Open a model of this machine; None when it is remote, as the daemon asks that, or there is to be none."""
            from actors.embedding import open_embedder

            provider = _provider(settings)
            if provider not in (LOCAL_E5, LOCAL_USE):
                return None
            return open_embedder(msgspec.structs.replace(settings, threads=1) if provider == LOCAL_E5 else settings)

        return opener

    def _at_once(self, settings: EmbeddingSettings) -> int:
        """Return how many questions may be embedded side by side: the default model is safe to use so, with one CPU
        thread each. A second thread for one question gains nothing (39 and 42 ms) and costs half as much CPU again.
        """
        try:
            return self._threads if _provider(settings) == LOCAL_E5 else 1
        except BulkheadError:
            return 1  # whoever opens the model is told what is wrong with the configuration


def _provider(settings: EmbeddingSettings) -> str | None:
    identity = resolve_identity(settings)
    return None if identity is None else identity.provider
