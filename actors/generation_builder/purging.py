"""Letting no generation stay that was begun before something was forgotten: a newer one is built, then they go.

What was forgotten is masked everywhere meanwhile; this is about the bytes. core_writer asks again until nothing is
left, so nothing is remembered here.
"""

import contextlib

from actors.actor import Board
from actors.errors import BulkheadError
from actors.generation_builder.desk import SHORT_S, Desk
from actors.generation_builder.publishing import Publisher
from actors.generation_builder.wishes import Wishes
from actors.messages.forgetting import CountGenerations, ForgetSlice
from actors.notices import ForgetNotice

REASON = "something was forgotten"


class Purging:
    """Does one step towards it each time that it is asked."""

    def __init__(self, desk: Desk, wishes: Wishes, publisher: Publisher, board: Board[ForgetNotice]) -> None:
        self._board = board
        self._desk = desk
        self._wishes = wishes
        self._publisher = publisher

    async def run(self) -> None:
        """Look whenever core_writer wants it, for ever."""
        while True:
            wanted, change = self._board.notice, self._board.change
            if wanted.look != self._desk.notice.purge_look:
                try:
                    await self._purge(wanted)
                    continue
                except BulkheadError as error:
                    self._desk.house.log.info("not purged", extra={"error": error.message})
            await change.wait()

    async def _purge(self, wanted: ForgetNotice) -> None:
        """Have a generation built if there is only an old one, or the old ones deleted; then look what is there."""
        base, until = self._desk.notice.base, wanted.purge_until
        if base is not None and base.generation <= until:
            self._want_newer(until)
        else:
            await self._delete(until)
        found = await self._desk.work(CountGenerations(until=until), ForgetSlice, seconds=SHORT_S)
        self._desk.post(purge_look=wanted.look, purge_until=until, purge_left=found.rows)

    def _want_newer(self, until: int) -> None:
        """A build under way that was begun later will do, and one that failed is tried again by itself."""
        notice = self._desk.notice
        later = notice.building is not None and not 0 < notice.building.generation <= until
        if notice.asked is None and not later and self._wishes.owed is None:
            self._wishes.force(REASON)

    async def _delete(self, until: int) -> None:
        notice = self._desk.notice
        previous = tuple(ref for ref in notice.previous if ref.generation > until)
        successor = notice.successor
        if successor is not None and successor.generation <= until:
            successor = None
        self._desk.post(previous=previous, successor=successor)
        with contextlib.suppress(BulkheadError):  # somebody still reads one; asked again in a moment
            await self._publisher.retire_at_once()
