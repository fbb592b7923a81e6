"""The background embedding: texts that have no vector yet are embedded into the cache, a few at a time.

It works through the PENDING list of the generation that serves, newest first, in a worker of its own (which is
started when there is something to do and stopped afterwards). A slow model, a rate limit and an outage are the
same case: coverage below 100 %, shown and never waited for. What has been embedded is in the cache, so nothing is
embedded twice: not after a kill, and not when the next generation lists it again.
"""

import time
from collections.abc import Callable

import msgspec
import trio

from actors.actor import Board, House
from actors.errors import BulkheadError
from actors.generation_builder.seat import Seat, hard_limit, keep_below
from actors.mailbox import deadline_after
from actors.messages import (
    Done,
    EmbeddedBatch,
    EmbedPending,
    GenerationRef,
    GetVectors,
    PeekPending,
    PendingKeys,
    PutVectors,
    Vectors,
)
from actors.notices import BuilderNotice
from actors.settings import GenerationBuilderSettings
from actors.worker import WorkerDied, WorkerSpec

CALL_S = 120.0
CACHE_S = 5.0
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
# A share of the build time that a publication of new vectors may cost: a build of 10 s is worth 100 s of embedding.
PUBLISH_FACTOR = 10.0
RATE_WEIGHT = 0.2


class EmbedBehind:
    """Embed what the serving generation lacks, again and again."""

    def __init__(
        self,
        house: House,
        *,
        spec: WorkerSpec,
        limits: GenerationBuilderSettings,
        board: Board[BuilderNotice],
        wish: Callable[[str], None],
    ) -> None:
        self._house = house
        self._spec = spec
        self._limits = limits
        self._board = board
        self._wish = wish
        self._fresh = 0  # vectors that the serving generation does not have yet
        self._done: int | None = None  # the generation whose list was worked through
        self._failures = 0

    async def run(self) -> None:
        """Work through one list after the other; a list is dropped when a newer generation serves."""
        while True:
            serving = self._board.notice.serving
            if serving is None or not self._lacks(serving):
                self._post(state=self._resting())
                await self._board.wait_changed()
                continue
            try:
                await self._with_worker(serving)
                self._failures = 0
            except* (BulkheadError, WorkerDied) as group:
                self._failures += 1
                self._post(state="waiting", error=str(group.exceptions[0]))
            if self._failures:
                await trio.sleep(min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** (self._failures - 1)))

    def _lacks(self, serving: GenerationRef) -> bool:
        notice = self._board.notice
        if (
            notice.paused
            or notice.no_room
            or notice.identity is None
            or serving.identity != notice.identity
            or self._done == serving.generation
        ):
            return False
        return serving.vectors_have < serving.vectors_want

    def _resting(self) -> str:
        """Return the state while there is nothing to do."""
        if self._board.notice.identity is None:
            return "off"
        return "paused" if self._board.notice.no_room else "idle"

    def _post(self, **changes: object) -> None:
        notice = self._board.notice
        embedding = msgspec.structs.replace(notice.embedding, **changes)
        if embedding != notice.embedding:
            self._board.post(msgspec.structs.replace(notice, embedding=embedding))

    async def _with_worker(self, serving: GenerationRef) -> None:
        """Work through a list, and through those that follow it, with one worker."""
        async with trio.open_nursery() as nursery:
            worker = Seat(self._house, self._spec, nursery)
            await worker.fill()
            nursery.start_soon(keep_below, worker, hard_limit(self._limits.embed_rss_bytes_max))
            self._post(state="running", error=None)
            while True:
                await self._work_through(worker, serving)
                following = self._board.notice.serving
                if following is None or not self._lacks(following):
                    break
                serving = following
            nursery.cancel_scope.cancel("nothing left to embed")

    async def _work_through(self, worker: Seat, serving: GenerationRef) -> None:
        offset: int | None = 0
        last_publish = time.monotonic()
        while offset is not None and self._still(serving):
            offset = await self._step(worker, serving, offset)
            await self._replace_in_time(worker)
            if self._fresh and time.monotonic() - last_publish > self._publish_every_s():
                last_publish = time.monotonic()
                self._publish()
        if offset is None:
            self._done = serving.generation
            if self._fresh:
                self._publish()

    async def _replace_in_time(self, worker: Seat) -> None:
        """Replace a worker that has grown too large; what it embedded is in the cache."""
        size, limit = worker.rss_bytes, self._limits.embed_rss_bytes_max
        if size > limit:
            cause = f"{size} bytes resident, limit is {limit} (generation_builder.embed_rss_bytes_max)"
            await worker.replace(cause, pending_s=CALL_S)

    def _still(self, serving: GenerationRef) -> bool:
        notice = self._board.notice
        current = notice.serving
        return not notice.no_room and current is not None and current.generation == serving.generation

    def _publish_every_s(self) -> float:
        return max(self._limits.vectors_publish_ms, PUBLISH_FACTOR * self._board.notice.build_ms) / 1000

    def _publish(self) -> None:
        self._fresh = 0
        self._wish("new vectors")

    async def _step(self, worker: Seat, serving: GenerationRef, offset: int) -> int | None:
        """Embed the next few texts that the cache does not have; return the offset after them."""
        assert serving.identity is not None
        texts_max = self._limits.embed_texts_per_call
        peek = PeekPending(path=serving.path, offset=offset, texts_max=texts_max)
        pending = await worker.call(peek, PendingKeys, deadline_ns=deadline_after(CALL_S))
        known = await self._known(serving.identity.key, pending.keys)
        self._fresh += len(known)
        if len(known) == len(pending.keys):
            return pending.next
        began = time.monotonic()
        batch = await worker.call(
            EmbedPending(path=serving.path, offset=offset, texts_max=texts_max, skip=known),
            EmbeddedBatch,
            deadline_ns=deadline_after(CALL_S),
        )
        await self._keep(serving.identity.key, batch)
        self._count(batch, time.monotonic() - began)
        return batch.next

    async def _known(self, identity: str, keys: list[bytes]) -> list[bytes]:
        if not keys:
            return []
        message = GetVectors(identity=identity, keys=keys)
        vectors = await self._house.ask("cache_manager", message, Vectors, deadline_ns=deadline_after(CACHE_S))
        return [keys[index] for index in vectors.found]

    async def _keep(self, identity: str, batch: EmbeddedBatch) -> None:
        if batch.keys:
            message = PutVectors(identity=identity, keys=batch.keys, dimensions=batch.dimensions, blob=batch.blob)
            await self._house.ask("cache_manager", message, Done, deadline_ns=deadline_after(CACHE_S))
            self._fresh += len(batch.keys)

    def _count(self, batch: EmbeddedBatch, seconds: float) -> None:
        notice = self._board.notice.embedding
        rate = len(batch.keys) / seconds if seconds > 0 else 0.0
        smooth = rate if not notice.texts_per_s else notice.texts_per_s + RATE_WEIGHT * (rate - notice.texts_per_s)
        self._post(
            state="running",
            embedded=notice.embedded + len(batch.keys),
            failed=notice.failed + len(batch.failed),
            texts_per_s=round(smooth, 2),
            error=batch.failed[0].detail if batch.failed else None,
            refused=batch.failed[-1] if batch.failed else notice.refused,
        )
