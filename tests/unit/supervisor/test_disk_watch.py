"""The watch of the disk: what it makes of looks that hang or fail, of what workers report, and what gives way."""

import errno
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio

from actors.actor import Board
from actors.errors import BulkheadError, DiskFull, StoreBroken
from actors.mailbox import Mailbox
from actors.messages.base import Message, Statistics
from actors.messages.cache_manager import ClearCache, TrimCache
from actors.notices import BuilderNotice, DiskLevel, DiskNotice
from supervisor import ballast
from supervisor.config import DiskLimits
from supervisor.disk import DiskWatch, Look, look_at
from tests.unit.supervisor.test_ballast import file_size_limit

MIB = 2**20
TOTAL = 10_000 * MIB
LIMITS = DiskLimits(
    check_every_ms=10, check_timeout_ms=100, report_hold_ms=200, ballast_bytes=4 * MIB, ballast_after_ms=60_000
)


class House:
    """A watch of a pretended disk, and the cache beside it."""

    def __init__(self, data: Path, limits: DiskLimits) -> None:
        self.data = data
        self.free = TOTAL
        self.hang: threading.Event | None = None
        self.error: OSError | None = None
        self.board = Board(DiskNotice())
        self.builder = Board(BuilderNotice())
        self.cache = Mailbox("cache_manager", count_max=8, bytes_max=MIB)
        self.asked: list[Message] = []
        self.trim_fails = False
        self.watch = DiskWatch(
            data=data, limits=limits, board=self.board, builder=self.builder, cache=self.cache, look=self.look
        )

    def look(self, data: Path) -> Look:
        if self.hang is not None:
            self.hang.wait(30)
        if self.error is not None:
            raise self.error
        return Look(free_bytes=self.free, total_bytes=TOTAL, ballast_bytes=ballast.size(data / ballast.NAME))

    async def answer_as_cache(self) -> None:
        while True:
            envelope = await self.cache.take()
            self.asked.append(envelope.message)
            if self.trim_fails and isinstance(envelope.message, TrimCache):
                self.cache.refuse(envelope, DiskFull("no room to delete"))
            else:
                self.cache.finish(envelope, Statistics(values={}))

    async def until(self, predicate: Callable[[DiskNotice], bool]) -> DiskNotice:
        with trio.fail_after(20):
            while not predicate(self.board.notice):
                await self.board.wait_changed()
        return self.board.notice

    def refuses(self, grows: str) -> DiskFull | None:
        try:
            self.watch.check("some.method", grows)  # type: ignore[arg-type]
        except DiskFull as error:
            return error
        return None


@asynccontextmanager
async def watching(data: Path, **limits: object) -> AsyncIterator[House]:
    house = House(data, msgspec.structs.replace(LIMITS, **limits))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(house.answer_as_cache)
        nursery.start_soon(house.watch.run)
        await house.until(lambda notice: notice.free_bytes is not None)
        yield house
        nursery.cancel_scope.cancel("the test is over")


async def test_before_the_first_look_everything_goes(tmp_path: Path) -> None:
    house = House(tmp_path, LIMITS)
    assert house.refuses("core_writer") is None and house.refuses("transcript_appender") is None


