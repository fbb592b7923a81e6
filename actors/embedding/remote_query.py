"""Questions embedded by a remote endpoint, asked by the daemon itself. Never blocks, loads no numpy.

A late or absent vector degrades a search to keywords, it does not delay it: so every call has a deadline, and while
the endpoint is not there (and only then) it is not asked at all, but for a probe now and then.
"""

import time
from collections.abc import Callable
from functools import partial

import trio

from actors.embedding.breaker import Breaker
from actors.embedding.failures import ForeignSpace, Late, Unreachable
from actors.embedding.identity import REMOTE, resolve_identity
from actors.embedding.space import CANARY, SpaceFile, foreign, same_space
from actors.errors import EmbeddingUnavailable
from actors.settings import EmbeddingSettings
from actors.text import clean

# Below the usual deadline of a question, so that a host that swallows connections counts as not there; and above the
# second after which a lost packet is sent again.
CONNECT_S = 1.25


class RemoteQueryEmbedder:
    """The endpoint for questions, and what is known of whether it is there. Used by any number of tasks at once."""

    def __init__(
        self,
        settings: EmbeddingSettings,
        *,
        spaces: SpaceFile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Loads httpx, in a tenth of a second: only where a remote provider is configured.
        from actors.embedding.endpoint import Endpoint

        identity = resolve_identity(settings)
        assert identity is not None
        assert identity.provider == REMOTE, "a local model runs in the search workers"
        self.identity = identity
        self._prefix = settings.query_prefix
        self._document_prefix = settings.document_prefix
        self._spaces = spaces
        self._vouched: set[str | None] = {None}  # models whose vectors may be compared with those that are kept
        self._reading = trio.CapacityLimiter(1)
        self._endpoint = Endpoint(settings, identity, connect_s=CONNECT_S)
        self._breaker = Breaker()
        self._clock = clock

    async def embed(self, text: str, deadline_s: float) -> bytes:
        """Return the unit vector of a question as little-endian float32, at the latest `deadline_s` seconds from now.

        Raises EmbeddingUnavailable, with `retry_after_ms` where that is known. Cancelling leaves nothing behind.
        """
        if not self._breaker.may_ask(self._clock()):
            raise EmbeddingUnavailable(
                "embedding endpoint not asked: it was not reachable the last times",
                retry_after_ms=self._breaker.retry_after_ms(self._clock()),
            )
        told = False
        until = self._clock() + deadline_s
        try:
            answer = await self._endpoint.exchange([self._prefix + clean(text)], deadline_s=deadline_s)
            if self._spaces is not None and answer.model not in self._vouched:
                await self._vouch(self._spaces, answer.model, until)
            told = True
            self._breaker.reached()
        except Late:
            raise
        except Unreachable:
            told = True
            self._breaker.unavailable(self._clock())
            raise
        except EmbeddingUnavailable:
            told = True
            self._breaker.reached()
            raise
        finally:
            if not told:
                self._breaker.no_word(self._clock())
        (vector,) = answer.vectors
        return vector

    async def _vouch(self, spaces: SpaceFile, model: str | None, until: float) -> None:
        """Make sure that an answer under a name that was not heard before is of the model whose vectors are kept."""
        read = partial(spaces.read, self.identity.key)
        with trio.move_on_after(max(0.0, until - self._clock())):
            known = await trio.to_thread.run_sync(read, limiter=self._reading, abandon_on_cancel=True)
            if known is not None and model not in known.models:
                left_s = max(0.0, until - self._clock())
                answer = await self._endpoint.exchange([self._document_prefix + CANARY], deadline_s=left_s)
                if not same_space(known.canary, answer.vectors[0]):
                    raise ForeignSpace(foreign(self.identity.model, model))
            self._vouched.add(model)
            return
        raise Late("the embedding endpoint could not be told from another in time")

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()
