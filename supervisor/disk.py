"""The watch of the disk: how much room there is, what may no longer be written, and what gives way.

Every second the free space is looked at, in a thread that is left behind when it hangs: a dead mount stops neither
this loop nor the daemon, it shows as `problem`. From what is seen and from what the workers ran into follows a level
(`disk_level.py`), posted on a board that routes, readiness and the builder read without asking anybody.

* low: the builder stops and drops earlier generations (it reads the board); the cache is told to shrink.
* full: the ballast is deleted; what makes core grow is refused with DiskFull before it reaches an actor; appends go on
  until the last few MiB. Reads, search and whatever makes the memory smaller go on.

Not every full disk shows in its statistics (quotas, a limit on the size of files), so a worker that found no room is
believed for a while. Nothing here needs a restart to recover.
"""

import contextlib
import logging
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import trio

from actors.actor import Board
from actors.errors import BulkheadError, DiskFull, StoreBroken
from actors.mailbox import Mailbox, deadline_after
from actors.messages.base import Statistics
from actors.messages.cache_manager import ClearCache, TrimCache
from actors.notices import BuilderNotice, DiskLevel, DiskNotice
from supervisor import ballast
from supervisor.config import DiskLimits
from supervisor.disk_level import appends_end_at, full_at, has_ample_room, judge, low_at, worst

Result = TypeVar("Result")
Growing = Literal["core_writer", "transcript_appender"]

TRUTH = ("core_writer", "transcript_appender")
TRIM_S = 30.0
TRIM_EVERY_S = 60.0
BALLAST_S = 60.0  # 32 MiB in plain writes, on a slow disk
# The largest transaction that one request can cause; less room than that is no room.
PROBE_BYTES = 8 * 1024 * 1024
PROBE = "probe.tmp"

