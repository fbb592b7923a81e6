"""Documents embedded by a remote endpoint, for the embedding worker. Blocks; loads numpy.

Endpoints limit how many texts they take at once and rarely say how many, and one text they do not like fails all that
travel with it. So a refused batch is halved until every part is accepted or a single text is left, which is named.
When halving alone helped, the size that worked is kept. A rate limit is never slept out here: the error says for how
long, and the next call goes on where this one stopped.

An endpoint that answers as another model than before is caught before any of its vectors is used: see `space.py`.
"""

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np

from actors.embedding.embedder import TextsRefused
from actors.embedding.endpoint import Endpoint
from actors.embedding.failures import ForeignSpace, InputRefused
from actors.embedding.openai_http import Embedded
from actors.embedding.space import CANARY, Space, SpaceFile, foreign, same_space
from actors.errors import EmbeddingUnavailable
from actors.messages.index import EmbeddingIdentity
from actors.settings import EmbeddingSettings
from actors.text import clean

if TYPE_CHECKING:
    from numpy.typing import NDArray

CONNECT_S = 10.0
PROBE = "ok"
FOREIGN_HINT = "give the new model a name of its own in embedding.model, or bring the old one back"


class RemoteEmbedder:
    """The endpoint as an embedder. Any thread may call; calls wait for each other."""

    def __init__(
        self, settings: EmbeddingSettings, identity: EmbeddingIdentity, *, spaces: SpaceFile | None = None
    ) -> None:
        self.identity = identity
        self._spaces = spaces
        self._vouched: set[str | None] = set()
        self._settings = settings
        self._deadline_s = settings.request_deadline_ms / 1000
        self._batch_max = max(1, settings.batch_max)
        self._endpoint = Endpoint(settings, identity, connect_s=CONNECT_S)
        # The client is asynchronous so that one deadline covers all of an exchange; this loop runs it.
        self._runner = asyncio.Runner()
        self._lock = threading.Lock()
        self._accepted_any = False
        self._done: dict[str, bytes] = {}

    def embed_documents(self, texts: list[str]) -> "NDArray[np.float32]":
        """Return one unit vector a text.

        Raises TextsRefused when some are refused for what they are, and EmbeddingUnavailable for everything else;
        then the vectors that had arrived are kept for the next call.
        """
        wanted = [self._settings.document_prefix + clean(text) for text in texts]
        with self._lock:
            return self._embed(wanted)

    def embed_query(self, text: str) -> "NDArray[np.float32]":
        """Return the unit vector of a question."""
        with self._lock:
            (blob,) = self._exchange([self._settings.query_prefix + clean(text)])
        return np.frombuffer(blob, "<f4").astype(np.float32)

    def close(self) -> None:
        """Close the connections and the loop."""
        with self._lock:
            self._runner.run(self._endpoint.close())
            self._runner.close()

    def _embed(self, wanted: list[str]) -> "NDArray[np.float32]":
        refused: dict[str, str] = {}
        missing = list(dict.fromkeys(text for text in wanted if text not in self._done))
        self._ask_for(missing, refused)
        vectors = np.zeros((len(wanted), self.identity.dimensions), np.float32)
        for row, text in enumerate(wanted):
            if text in self._done:
                vectors[row] = np.frombuffer(self._done[text], "<f4")
        self._done.clear()
        if refused:
            raise TextsRefused({row: refused[text] for row, text in enumerate(wanted) if text in refused}, vectors)
        return vectors

    def _ask_for(self, batch: list[str], refused: dict[str, str]) -> None:
        """Add the vectors of a batch to `_done`, or the reason to `refused`."""
        if len(batch) > self._batch_max or not batch:
            while batch:  # what is found out about the size on the way counts at once
                part, batch = batch[: self._batch_max], batch[self._batch_max :]
                self._ask_for(part, refused)
            return
        try:
            self._done.update(zip(batch, self._exchange(batch), strict=True))
            return
        except InputRefused as error:
            if len(batch) == 1:
                self._blame(batch[0], error, refused)
                return
        half = (len(batch) + 1) // 2
        refused_before = len(refused)
        self._ask_for(batch[:half], refused)
        self._ask_for(batch[half:], refused)
        if len(refused) == refused_before:
            # Refused as a whole and accepted in parts: it was the number, not a text.
            self._batch_max = min(self._batch_max, half)

    def _blame(self, text: str, error: InputRefused, refused: dict[str, str]) -> None:
        """Name a refused text; but an endpoint that has never accepted any may refuse them all for another reason."""
        if not self._accepted_any:
            try:
                self._exchange([PROBE])
            except InputRefused as probe_error:
                raise EmbeddingUnavailable(
                    f"{probe_error.message}, also to {PROBE!r}: it accepts no text at all",
                    hint="check embedding.model and embedding.dimensions",
                ) from error
        refused[text] = error.message

    def _exchange(self, texts: list[str]) -> list[bytes]:
        answer = self._ask(texts)
        self._accepted_any = True
        if self._spaces is not None and answer.model not in self._vouched:
            self._vouch(self._spaces, answer.model)
        return answer.vectors

    def _ask(self, texts: list[str]) -> Embedded:
        return self._runner.run(self._endpoint.exchange(texts, deadline_s=self._deadline_s))

    def _vouch(self, spaces: SpaceFile, model: str | None) -> None:
        """Make sure that this is the model whose vectors are kept, at the first answer and at each new name."""
        try:
            answer = self._ask([self._settings.document_prefix + CANARY])
        except InputRefused as error:  # of our text, not of those that were asked for
            raise EmbeddingUnavailable(f"{error.message}, one that only tells models apart") from error
        known = spaces.read(self.identity.key)
        if known is not None and not same_space(known.canary, answer.vectors[0]):
            raise ForeignSpace(foreign(self.identity.model, model), hint=FOREIGN_HINT)
        names = {*(known.models if known is not None else ()), *(each for each in (model, answer.model) if each)}
        canary = answer.vectors[0] if known is None else known.canary
        spaces.write(self.identity.key, Space(models=sorted(names), canary=canary))
        self._vouched |= {model, answer.model}
