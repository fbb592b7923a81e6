"""What was forgotten, in the memory of the searcher: no generation may answer with it, however old it is.

Core keeps the tombstones; they are loaded before the first search is answered from a generation, and again before
each answer that follows a new one, which core's board says. Until they are known, searches rest on the truth, which
hides what is forgotten by itself.
"""

import contextlib

import trio

from actors.actor import Board, House
from actors.errors import BulkheadError
from actors.mailbox import deadline_after
from actors.messages.base import Candidate, Corpus
from actors.messages.forgetting import ListTombstones, Tombstones
from actors.notices import ForgetNotice

UNKNOWN = "tombstones_unknown"
PAGE = 1000
ASK_S = 5.0
START_S = 2.0
RETRY_S = 0.5
WAIT_S = 0.5
DETAIL = "what was forgotten is not known yet: events and units were searched by keyword in the truth"


class Forgotten:
    """The forgotten items of all tenants: ids are unique in a corpus."""

    def __init__(self, house: House, board: Board[ForgetNotice]) -> None:
        self._house = house
        self._board = board
        self._heeded = -1  # the orders that were counted when loading began
        self._lock = trio.Lock()
        self._last = 0
        self._items: set[tuple[Corpus, str]] = set()

    async def start(self) -> None:
        """Load before the first search, if core answers soon."""
        with trio.move_on_after(START_S):
            await self.run()

    async def run(self) -> None:
        """Load until all are known."""
        while not self._current():
            try:
                await self.load()
            except BulkheadError as error:
                self._house.log.info("tombstones not loaded", extra={"error": error.message})
                await trio.sleep(RETRY_S)

    async def load(self) -> None:
        """Learn what was forgotten since the last time. Raises BulkheadError."""
        async with self._lock:
            orders, more = self._board.notice.orders, True
            while more:
                message = ListTombstones(after=self._last, limit=PAGE)
                page = await self._house.ask("core_writer", message, Tombstones, deadline_ns=deadline_after(ASK_S))
                self._items.update((each.corpus, each.id) for each in page.tombstones)
                if page.tombstones:
                    self._last = page.tombstones[-1].tombstone_seq
                more = page.more
            self._heeded = orders

    def _current(self) -> bool:
        return self._heeded >= self._board.notice.orders

    async def is_known(self) -> bool:
        """Say whether all that is forgotten is known; it takes a moment when something has just been forgotten."""
        if not self._current():
            with trio.move_on_after(WAIT_S), contextlib.suppress(BulkheadError):
                await self.load()
        return self._current()

    def without(self, candidates: list[Candidate]) -> list[Candidate]:
        """Return the candidates that are not forgotten."""
        if not self._items:
            return candidates
        return [each for each in candidates if (each.corpus, each.id) not in self._items]
