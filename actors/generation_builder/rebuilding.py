"""The full generations: one after the other, never two at a time, each in a process of its own that ends with it.

One is built on command, when there is none or the embedding is another one, and when the delta has outgrown its share.
Deltas over the old one go on meanwhile, and before a new one is published a delta brings it up to date. What fails is
tried again, with longer and longer pauses, and never in the way of anybody: the generation that served goes on serving.
"""

import contextlib
import time
from typing import TypeVar

import trio

from actors.errors import BuildFailed, BulkheadError, DiskFull
from actors.generation_builder.building import BuildPlan, TooMuchForDelta, build
from actors.generation_builder.deltas import Deltas
from actors.generation_builder.desk import LOOK_EVERY_S, Desk, Steps, work_of
from actors.generation_builder.looking import Lookout
from actors.generation_builder.publishing import Publisher
from actors.generation_builder.seat import Seat, hard_limit, keep_below
from actors.generation_builder.succession import OUTGROWN, QUIET, Succession
from actors.generation_builder.wishes import Wishes
from actors.messages import Covers, GenerationRef, Progress
from actors.worker import WorkerDied, WorkerSpec

Error = TypeVar("Error", bound=BaseException)

RETRY_S_MIN, RETRY_S_MAX = 5.0, 300.0
ATTEMPTS_MAX = 3  # with the same input; then it waits for the truth to move or for a command
# A delta becomes part of a generation when nothing else is to be done, if that takes seconds (measured: 6 s for 20,000
# rows) or the delta is so large a part.
COMPACT_ROWS, COMPACT_PERCENT = 20_000, 1


