"""The full generations: when one is built, what becomes of it, and ending one. Never two at a time.

One is built on command, when there is none or the embedding is another one, and when the delta has outgrown its share;
how, is in full_build.py. Requests coalesce: what is asked for before a build begins is one build, what is asked for
while one runs is about what came after its start and is the next one. What fails is tried again, with longer and longer
pauses, and in nobody's way: the generation that served goes on serving.
"""

import contextlib
import enum
import time
from typing import Literal

import trio

from actors.errors import BulkheadError, DiskFull, NotFound
from actors.gaps import count_between
from actors.generation_builder.deltas import Deltas, abandon
from actors.generation_builder.desk import LOOK_EVERY_S, Desk
from actors.generation_builder.full_build import Built, FullBuilds
from actors.generation_builder.looking import Lookout
from actors.generation_builder.publishing import Publisher, as_row
from actors.generation_builder.steps import Steps
from actors.generation_builder.succession import NOTES_WAIT, OUTGROWN, QUIET, WASTED, Succession
from actors.generation_builder.wishes import Wishes
from actors.messages.base import Row
from actors.messages.index import BuildEnd, Covers, GenerationRef
from actors.notices import BuilderNotice
from actors.worker import WorkerSpec

RETRY_S_MIN, RETRY_S_MAX = 5.0, 300.0
ATTEMPTS_MAX = 3  # with the same input; then it waits for the truth to move or for a command
# A delta becomes part of a generation when nothing else is to be done, if that takes seconds (measured: 6 s for 20,000
# rows) or the delta is so large a part.
COMPACT_ROWS, COMPACT_PERCENT = 20_000, 1
# Upserts leave what they replace in the base; so much of it, and it is made anew. Fewer rows are not worth a process.
WASTED_ROWS_MIN, WASTED_PERCENT = 200, 40
CANCELLED_PAUSE_S = 60.0  # who cancels a build does not want the next one at once
ENDS_KEPT = 16
ROWS_A_NOTE = 4  # measured: 3 to 5 chunks

EndState = Literal["published", "successor", "failed", "cancelled"]


class Ending(enum.Enum):
    """Why a build is ended before it is complete."""

    DISK = "build ended: the disk is low"
    COMMAND = "cancelled by command"


