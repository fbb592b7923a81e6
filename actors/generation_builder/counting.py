"""Counts what was accepted and what of it can be found, over one consistent snapshot: a view, and the truth after it.

The view that serves and the texts that the model refused are taken first, at one instant. A view never changes, and the
truth is read afterwards, so it holds at least what the view covers; each part of it is read by one statement, and what
changes while it is paged comes again. So the parts add up, whatever is appended, put, deleted or killed meanwhile.

Several who ask at once get one count; nobody gets one that began before he asked.
"""

import time
from collections.abc import Callable

import msgspec
import trio

from actors.actor import Board, House
from actors.errors import GenerationSuspect
from actors.gaps import count_between, decode_gaps
from actors.generation_builder.building import Work
from actors.generation_builder.item_states import changed_last, item_counts
from actors.generation_builder.view_items import NO_MODEL
from actors.mailbox import deadline_after
from actors.messages.base import Statistics
from actors.messages.builder_work import CountedView, CountInView, FindInView
from actors.messages.core_writer import ListUnitChanges, SourceRoot, UnitChanges
from actors.messages.generation_builder import GetItemState, ItemCounts, ItemState
from actors.messages.index import Covers
from actors.messages.transcript_appender import TranscriptStatus
from actors.notices import BuilderNotice

ASK_S = 10.0
PAGE_ROWS = 1000
TRIES = 3  # a view may be replaced and deleted while it is counted


class Counting:
    """Counts for one incarnation of the builder. `work` calls its worker; the others say what is known by now."""

    def __init__(
        self,
        house: House,
        board: Board[BuilderNotice],
        *,
        work: Work,
        sources: Callable[[], list[SourceRoot]],
        refused: Callable[[], list[bytes]],
    ) -> None:
        self._house = house
        self._board = board
        self._work = work
        self._sources = sources
        self._refused = refused
        self._one_at_a_time = trio.Lock()
        self._began_at = 0.0
        self._last: ItemCounts | None = None

    async def count(self) -> ItemCounts:
        """Return the counts of a moment after this call, and post them."""
        asked_at = time.monotonic()
        async with self._one_at_a_time:
            if self._last is None or self._began_at < asked_at:
                self._began_at = time.monotonic()
                self._last = await self._count()
                self._board.post(msgspec.structs.replace(self._board.notice, items=self._last))
            return self._last

    async def _count(self) -> ItemCounts:
        for _ in range(TRIES - 1):
            try:
                return await self._count_view()
            except GenerationSuspect:
                continue
        return await self._count_view()

    async def _count_view(self) -> ItemCounts:
        notice, refused = self._board.notice, self._refused()
        view = notice.serving
        covers = Covers() if view is None else view.covers
        status = await self._house.ask(
            "transcript_appender", TranscriptStatus(), Statistics, deadline_ns=deadline_after(ASK_S)
        )
        gaps = decode_gaps(str(status.values.get("gaps") or ""))
        changed, active = changed_last(await self._unit_changes(covers.core_seq))
        message = CountInView(view=view, sources=self._sources(), refused=refused, changed_units=changed)
        return item_counts(
            view,
            await self._work(message, CountedView),
            events=count_between(covers.event_seq, int(status.values["seq"] or 0), gaps),
            units=active,
            model=notice.identity is not None,
            at=time.time_ns() // 1000,
        )

    async def _unit_changes(self, after: int) -> list[UnitChanges]:
        pages: list[UnitChanges] = []
        while not pages or pages[-1].more:
            message = ListUnitChanges(after=after, limit=PAGE_ROWS)
            deadline_ns = deadline_after(ASK_S)
            pages.append(await self._house.ask("core_writer", message, UnitChanges, deadline_ns=deadline_ns))
            after = pages[-1].last_seq
        return pages

    async def find(self, message: GetItemState) -> ItemState:
        """Return the state of one item."""
        for _ in range(TRIES - 1):
            try:
                return await self._find(message)
            except GenerationSuspect:
                continue
        return await self._find(message)

    async def _find(self, message: GetItemState) -> ItemState:
        notice = self._board.notice
        view = notice.serving
        without = ItemState(words="searchable", meaning="pending")
        if notice.identity is None and (view is None or view.identity is None):
            without = ItemState(words="searchable", meaning="failed", reason=NO_MODEL)
        covers = Covers() if view is None else view.covers
        covered = {"events": covers.event_seq, "units": covers.core_seq}
        if message.corpus != "documents" and message.seq > covered[message.corpus]:
            return without
        look_up = FindInView(
            view=view,
            sources=self._sources(),
            refused=self._refused(),
            corpus=message.corpus,
            key=message.key,
            tenant=message.tenant,
        )
        found = await self._work(look_up, ItemState)
        return without if found.meaning == "pending" and found.words == "searchable" else found