log = logging.getLogger("bulkhead.disk")


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What one look brought."""

    free_bytes: int
    total_bytes: int
    ballast_bytes: int


class DiskWatch:
    """Looks at the disk, and says what may be written."""

    def __init__(
        self,
        *,
        data: Path,
        limits: DiskLimits,
        board: Board[DiskNotice],
        builder: Board[BuilderNotice],
        cache: Mailbox,
        look: Callable[[Path], Look] | None = None,
    ) -> None:
        self._data = data
        self._limits = limits
        self._board = board
        self._builder = builder
        self._cache = cache
        self._look = look or look_at
        self._looker = trio.CapacityLimiter(1)
        self._ballaster = trio.CapacityLimiter(1)
        self._measured = DiskLevel.OK
        self._last: Look | None = None
        self._freed_bytes = 0  # of the ballast; counted as used, or its end would look like room
        self._no_room_until: dict[str, float] = {}  # who found no room, and until when that counts
        self._suspected: set[str] = set()
        self._reported = trio.Event()
        self._settled = trio.Event()
        self._ok_since = time.monotonic()

    # ------------------------------------------------------------ what may be written

    def check(self, method: str, grows: Growing) -> None:
        """Raise DiskFull when there is no room for what this method would write. A look into memory, no more."""
        notice = self._board.notice
        refused = notice.writes_refused if grows == "core_writer" else notice.appends_refused
        if refused:
            raise DiskFull(
                f"{method} refused: {self._why(grows)}",
                retry_after_ms=self._limits.retry_after_ms,
                hint="free space on the disk of the data directory; reads and search go on, no restart is needed",
                actor=grows,
            )

    def report(self, error: BulkheadError) -> None:
        """Take note of an error that an actor answered with: it may be the first to know that the disk is full."""
        if isinstance(error, DiskFull) and error.actor is not None:
            error.retry_after_ms = error.retry_after_ms or self._limits.retry_after_ms
            self._believe(error.actor)
        elif isinstance(error, StoreBroken) and error.actor in TRUTH:
            self._suspected.add(error.actor)
            self._reported.set()

    def _believe(self, actor: str) -> None:
        self._no_room_until[actor] = time.monotonic() + self._limits.report_hold_ms / 1000
        self._post(problem=self._board.notice.problem)
        self._reported.set()

    # ------------------------------------------------------------ looking

    async def run(self) -> None:
        """Watch until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_looking)
            nursery.start_soon(self._keep_ballast)
            nursery.start_soon(self._keep_cache_small)

    async def _keep_looking(self) -> None:
        while True:
            await self._look_once()
            self._reported = trio.Event()
            with trio.move_on_after(self._limits.check_every_ms / 1000):
                await self._reported.wait()
            if self._suspected:
                await self._probe()

    async def _look_once(self) -> None:
        look = await self._in_thread(lambda: self._look(self._data), self._looker, self._limits.check_timeout_ms / 1000)
        if isinstance(look, Look):
            self._last = look
            self._measured = judge(
                self._measured,
                free_bytes=look.free_bytes - self._freed_bytes,
                total_bytes=look.total_bytes,
                limits=self._limits,
            )
        self._heed_builder()
        self._post(problem=look if isinstance(look, str) else None)

    def _heed_builder(self) -> None:
        """A build that ran into the end of the disk has given its room back, but would do so again."""
        hold_s = self._limits.report_hold_ms / 1000
        until = self._builder.notice.disk_full_ns / 1e9 + hold_s
        if self._builder.notice.disk_full_ns and until > time.monotonic():
            self._no_room_until["generation_builder"] = until

    async def _probe(self) -> None:
        """Find out whether an I/O error was the end of a quota, which SQLite does not tell apart."""
        suspected, self._suspected = self._suspected, set()
        path = self._data / PROBE
        found = await self._in_thread(
            lambda: ballast.has_room_for(path, PROBE_BYTES), self._ballaster, self._limits.check_timeout_ms / 1000
        )
        if found is False:
            for actor in suspected:
                self._believe(actor)

    async def _in_thread(
        self, function: Callable[[], Result], limiter: trio.CapacityLimiter, seconds: float
    ) -> Result | str:
        """Run what may hang in a thread, and leave it there when it does; return the result or what went wrong."""
        try:
            with trio.fail_after(seconds):
                return await trio.to_thread.run_sync(function, limiter=limiter, abandon_on_cancel=True)
        except trio.TooSlowError:
            return f"the file system of the data directory did not answer within {seconds:.1f} s"
        except OSError as error:
            return f"the file system of the data directory could not be looked at: {error}"

    # ------------------------------------------------------------ the notice

    def _post(self, *, problem: str | None) -> None:
        """Make public what follows from all that is known, and wake those who act on it."""
        before, look = self._board.notice, self._last
        now = time.monotonic()
        for actor in [actor for actor, until in self._no_room_until.items() if until <= now]:
            del self._no_room_until[actor]
        level = worst(self._measured, *(_level_of(actor) for actor in self._no_room_until))
        after = DiskNotice(
            level=level,
            reason=None if level is DiskLevel.OK else self._reason(),
            free_bytes=None if look is None else look.free_bytes,
            total_bytes=None if look is None else look.total_bytes,
            writes_refused=level is DiskLevel.FULL,
            appends_refused=self._appends_end(),
            ballast_bytes=0 if look is None else look.ballast_bytes,
            problem=problem,
        )
        if level is not before.level:
            self._ok_since = now
            log.warning("disk level", extra={"before": before.level, "after": level, "reason": after.reason})
        if problem is not None and before.problem is None:
            log.warning("disk not seen", extra={"error": problem})
        self._board.post(after)
        self._settled.set()
        self._settled = trio.Event()

    def _appends_end(self) -> bool:
        if "transcript_appender" in self._no_room_until:
            return True
        if self._last is None:
            return False
        ended = self._board.notice.appends_refused
        return self._last.free_bytes < appends_end_at(self._last.total_bytes, self._limits, ended=ended)

    def _reason(self) -> str:
        """Return why the level is not ok."""
        for actor in self._no_room_until:
            if worst(self._measured, _level_of(actor)) is not self._measured:
                return _found_no_room(actor)
        return self._below("full" if self._measured is DiskLevel.FULL else "low")

    def _why(self, grows: Growing) -> str:
        """Return why a write is refused."""
        if grows == "core_writer":
            return self._board.notice.reason or ""
        return _found_no_room(grows) if grows in self._no_room_until else self._below("append")

    def _below(self, watermark: Literal["low", "full", "append"]) -> str:
        assert self._last is not None, "what was measured was looked at"
        at = {"low": low_at, "full": full_at, "append": appends_end_at}[watermark]
        return (
            f"{self._last.free_bytes} of {self._last.total_bytes} bytes are free on the disk of the data directory, "
            f"limit is {at(self._last.total_bytes, self._limits)} "
            f"(config: disk.{watermark}_bytes, disk.{watermark}_percent)"
        )

    # ------------------------------------------------------------ what gives way

    async def _keep_ballast(self) -> None:
        """Give the ballast away while the disk is full, and make it again when there has been room for a while."""
        path = self._data / ballast.NAME
        while True:
            await self._settled.wait()
            look, level = self._last, self._board.notice.level
            if look is None:
                continue
            if level is DiskLevel.FULL and look.ballast_bytes:
                await self._free_ballast(path, look.ballast_bytes)
            elif level is DiskLevel.OK and self._may_make(look):
                await self._make_ballast(path)

    async def _free_ballast(self, path: Path, count: int) -> None:
        problem = await self._in_thread(lambda: ballast.free(path), self._ballaster, BALLAST_S)
        if problem is None:
            self._freed_bytes = count
            self._reported.set()
            log.warning("ballast freed", extra={"count": count})

    def _may_make(self, look: Look) -> bool:
        # Half of it counts as made: a file system may keep less of it than it was given.
        if look.ballast_bytes >= self._limits.ballast_bytes // 2:
            return False
        if time.monotonic() - self._ok_since < self._limits.ballast_after_ms / 1000:
            return False
        return has_ample_room(free_bytes=look.free_bytes, total_bytes=look.total_bytes, limits=self._limits)

    async def _make_ballast(self, path: Path) -> None:
        count = self._limits.ballast_bytes
        problem = await self._in_thread(lambda: ballast.make(path, count), self._ballaster, BALLAST_S)
        self._ok_since = time.monotonic()  # whatever came of it, the next attempt is a while away
        if problem is None:
            self._freed_bytes = 0
            self._reported.set()
            log.info("ballast made", extra={"count": count})
        else:
            log.info("ballast not made", extra={"error": problem})

    async def _keep_cache_small(self) -> None:
        """Have the cache shrink when the disk gets low, and again from time to time while it is."""
        while True:
            while self._board.notice.level is DiskLevel.OK:
                await self._settled.wait()
            if await self._shrink_cache():
                await self._rest(TRIM_EVERY_S)
            else:
                await self._rest(self._limits.check_every_ms / 1000)

    async def _rest(self, seconds: float) -> None:
        """Wait, at most until the disk is ok again: the next fall is answered at once."""
        with trio.move_on_after(seconds):
            while self._board.notice.level is not DiskLevel.OK:
                await self._settled.wait()

    async def _shrink_cache(self) -> bool:
        """Evict down to the small size; where there is no room even for that, drop the whole file."""
        try:
            await self._ask_cache(TrimCache(bytes_max=self._limits.cache_bytes_max_low))
            return True
        except DiskFull:
            with contextlib.suppress(BulkheadError):
                await self._ask_cache(ClearCache())
                return True
        except BulkheadError as error:
            log.info("cache not trimmed", extra={"error": error.message})
        return False

    async def _ask_cache(self, message: TrimCache | ClearCache) -> None:
        await self._cache.ask(message, Statistics, deadline_ns=deadline_after(TRIM_S))


def _level_of(actor: str) -> DiskLevel:
    """Return what follows when an actor finds no room: who writes derived data gives way and proves nothing."""
    return DiskLevel.FULL if actor in TRUTH else DiskLevel.LOW


def _found_no_room(actor: str) -> str:
    return f"{actor} found no room on the disk of the data directory a moment ago"


def look_at(data: Path) -> Look:
    """Look at the disk. Blocks; raises OSError."""
    found = os.statvfs(data)
    free_bytes = found.f_bavail * found.f_frsize
    largest_max, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if largest_max != resource.RLIM_INFINITY:
        # The workers inherit the limit; the file that reaches it first is as good as a full disk.
        free_bytes = min(free_bytes, max(0, largest_max - max(_sizes(data), default=0)))
    return Look(
        free_bytes=free_bytes,
        total_bytes=found.f_blocks * found.f_frsize,
        ballast_bytes=ballast.size(data / ballast.NAME),
    )


def _sizes(data: Path) -> Iterator[int]:
    """Return the sizes of the files that hold the truth, by their names only: nobody but their owner opens them."""
    for actor in TRUTH:
        for path in (data / actor).glob("*.db*"):
            with contextlib.suppress(FileNotFoundError):
                yield path.stat().st_size
