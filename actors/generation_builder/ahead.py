"""What was accepted a moment ago, to be embedded before the delta that will hold it is made.

On a hint that the truth has moved, the newest events and units are paged; the embedding worker gives their texts to the
model, and the vectors go into the cache, where the delta finds them. What comes too late for it stands on its list, as
ever. When more than a page waits, the lists are the better way, which go newest first, and it is left to them.

Owns nothing but how far it is, which is worth nothing: the cache is asked before anything is embedded.
"""

import time
from typing import NamedTuple

import msgspec
import trio

from actors.actor import House
from actors.errors import BulkheadError
from actors.mailbox import deadline_after
from actors.messages.base import Corpus, Rows
from actors.messages.core_writer import PageUnits
from actors.messages.index import Covers
from actors.messages.transcript_appender import EventPage, PageEvents
from actors.notices import BuilderNotice

PAGE_ROWS = 256
PAGE_BYTES_MAX = 1024 * 1024
SEQ_MAX = 2**62
ASK_S = 10.0


class NewRows(NamedTuple):
    """A page of events or units that no view has yet."""

    corpus: Corpus
    rows: bytes


class Ahead:
    """What one incarnation knows of the newest rows."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._hinted = False
        self._next_hint = trio.Event()
        self._not_before = 0.0  # CLOCK_MONOTONIC: the model is away until then
        self._event_seq = 0
        self._core_seq = 0

    def hint(self) -> None:
        """Say that the truth has moved."""
        self._hinted = True
        self._next_hint.set()
        self._next_hint = trio.Event()

    def rest(self, seconds: float) -> None:
        """Leave the model alone for a while; what comes meanwhile stands on the lists."""
        self._not_before = time.monotonic() + seconds

    def due(self, notice: BuilderNotice) -> bool:
        """Say whether there is something new whose vectors the next delta could use."""
        serving = notice.serving
        if not self._hinted or serving is None or serving.identity is None or notice.successor is not None:
            return False
        if time.monotonic() < self._not_before:
            return False
        return serving.identity == notice.identity and not notice.paused and not notice.no_room

    @property
    def next_hint(self) -> trio.Event:
        """The next hint; taken when `due` has said no, it misses none."""
        return self._next_hint

    async def pages(self, covers: Covers) -> list[NewRows]:
        """Return what came since the last time and is not covered by the view that serves.

        Who is away for the moment gives nothing: what he has comes with the next view's list.
        """
        self._hinted = False
        found = []
        for page in (self._events, self._units):
            try:
                found += await page(covers)
            except BulkheadError as error:
                self._house.log.debug("newest rows not read", extra={"error": error.message})
        return found

    async def _events(self, covers: Covers) -> list[NewRows]:
        after = max(self._event_seq, covers.event_seq)
        message = PageEvents(after=after, until=SEQ_MAX, limit=PAGE_ROWS, bytes_max=PAGE_BYTES_MAX)
        page = await self._house.ask("transcript_appender", message, EventPage, deadline_ns=deadline_after(ASK_S))
        self._event_seq = max(after, page.last_seq)
        return [NewRows("events", page.rows)] if page.count and not page.more else []

    async def _units(self, covers: Covers) -> list[NewRows]:
        after = max(self._core_seq, covers.core_seq)
        message = PageUnits(after=after, until=SEQ_MAX, limit=PAGE_ROWS)
        page = await self._house.ask("core_writer", message, Rows, deadline_ns=deadline_after(ASK_S))
        rows = msgspec.msgpack.decode(page.rows, type=list[_Sequenced])
        self._core_seq = rows[-1].core_seq if rows else after
        return [NewRows("units", page.rows)] if rows and not page.more else []


class _Sequenced(msgspec.Struct):
    """The one member of a unit row that paging needs."""

    core_seq: int