class Rebuilds:
    """Has full generations built, and published."""

    def __init__(
        self,
        desk: Desk,
        wishes: Wishes,
        *,
        publisher: Publisher,
        lookout: Lookout,
        deltas: Deltas,
        succession: Succession,
        worker: WorkerSpec,
    ) -> None:
        self._desk = desk
        self._wishes = wishes
        self._publisher = publisher
        self._lookout = lookout
        self._deltas = deltas
        self._succession = succession
        self._steps = Steps(desk, "building")
        self._builds = FullBuilds(
            desk,
            self._steps,
            publisher=publisher,
            lookout=lookout,
            deltas=deltas,
            succession=succession,
            worker=worker,
        )
        self._ended_at = self._not_before = 0.0
        self._running: int | None = None  # the number of the build under way
        self._at_rest = trio.Event()  # it has ended, and what it left is gone
        self._endable: trio.CancelScope | None = None  # the build under way, until it is complete
        self._ending: Ending | None = None

    async def run(self) -> None:
        """Build a generation whenever one is due, for ever."""
        while True:
            reason = self._due()
            if reason is None:
                await self._wishes.wait_full(LOOK_EVERY_S)
                continue
            number = self._running = self._desk.notice.builds_started + 1
            self._at_rest, self._ending = trio.Event(), None
            with trio.CancelScope() as scope:
                self._endable = scope
                await self._build(number, reason)
            self._endable = None
            self._ended_at = time.monotonic()
            if scope.cancelled_caught:
                await self._clear_away(number, reason)
            self._running = None
            self._at_rest.set()

    # ------------------------------------------------------------ when

    def _due(self) -> str | None:
        """Return why a generation is due now, or None."""
        notice, latest = self._desk.notice, self._desk.truth.latest
        if notice.no_room or self._publisher.rolling_back:
            return None
        if self._wishes.forced is not None:
            return self._wishes.forced
        if self._wishes.paused_at == latest or not latest.sources_digest:
            return None
        if notice.serving is None:
            empty = latest == Covers(sources_digest=latest.sources_digest) and not notice.files
            reason = None if empty else "no generation"
        else:
            reason = self._succession.due() or self._wishes.owed or self._outgrown(notice.serving)
        if reason is None or time.monotonic() < max(self._not_before, self._next_at()):
            return None
        return reason

    def _outgrown(self, serving: GenerationRef) -> str | None:
        """Return why the delta should become part of a generation, None while it may go on."""
        base = self._desk.notice.base
        if base is None:
            return None
        if self._deltas.rows_since(base) > self._deltas.share(base):
            return OUTGROWN
        if _is_wasteful(serving, base):
            return WASTED
        if serving.deferred:
            return NOTES_WAIT
        quiet_ms = (time.monotonic() - self._desk.truth.moved_at) * 1000
        if quiet_ms <= self._desk.limits.compact_after_ms or self._deltas.due():
            return None
        return QUIET if _is_worth_compacting(serving, base) else None

    def _next_at(self) -> float:
        """Return when the next build may start by itself: the share of time spent building is bounded."""
        notice, limits = self._desk.notice, self._desk.limits
        if notice.attempts and notice.attempted == self._desk.truth.latest:
            if notice.attempts >= ATTEMPTS_MAX and not notice.disk_full_ns:
                return float("inf")
            return self._ended_at + min(RETRY_S_MAX, RETRY_S_MIN * 2.0 ** (notice.attempts - 1))
        pause_s: float = notice.build_ms / 1000 * (100 / limits.duty_percent_max - 1)
        return self._ended_at + max(limits.build_every_ms / 1000, pause_s)

    # ------------------------------------------------------------ one build, and what came of it

    async def _build(self, number: int, reason: str) -> None:
        started = time.monotonic()
        self._wishes.take()
        self._desk.post(builds_started=number, paused=False, cancelled=False)
        self._steps.begin(_expected(self._desk.notice), build=number, reason=reason)
        self._desk.house.log.info("build started", extra={"reason": reason, "build": number})
        try:
            covers = await self._refresh()
            notice = self._desk.notice
            attempts = notice.attempts if notice.attempted == covers else 0
            self._desk.post(attempted=covers, attempts=attempts + 1)
            built = await self._builds.make(covers, reason)
            if built.publish:
                await self._builds.publish(built, complete=self._complete)
            else:
                self._desk.post(successor=built.sealed)
                await self._publisher.keep_model_change()
        except BulkheadError as error:
            self._failed(number, reason, error)
        else:
            self._succeeded(number, built, (time.monotonic() - started) * 1000)

    async def _refresh(self) -> Covers:
        """Look once more right before the build, so that it covers all that was acknowledged until now."""
        self._lookout.walk_all()
        return await self._lookout.look()

    def _complete(self) -> None:
        """What is complete is published, whatever comes: on a low disk so that the one before it can go."""
        self._endable = None

    def _succeeded(self, number: int, built: Built, took_ms: float) -> None:
        self._wishes.owed = None
        self._succession.built(built.sealed)
        self._lookout.scan_again()  # the next scan reports what this build could not read
        self._steps.end(built.sealed.rows)
        published = number if built.publish else self._desk.notice.builds_published
        self._desk.post(builds_published=published, attempts=0, last_error=None, disk_full_ns=0, build_ms=took_ms)
        self._record(number, "published" if built.publish else "successor", generation=built.sealed.generation)
        extra = {"generation": built.sealed.generation, "build": number, "rows": built.sealed.rows}
        self._desk.house.log.info("build published" if built.publish else "successor built", extra=extra)

    def _failed(self, number: int, reason: str, error: BulkheadError) -> None:
        self._succession.failed(reason)
        self._wishes.owed = reason
        self._steps.end()
        # A full disk is not the fault of the input, so it is tried for ever, with longer and longer pauses.
        full_ns = time.monotonic_ns() if isinstance(error, DiskFull) else 0
        self._desk.post(last_error=error.message, disk_full_ns=full_ns)
        self._record(number, "failed", error=error.message)
        self._desk.house.log.warning("build failed", extra={"error": error.message, "build": number})
        self._publisher.retire_again()  # its folder is to be deleted

    def _record(self, number: int, state: EndState, *, generation: int | None = None, error: str | None = None) -> None:
        end = BuildEnd(build=number, state=state, generation=generation, error=error)
        self._desk.post(builds_ended=(*self._desk.notice.builds_ended, end)[-ENDS_KEPT:])

    # ------------------------------------------------------------ ending one

    def end_for_disk(self) -> None:
        """End the build under way, unless it is complete. It is wanted all the same, and made once there is room."""
        if self._ending is None:
            self._end(Ending.DISK)

    async def cancel(self, build: int | None) -> Row:
        """End the build under way and withdraw the one that is asked for; with `build` only that one of them.

        Returns when process and folder are gone. A build that is complete is published all the same. None is made
        unasked before the truth has moved, nor within a minute. Raises NotFound.
        """
        asked, running = self._asked(), self._running
        if build is not None and build not in (asked, running):
            raise NotFound(f"index.cancel: build {build} is neither under way nor asked for", hint="see index.status")
        publishing = running if self._endable is None and build in (None, running) else None
        cancelled = [number for number in (running, asked) if number is not None and build in (None, number)]
        if publishing is not None:
            cancelled.remove(publishing)
        await self._end_these(cancelled)
        return as_row({"cancelled": cancelled, "publishing": publishing})

    async def make_way(self) -> list[int]:
        """End what is under way and withdraw what is asked for; return their numbers.

        A build that is complete is waited for: it is published in a moment.
        """
        if self._running is not None and self._endable is None:
            await self._at_rest.wait()
        cancelled = [number for number in (self._running, self._asked()) if number is not None]
        await self._end_these(cancelled)
        return cancelled

    async def _end_these(self, builds: list[int]) -> None:
        if self._asked() in builds:
            self._withdraw()
        if self._running in builds:
            self._end(Ending.COMMAND)
            await self._at_rest.wait()

    def _asked(self) -> int | None:
        """Return the number that the build will have that is asked for, None when none is."""
        return None if self._wishes.forced is None else self._desk.notice.builds_started + 1

    def _end(self, ending: Ending) -> None:
        if self._endable is not None:
            self._ending = ending
            self._endable.cancel(ending.value)

    def _withdraw(self) -> None:
        """Forget a build that has not begun. Its number is spent, so that whoever waits for it is told."""
        number = self._desk.notice.builds_started + 1
        self._wishes.take()
        self._pause()
        self._desk.post(builds_started=number)
        self._record(number, "cancelled", error=Ending.COMMAND.value)

    def _pause(self) -> None:
        """Build nothing unasked until the truth moves, and not for a while."""
        self._wishes.owed = None
        self._wishes.paused_at = self._desk.truth.latest
        self._not_before = time.monotonic() + CANCELLED_PAUSE_S
        self._desk.post(cancelled=True)

    async def _clear_away(self, number: int, reason: str) -> None:
        """Remove what an ended build left, at once. Its process is gone."""
        ending = self._ending or Ending.DISK
        attempts = max(0, self._desk.notice.attempts - 1)  # its input is not to blame
        self._steps.end()
        self._desk.post(attempts=attempts, last_error=ending.value)
        self._desk.house.log.warning("build ended", extra={"reason": ending.value, "build": number})
        if ending is Ending.COMMAND:
            self._pause()
        elif self._wishes.forced is None:
            self._wishes.force(reason)
        await abandon(self._desk.work, remains=True)
        with contextlib.suppress(BulkheadError):  # what is left is deleted in time
            await self._publisher.retire_at_once()
        self._record(number, "cancelled" if ending is Ending.COMMAND else "failed", error=ending.value)


def _is_wasteful(serving: GenerationRef, base: GenerationRef) -> bool:
    """Say whether a delta masks so much of its base that disk and memory hold nearly everything twice."""
    rows = sum(base.rows.values())
    masked = rows + serving.delta_rows - sum(serving.rows.values())
    return masked >= WASTED_ROWS_MIN and masked * 100 >= rows * WASTED_PERCENT


def _is_worth_compacting(serving: GenerationRef, base: GenerationRef) -> bool:
    """Say whether a new generation is cheap, or spares searches enough, to be made for the sake of it."""
    rows = sum(base.rows.values())
    return serving.delta is not None and (rows <= COMPACT_ROWS or serving.delta_rows * 100 >= rows * COMPACT_PERCENT)


def _expected(notice: BuilderNotice) -> dict[str, int]:
    """Return about how many rows a generation has now: those that serve, and what the truth has beyond."""
    rows = {} if notice.serving is None else notice.serving.rows
    return {
        "events": max(rows.get("events", 0), count_between(0, notice.event_seq, notice.event_gaps)),
        "units": rows.get("units", 0) or notice.core_seq,
        "documents": rows.get("documents", 0) or notice.files * ROWS_A_NOTE,
    }
