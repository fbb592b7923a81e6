"""The scrub: what serves is read again from time to time, slowly, and compared with what was sealed.

A disk may return other bytes than it was given, long after they were verified, and a search may never touch them. So
every `scrub_every_s` the files of the serving view are hashed again, a piece at a time: at most `scrub_bytes_per_s`, at
the lowest priority, and never while somebody searches. Damage leads to the same fall-back as a search that failed.
"""

import time

import msgspec
import trio

from actors.actor import Board
from actors.errors import BulkheadError, GenerationSuspect
from actors.generation_builder.desk import LOOK_EVERY_S, Desk
from actors.generation_builder.publishing import Publisher
from actors.messages.builder_work import Scrubbed, ScrubSlice
from actors.notices import SearchActivity

PIECE_BYTES = 4 * 1024 * 1024
YIELD_S_MAX = 2.0  # … at a time: where somebody always searches, it gets on all the same


class Scrubber:
    """Scrubs one view after the other."""

    def __init__(self, desk: Desk, publisher: Publisher, searching: Board[SearchActivity]) -> None:
        self._desk = desk
        self._publisher = publisher
        self._searching = searching
        # Recovery has just verified what serves, and what is published later was hashed when it was sealed.
        self._verified_at = time.monotonic()
        self._generation: int | None = None

    async def run(self) -> None:
        """Scrub whenever it is time, for ever."""
        every_s = self._desk.limits.scrub_every_s
        while every_s:
            base = self._desk.notice.base
            if base is not None and base.generation != self._generation:
                self._generation, self._verified_at = base.generation, time.monotonic()
            left_s = self._verified_at + every_s - time.monotonic()
            if base is None or left_s > 0 or self._desk.notice.no_room:
                await trio.sleep(min(LOOK_EVERY_S, max(left_s, 0.05)))
                continue
            await self._scrub()
            self._verified_at = time.monotonic()

    async def _scrub(self) -> None:
        """Scrub what serves now: the generation, then the delta over it."""
        view = self._desk.notice.serving
        if view is None:
            return
        self._post(generation=view.generation, delta=view.delta, checked_bytes=0, total_bytes=view.bytes)
        for delta in (None,) if view.delta is None else (None, view.delta):
            try:
                await self._folder(view.generation, delta)
            except GenerationSuspect as error:
                if self._serves(view.generation, delta):  # else it was replaced, and is being deleted
                    self._post(error=error.message)
                    await self._publisher.fall_back(error)
                return
            except BulkheadError as error:
                self._desk.house.log.info("scrub put off", extra={"error": error.message})
                return
        self._post(checked_bytes=view.bytes, finished_at=time.time_ns() // 1000, error=None)

    def _serves(self, generation: int, delta: int | None) -> bool:
        serving = self._desk.notice.serving
        return serving is not None and serving.generation == generation and delta in (None, serving.delta)

    def _post(self, **changes: object) -> None:
        self._desk.post(scrub=msgspec.structs.replace(self._desk.notice.scrub, **changes))

    async def _folder(self, generation: int, delta: int | None) -> None:
        place: tuple[int, int] | None = None
        bytes_per_s = self._desk.limits.scrub_bytes_per_s
        while True:
            began = time.monotonic()
            piece = ScrubSlice(generation=generation, delta=delta, place=place, bytes_max=min(PIECE_BYTES, bytes_per_s))
            read = await self._desk.work(piece, Scrubbed)
            scrub = self._desk.notice.scrub
            self._post(checked_bytes=min(scrub.checked_bytes + read.bytes, scrub.total_bytes))
            place = read.next
            if place is None:
                return
            await trio.sleep(max(0.0, began + read.bytes / bytes_per_s - time.monotonic()))
            await self._give_way()

    async def _give_way(self) -> None:
        with trio.move_on_after(YIELD_S_MAX):
            while self._searching.notice.in_hand:
                await self._searching.wait_changed()