async def test_a_full_disk_refuses_core_before_it_refuses_events_and_recovers_by_itself(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        house.free = 63 * MIB
        await house.until(lambda notice: notice.level is DiskLevel.FULL)
        error = house.refuses("core_writer")
        assert error is not None and error.retry_after_ms == LIMITS.retry_after_ms and error.hint is not None
        assert f"{63 * MIB} of {TOTAL} bytes are free" in error.message and "disk.full_bytes" in error.message
        assert house.refuses("transcript_appender") is None
        house.free = 15 * MIB
        await house.until(lambda notice: notice.appends_refused)
        error = house.refuses("transcript_appender")
        assert error is not None and f"limit is {16 * MIB} (config: disk.append_bytes" in error.message
        house.free = TOTAL
        notice = await house.until(lambda notice: notice.level is DiskLevel.OK)
        assert not notice.writes_refused and not notice.appends_refused and notice.reason is None
        assert house.refuses("core_writer") is None and house.refuses("transcript_appender") is None


async def test_a_look_that_hangs_is_shown_and_keeps_the_level(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        house.free = 63 * MIB
        await house.until(lambda notice: notice.level is DiskLevel.FULL)
        house.hang = threading.Event()
        notice = await house.until(lambda notice: notice.problem is not None)
        assert notice.problem is not None and "did not answer within 0.1 s" in notice.problem
        assert notice.level is DiskLevel.FULL, "nothing is known, so nothing changes"
        await house.until(lambda notice: notice.problem is not None)  # the loop goes on beside the lost thread
        house.free = TOTAL
        hang, house.hang = house.hang, None
        hang.set()
        await house.until(lambda notice: notice.problem is None and notice.level is DiskLevel.OK)


async def test_a_look_that_fails_is_shown(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        house.error = OSError(errno.EIO, "Input/output error")
        notice = await house.until(lambda notice: notice.problem is not None)
        assert notice.problem is not None and "Input/output error" in notice.problem
        assert notice.level is DiskLevel.OK
        house.error = None
        await house.until(lambda notice: notice.problem is None)


async def test_a_worker_that_found_no_room_is_believed_at_once_and_for_a_while(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        error = DiskFull("database or disk is full", actor="core_writer")
        house.watch.report(error)
        assert error.retry_after_ms == LIMITS.retry_after_ms, "the caller is told when to come again"
        assert house.board.notice.level is DiskLevel.FULL
        refused = house.refuses("core_writer")
        assert refused is not None and "core_writer found no room" in refused.message
        assert house.refuses("transcript_appender") is None, "there is room, says the disk"
        await house.until(lambda notice: notice.level is DiskLevel.OK)
        assert house.refuses("core_writer") is None


async def test_an_append_that_found_no_room_stops_appends_for_a_while(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        house.watch.report(DiskFull("full", actor="transcript_appender"))
        refused = house.refuses("transcript_appender")
        assert refused is not None and "transcript_appender found no room" in refused.message
        await house.until(lambda notice: not notice.appends_refused)


@pytest.mark.parametrize("actor", ["cache_manager", "generation_builder"])
async def test_derived_data_that_finds_no_room_gives_way_and_refuses_nobody(tmp_path: Path, actor: str) -> None:
    async with watching(tmp_path) as house:
        house.watch.report(DiskFull("full", actor=actor))
        assert house.board.notice.level is DiskLevel.LOW
        assert house.refuses("core_writer") is None and house.refuses("transcript_appender") is None


async def test_a_build_that_found_no_room_is_seen_on_the_board_of_the_builder(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        house.builder.post(BuilderNotice(disk_full_ns=time.monotonic_ns()))
        notice = await house.until(lambda notice: notice.level is DiskLevel.LOW)
        assert notice.reason is not None and "generation_builder found no room" in notice.reason
        await house.until(lambda notice: notice.level is DiskLevel.OK)


async def test_an_io_error_at_the_end_of_a_quota_counts_as_a_full_disk(tmp_path: Path) -> None:
    """SQLite reports EDQUOT and EFBIG as plain I/O errors; whether there is room is found out by taking some."""
    async with watching(tmp_path) as house:
        with file_size_limit(1 * MIB):
            house.watch.report(StoreBroken("disk I/O error", actor="core_writer"))
            await house.until(lambda notice: notice.level is DiskLevel.FULL)
        await house.until(lambda notice: notice.level is DiskLevel.OK)


@pytest.mark.parametrize("error", [StoreBroken("disk I/O error", actor="core_writer"), BulkheadError("anything")])
async def test_other_errors_change_nothing_where_there_is_room(tmp_path: Path, error: BulkheadError) -> None:
    async with watching(tmp_path) as house:
        house.watch.report(error)
        for _ in range(5):
            await house.board.wait_changed()
        assert house.board.notice.level is DiskLevel.OK
        assert not list(tmp_path.iterdir()), "the probe is gone"


async def test_the_ballast_is_made_when_the_disk_is_ok_and_given_away_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / ballast.NAME
    async with watching(tmp_path, ballast_after_ms=50) as house:
        await house.until(lambda notice: notice.ballast_bytes == 4 * MIB)
        assert path.stat().st_size == 4 * MIB
        house.free = 60 * MIB
        await house.until(lambda notice: notice.level is DiskLevel.FULL and notice.ballast_bytes == 0)
        assert not path.exists()
        house.free = 82 * MIB  # above the way back of 80, but 4 of it are the ballast's: that is not room
        for _ in range(5):
            await house.board.wait_changed()
        assert house.board.notice.level is DiskLevel.FULL
        house.free = 84 * MIB
        await house.until(lambda notice: notice.level is DiskLevel.LOW)
        assert not path.exists(), "it is not made while the disk is low"
        house.free = TOTAL
        await house.until(lambda notice: notice.level is DiskLevel.OK and notice.ballast_bytes == 4 * MIB)
        assert path.exists()


async def test_no_ballast_is_made_without_ample_room_or_when_none_is_wanted(tmp_path: Path) -> None:
    for limits in ({"ballast_bytes": 0}, {"low_bytes": TOTAL, "low_percent": 99.9}):
        async with watching(tmp_path, ballast_after_ms=0, **limits) as house:
            for _ in range(5):
                await house.board.wait_changed()
            assert not (tmp_path / ballast.NAME).exists()


async def test_a_ballast_that_cannot_be_made_harms_nobody(tmp_path: Path) -> None:
    with file_size_limit(1 * MIB):
        async with watching(tmp_path, ballast_after_ms=0) as house:
            for _ in range(5):
                await house.board.wait_changed()
            assert house.board.notice.level is DiskLevel.OK and not (tmp_path / ballast.NAME).exists()


async def test_the_cache_shrinks_once_when_the_disk_gets_low(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        assert not house.asked
        house.free = 100 * MIB
        await house.until(lambda notice: notice.level is DiskLevel.LOW)
        for _ in range(20):
            await house.board.wait_changed()
        assert house.asked == [TrimCache(bytes_max=LIMITS.cache_bytes_max_low)], "the next time is a minute away"
        house.free = TOTAL
        await house.until(lambda notice: notice.level is DiskLevel.OK)
        house.free = 100 * MIB
        await house.until(lambda notice: notice.level is DiskLevel.LOW)
        for _ in range(5):
            await house.board.wait_changed()
        assert len(house.asked) == 2, "but the next fall is answered at once"


async def test_a_cache_that_cannot_even_delete_is_dropped_whole(tmp_path: Path) -> None:
    async with watching(tmp_path) as house:
        house.trim_fails = True
        house.free = 1 * MIB
        await house.until(lambda notice: notice.level is DiskLevel.FULL)
        for _ in range(5):
            await house.board.wait_changed()
        assert house.asked == [TrimCache(bytes_max=LIMITS.cache_bytes_max_low), ClearCache()]


def test_a_look_at_a_real_disk(tmp_path: Path) -> None:
    look = look_at(tmp_path)
    assert 0 < look.free_bytes <= look.total_bytes and look.ballast_bytes == 0


def test_a_limit_on_the_size_of_files_is_room_too(tmp_path: Path) -> None:
    """The room that is left is that of the largest file of the truth."""
    folder = tmp_path / "core_writer"
    folder.mkdir()
    (folder / "core.db").write_bytes(b"x" * 300_000)
    (folder / "core.db-wal").write_bytes(b"x" * 1000)
    with file_size_limit(1_000_000):
        assert look_at(tmp_path).free_bytes == 700_000
    with file_size_limit(200_000):
        assert look_at(tmp_path).free_bytes == 0
