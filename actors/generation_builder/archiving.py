"""Archiving: a sealed segment of the transcript becomes a Parquet file, and the transcript keeps a list of its events.

    page by page ▶ file, read back, named ▶ the transcript replaces the segment by a list ▶ a generation without it

Each step may be cut short: what was begun is begun anew, and the events are in the segment until the file holds them,
durable and compared. The pages are read in turns with everybody else's, and at most half of the time is spent on it.
What is queued is on the board, so that it outlives an incarnation; a restart of the daemon forgets it, and the next
command or the next look of the policy (`archive_after_days`) queues it again.
"""

import time
from typing import TypeVar

import msgspec
import trio

from actors.errors import BulkheadError, DiskFull
from actors.generation_builder.desk import SHORT_S, Desk
from actors.generation_builder.wishes import Wishes
from actors.mailbox import deadline_after
from actors.messages.archives import (
    AddToArchive,
    ArchiveEvents,
    ArchiveFile,
    ArchiveQueued,
    BeginArchive,
    ListSegments,
    PageWholeEvents,
    RetireSegment,
    SealArchive,
    SegmentInfo,
    SegmentList,
    WholeEvents,
)
from actors.messages.base import Done, Message
from actors.notices import ArchivingNotice

Answer = TypeVar("Answer", bound=msgspec.Struct)

PAGE_ROWS = 500
PAGE_BYTES = 1024 * 1024
PAGE_S = 30.0
RETIRE_S = 600.0
POLICY_EVERY_S = 3600.0
DAY_US = 86_400_000_000
ARCHIVED = "events were archived"


class Archiver:
    """Archives one segment after the other."""

    def __init__(self, desk: Desk, wishes: Wishes) -> None:
        self._desk = desk
        self._wishes = wishes
        self._asked = trio.Event()

    async def run(self) -> None:
        """Archive what is queued, and queue what the policy says, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow_policy)
            while True:
                self._asked = trio.Event()
                if not self._notice.queued:
                    await self._asked.wait()
                while self._notice.queued:
                    await self._archive_next()
                if self._notice.unindexed:
                    self._post(unindexed=False)
                    self._wishes.force(ARCHIVED)

    async def queue(self, message: ArchiveEvents) -> ArchiveQueued:
        """Queue every segment that was sealed before a time. Raises DiskFull while the disk is low."""
        if self._desk.notice.no_room:
            raise DiskFull(
                "archiving refused: the disk is low, and an archive is written before its segment goes",
                hint="free space on the disk of the data directory",
            )
        segments = await self._segments()
        due = [each.number for each in segments if each.state == "sealed" and each.at < message.before]
        known = (*self._notice.queued, *(number for number in due if number not in self._notice.queued))
        self._post(queued=known, error=None)
        self._asked.set()
        return ArchiveQueued(segments=list(known), running=self._notice.running)

    async def _follow_policy(self) -> None:
        days = self._desk.limits.archive_after_days
        while days:
            try:
                await self.queue(ArchiveEvents(before=time.time_ns() // 1000 - days * DAY_US))
            except BulkheadError as error:
                self._desk.house.log.info("archiving put off", extra={"error": error.message})
            await trio.sleep(POLICY_EVERY_S)

    async def _archive_next(self) -> None:
        number = self._notice.queued[0]
        self._post(running=number, rows=0)
        try:
            segment = next((each for each in await self._segments() if each.number == number), None)
            if segment is not None and segment.state == "sealed":
                await self._archive(segment)
        except BulkheadError as error:
            self._post(error=f"segment {number}: {error.message}")
            self._desk.house.log.warning("not archived", extra={"error": error.message})
        self._post(running=None, queued=self._notice.queued[1:])

    async def _archive(self, segment: SegmentInfo) -> None:
        await self._desk.work(BeginArchive(number=segment.number), Done, seconds=SHORT_S)
        after, more = segment.first_seq - 1, True
        while more:
            began = time.monotonic()
            page = await self._page(segment.number, after)
            await self._desk.work(AddToArchive(rows=page.rows), Done)
            after, more = page.last_seq, page.more
            self._post(rows=self._notice.rows + page.count)
            await trio.sleep(time.monotonic() - began)
        archive = await self._desk.work(SealArchive(), ArchiveFile)
        await self._retire(segment, archive)
        self._post(unindexed=True, archived=self._notice.archived + 1)
        self._desk.house.log.info("archived", extra={"path": archive.name})

    async def _page(self, number: int, after: int) -> WholeEvents:
        message = PageWholeEvents(number=number, after=after, limit=PAGE_ROWS, bytes_max=PAGE_BYTES)
        return await self._ask(message, WholeEvents, PAGE_S)

    async def _retire(self, segment: SegmentInfo, archive: ArchiveFile) -> None:
        await self._ask(RetireSegment(number=segment.number, archive=archive), Done, RETIRE_S)

    async def _segments(self) -> list[SegmentInfo]:
        return (await self._ask(ListSegments(), SegmentList, SHORT_S)).segments

    async def _ask(self, message: Message, answer: type[Answer], seconds: float) -> Answer:
        return await self._desk.house.ask("transcript_appender", message, answer, deadline_ns=deadline_after(seconds))

    @property
    def _notice(self) -> ArchivingNotice:
        return self._desk.notice.archiving

    def _post(self, **changes: object) -> None:
        self._desk.post(archiving=msgspec.structs.replace(self._notice, **changes))