class Rebuilds:
    """Builds full generations and publishes them."""

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
        self._worker = worker
        self._steps = Steps(desk, "building")
        self._ended_at = 0.0
        self._endable: trio.CancelScope | None = None  # the build under way, until it is complete

    async def run(self) -> None:
        """Build a generation whenever one is due, for ever."""
        while True:
            reason = self._due()
            if reason is None:
                await self._wishes.wait_full(LOOK_EVERY_S)
                continue
            self._wishes.forced = None
            with trio.CancelScope() as scope:
                self._endable = scope
                await self._build_once(reason)
            self._endable = None
            self._ended_at = time.monotonic()
            if scope.cancelled_caught:
                await self._make_room(reason)

    def end(self, reason: str) -> None:
        """End the build under way, unless it is complete."""
        if self._endable is not None:
            self._endable.cancel(reason)

    # ------------------------------------------------------------ when

    def _due(self) -> str | None:
        """Return why a generation is due now, or None."""
        notice, latest = self._desk.notice, self._desk.truth.latest
        if notice.no_room:
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
        if reason is None or time.monotonic() < self._next_at():
            return None
        return reason

    def _outgrown(self, serving: GenerationRef) -> str | None:
        """Return why the delta should become part of a generation, None while it may go on."""
        base = self._desk.notice.base
        if base is None:
            return None
        if self._deltas.rows_since(base) > self._deltas.share(base):
            return OUTGROWN
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

    # ------------------------------------------------------------ how

    async def _build_once(self, reason: str) -> None:
        started = time.monotonic()
        self._wishes.paused_at = None
        number = self._desk.notice.builds_started + 1
        self._desk.post(building=Progress(stage="begin"), builds_started=number, paused=False)
        self._desk.house.log.info("build started", extra={"reason": reason, "build": number})
        try:
            covers = await self._refresh()
            notice = self._desk.notice
            attempts = notice.attempts if notice.attempted == covers else 0
            self._desk.post(attempted=covers, attempts=attempts + 1)
            sealed = await self._rebuild(covers, reason)
            if self._succession.may_publish(sealed, reason):
                await self._publish(sealed)
            else:
                self._desk.post(successor=sealed)
        except BulkheadError as error:
            self._failed(reason, error)
        else:
            self._succeeded(sealed, number, (time.monotonic() - started) * 1000)

    async def _refresh(self) -> Covers:
        """Look once more right before the build, so that it covers all that was acknowledged until now."""
        self._lookout.scan_again()
        return await self._lookout.look()

    async def _rebuild(self, covers: Covers, reason: str) -> GenerationRef:
        """Build a generation in a process of its own, which ends with it: LanceDB gives nothing back."""
        sealed: GenerationRef | None = None
        desk = self._desk
        try:
            async with trio.open_nursery() as nursery:
                seat = Seat(desk.house, self._worker, nursery)
                await seat.fill()
                nursery.start_soon(keep_below, seat, hard_limit(desk.limits.rss_bytes_max))
                sealed = await build(self._plan(covers, reason, seat))
                nursery.cancel_scope.cancel("the generation is sealed")
        except* WorkerDied as group:
            raise BuildFailed(f"the process that built it died: {_leaf(group).cause}") from group
        except* BulkheadError as group:
            raise _leaf(group) from group
        assert sealed is not None
        return sealed

    def _plan(self, covers: Covers, reason: str, seat: Seat) -> BuildPlan:
        identity, lender = self._succession.choose(reason)
        return BuildPlan(
            house=self._desk.house,
            work=work_of(seat, self._desk.limits, self._steps.report),
            step=self._steps.enter,
            limits=self._desk.limits,
            covers=covers,
            sources=self._desk.truth.sources,
            identity=identity,
            previous=self._desk.notice.serving,
            lender=lender,
            at_least=self._desk.notice.highest,
        )

    async def _publish(self, sealed: GenerationRef) -> None:
        """Publish a generation together with a delta of what came while it was built."""
        publisher, enter = self._publisher, self._steps.enter
        async with publisher.lock:
            view = await self._brought_up_to_date(sealed)
            await publisher.prepare(view, enter)
            comparison = await self._succession.compare(self._desk.house, view)
            self._endable = None  # what is complete is published, so that the one before it can go
            await publisher.publish(view, enter, base=sealed, previous=publisher.kept_behind(sealed))
        notice = self._desk.notice
        following = None if sealed.identity == notice.identity else notice.successor
        self._desk.post(comparison=comparison, successor=following)

    async def _brought_up_to_date(self, sealed: GenerationRef) -> GenerationRef:
        """Return the generation with a delta of what came while it was built; without one if that fails."""
        if await self._lookout.look() == sealed.covers:
            return sealed
        try:
            return await self._deltas.build(sealed)
        except (BulkheadError, TooMuchForDelta) as error:
            self._desk.house.log.warning("delta failed", extra={"error": str(error)})
            return sealed
        finally:
            self._desk.post(delta_building=None)

    # ------------------------------------------------------------ what came of it

    def _succeeded(self, sealed: GenerationRef, number: int, took_ms: float) -> None:
        self._wishes.owed = None
        self._succession.built(sealed)
        self._lookout.scan_again()  # the next scan reports what this build could not read
        self._desk.post(
            building=None, builds_published=number, attempts=0, last_error=None, disk_full_ns=0, build_ms=took_ms
        )
        self._desk.house.log.info("build published", extra={"generation": sealed.generation, "rows": sealed.rows})

    def _failed(self, reason: str, error: BulkheadError) -> None:
        self._succession.failed(reason)
        self._wishes.owed = reason
        # A full disk is not the fault of the input, so it is tried for ever, with longer and longer pauses.
        full_ns = time.monotonic_ns() if isinstance(error, DiskFull) else 0
        self._desk.post(building=None, last_error=error.message, disk_full_ns=full_ns)
        self._desk.house.log.warning("build failed", extra={"error": error.message})
        self._publisher.retire_again()  # its folder is to be deleted

    async def _make_room(self, reason: str) -> None:
        """Drop the build that a low disk ended, at once, and remember that it is wanted. Its process has ended."""
        if self._wishes.forced is None:
            self._wishes.forced = reason
        self._desk.house.log.warning("build ended", extra={"reason": "the disk is low"})
        attempts = max(0, self._desk.notice.attempts - 1)  # its input is not to blame
        self._desk.post(building=None, attempts=attempts, last_error="build ended: the disk is low")
        await self._deltas.abandon()
        with contextlib.suppress(BulkheadError):  # what is left is deleted in time
            await self._publisher.retire_at_once()


def _is_worth_compacting(serving: GenerationRef, base: GenerationRef) -> bool:
    """Say whether a new generation is cheap, or spares searches enough, to be made for the sake of it."""
    rows = sum(base.rows.values())
    return serving.delta is not None and (rows <= COMPACT_ROWS or serving.delta_rows * 100 >= rows * COMPACT_PERCENT)


def _leaf(group: BaseExceptionGroup[Error]) -> Error:
    """Return the innermost first error of a group."""
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first
