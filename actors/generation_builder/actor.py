"""generation_builder, the trio side: decides what is built and when, and drives the worker step by step.

These tasks share one notice board:
* `_serve_mail` answers commands;
* `_look_at_truth` finds out, on hints and by itself, how far the truth is ahead and whether the index still exists;
* `_delta_when_due` makes a delta over the generation that serves whenever the truth has moved, a second or two later;
* `_build_when_due` makes one generation after the other, never two at a time, in a process of its own: on command,
  when there is none or the embedding is another one, and when the delta has outgrown its share. Deltas over the old
  one go on meanwhile, and before it is published a delta brings the new one up to date;
* `_heed_disk` ends and forbids builds while the disk is low, and gives up the generations kept for a rollback;
* `_retire_in_time` deletes what nobody keeps or reads;
* `EmbedBehind` (embedding.py) fills in missing vectors, into the cache, so that the next generation has them.

Nothing waits for a build, and a build holds nothing that others need: the truth is paged in short reads, the
worker runs at the lowest priority, and publication is a pointer flip. When anything fails, the generation that
served goes on serving.
"""

import contextlib
import time
from typing import TypeVar

import msgspec
import trio

from actors.actor import Board, House, serve_tray
from actors.errors import BuildFailed, BulkheadError, DiskFull, GenerationSuspect, InvalidParams, NotFound
from actors.frames import Report
from actors.gaps import decode_gaps
from actors.generation_builder.building import BuildPlan, Step, TooMuchForDelta, Work, build, build_delta
from actors.generation_builder.embedding import EmbedBehind
from actors.generation_builder.seat import Seat, hard_limit, keep_below
from actors.generation_builder.succession import OUTGROWN, QUIET, Succession
from actors.mailbox import Envelope, deadline_after
from actors.messages import (
    AbandonBuild,
    CoreStatus,
    Covers,
    Done,
    EmbeddingIdentity,
    FlipGeneration,
    GenerationRef,
    GetIndexView,
    HoldBuild,
    IndexState,
    IndexView,
    ListSources,
    Message,
    PrepareGeneration,
    ProbeIndex,
    Progress,
    Rebuild,
    RebuildQueued,
    RecoverIndex,
    ReportSuspect,
    RetireGenerations,
    RollbackIndex,
    Row,
    ScanResult,
    ScanSources,
    ServeGeneration,
    SourceRoot,
    SourceRoots,
    Statistics,
    TranscriptStatus,
    TruthAdvanced,
    VerifyGeneration,
    VerifyIndex,
)
from actors.notices import BuilderNotice, DiskLevel, DiskNotice, SearchActivity
from actors.settings import EmbeddingSettings, GenerationBuilderSettings
from actors.worker import WorkerDied, WorkerSpec

Answer = TypeVar("Answer", bound=msgspec.Struct)
Error = TypeVar("Error", bound=BaseException)

LOOK_EVERY_S = 1.0
SHORT_S = 10.0
TRUTH_FIRST_S = 2.0
PREPARE_S = 120.0
BUILD_RETRY_S_MIN, BUILD_RETRY_S_MAX = 5.0, 300.0
ATTEMPTS_MAX = 3  # with the same input; then it waits for the truth to move or for a command
# A delta becomes part of a generation when nothing else is to be done, if that takes seconds (measured: 6 s for 20,000
# rows) or the delta is so large a part.
COMPACT_ROWS, COMPACT_PERCENT = 20_000, 1
DELTAS_WAITING_MAX = 30
DELTA_HARD_FACTOR = 4  # a delta that would be so many times its share is not made
LOW_DISK = "no builds: the disk is low"


class GenerationBuilder:
    """One incarnation of generation_builder."""

    def __init__(
        self,
        house: House,
        *,
        builder: WorkerSpec,
        rebuilder: WorkerSpec,
        embedder: WorkerSpec,
        limits: GenerationBuilderSettings,
        embedding: EmbeddingSettings,
        board: Board[BuilderNotice],
        searching: Board[SearchActivity],
        disk: Board[DiskNotice],
    ) -> None:
        self.house = house
        self.board = board
        self.limits = limits
        self._disk = disk
        self._seat: Seat
        self._builder_spec = builder
        self._rebuilder_spec = rebuilder
        self._succession = Succession(board, limits, embedding)
        self._embed = EmbedBehind(
            house,
            spec=embedder,
            limits=limits,
            embedding=embedding,
            board=board,
            searching=searching,
            wish=self._force,
            wish_delta=self._want_delta,
        )
        self._hints = trio.Event()
        self._wishes = trio.Event()
        self._delta_wishes = trio.Event()
        self._forced: str | None = None
        self._owed: str | None = None  # why a build was made that failed
        self._latest = Covers()
        self._sources: list[SourceRoot] = []
        self._scanned_at = 0.0
        self._built_at = 0.0
        self._moved_at = 0.0  # when the truth was last seen to have moved
        self._publishing = trio.Lock()  # held from the look that a view covers until it is published
        self._delta_wanted = False  # there are vectors that the delta does not have
        self._delta_number = 0  # of the last one
        self._delta_ended_at = 0.0
        self._delta_failures = 0
        self._deltas_waiting = 0  # made since the last time that old ones were deleted
        self._paused_at: Covers | None = None
        self._hold_stage: str | None = None
        self._released = trio.Event()
        self._endable: trio.CancelScope | None = None  # the build under way, until it is complete
        self._builds_made = 0  # by the worker that is in the seat
        self._retired: tuple[GenerationRef | None, ...] | None = None  # what was kept when nothing was left to delete

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Recover what is on disk, offer it to the searcher, then keep it up with the truth."""
        await self.house.wait_for_truth("transcript_appender", "core_writer", seconds=TRUTH_FIRST_S)
        async with trio.open_nursery() as nursery:
            self._seat = Seat(self.house, self._builder_spec, nursery)
            await self._seat.fill()
            nursery.start_soon(keep_below, self._seat, hard_limit(self.limits.rss_bytes_max))
            state = await self._work(RecoverIndex(), IndexState)
            self._delta_number = state.deltas_highest
            self._post(
                serving=state.current,
                base=state.base,
                previous=tuple(state.previous),
                highest=max(state.highest, self.board.notice.highest),
                suspects=tuple(state.suspects),
                building=None,
                delta_building=None,
                last_error=self.board.notice.last_error,
            )
            self.house.ready()
            nursery.start_soon(self._serve_mail)
            nursery.start_soon(self._heed_disk)
            nursery.start_soon(self._offer)
            nursery.start_soon(self._look_at_truth)
            nursery.start_soon(self._build_when_due)
            nursery.start_soon(self._delta_when_due)
            nursery.start_soon(self._retire_in_time)
            nursery.start_soon(self._embed.run)

    def _post(self, **changes: object) -> None:
        self.board.post(msgspec.structs.replace(self.board.notice, **changes))

    async def _work(self, message: Message, answer: type[Answer], *, seconds: float | None = None) -> Answer:
        """Make a call to the worker that looks after the folder and makes the deltas."""
        seconds = self.limits.step_deadline_ms / 1000 if seconds is None else seconds
        return await self._seat.call(message, answer, deadline_ns=deadline_after(seconds))

    def _on_report(self, report: Report) -> None:
        building = self.board.notice.building
        if building is not None:
            self._post(
                building=Progress(
                    stage=report.stage, done=report.done, total=report.total, generation=building.generation
                )
            )

    # ------------------------------------------------------------ mail

    async def _serve_mail(self) -> None:
        await serve_tray(self.house.mailbox, "", self._serve, at_once=4)

    async def _serve(self, envelope: Envelope) -> None:
        message = envelope.message
        answer: msgspec.Struct
        match message:
            case TruthAdvanced():
                self._hints.set()
                answer = Done()
            case Rebuild():
                answer = self._queue_rebuild(message)
            case VerifyIndex():
                answer = await self._verify(envelope.deadline_ns)
            case RollbackIndex():
                answer = await self._roll_back(message.generation)
            case ReportSuspect():
                answer = await self._look_into(message)
            case HoldBuild():
                answer = self._hold(message.stage)
            case _:
                raise TypeError(f"generation_builder does not take {type(message).__name__}")
        self.house.mailbox.finish(envelope, answer)

    def _queue_rebuild(self, message: Rebuild) -> RebuildQueued:
        """Two requests coalesce, but one that comes while a build runs is about what came after its start."""
        running = self.board.notice.building is not None
        self._post(declined=None)
        self._wish(message.reason)
        return RebuildQueued(build=self.board.notice.builds_started + 1, already_running=running)

    def _wish(self, reason: str) -> None:
        """Build as soon as possible, whatever failed before."""
        self._paused_at = None
        self._post(paused=False, attempts=0)
        self._force(reason)

    def _force(self, reason: str) -> None:
        self._forced = reason
        self._wishes.set()

    async def _verify(self, deadline_ns: int) -> Row:
        serving = self.board.notice.serving
        if serving is None:
            raise NotFound("no generation is published, so there is nothing to verify")
        message = VerifyGeneration(generation=serving.generation, delta=serving.delta)
        try:
            found = await self._seat.call(message, GenerationRef, deadline_ns=deadline_ns)
        except GenerationSuspect as error:
            await self._fall_back(error)
            raise
        return _row({"generation": found.generation, "delta": found.delta, "verified": True, "rows": found.rows})

    async def _roll_back(self, wanted: int | None) -> Row:
        notice = self.board.notice
        if not notice.previous:
            raise InvalidParams(
                "index.rollback: no earlier generation is kept",
                hint="one is kept after the second build (config: generation_builder.generations_kept), and none while "
                "the disk is low",
            )
        if notice.building is not None:
            raise BuildFailed("index.rollback: a build is under way; roll back once it is published or has failed")
        kept = [ref.generation for ref in notice.previous]
        if wanted is not None and wanted not in kept:
            raise InvalidParams(f"index.rollback: generation {wanted} is not kept", hint=f"kept are {kept}")
        place = 0 if wanted is None else kept.index(wanted)
        earlier = notice.previous[place]
        await self._work(VerifyGeneration(generation=earlier.generation), GenerationRef)
        await self._prepare(earlier, self._step)
        async with self._publishing:
            await self._publish(earlier, self._step, base=earlier, previous=notice.previous[place + 1 :])
        self._paused_at = self._latest
        self._post(paused=True, building=None, successor=None, declined=self._succession.declined_by(earlier))
        return _row({"generation": earlier.generation, "rolled_back_from": _number(notice.serving)})

    async def _look_into(self, message: ReportSuspect) -> Done:
        """Verify a generation that a searcher could not read, and fall back when it is damaged."""
        serving = self.board.notice.serving
        if serving is not None and serving.view == message.view:
            message_to = VerifyGeneration(generation=serving.generation, delta=serving.delta)
            try:
                await self._work(message_to, GenerationRef)
            except GenerationSuspect as error:
                await self._fall_back(error)
        return Done()

    def _hold(self, stage: str | None) -> Done:
        self._hold_stage = stage
        self._released.set()
        self._released = trio.Event()
        return Done()

    # ------------------------------------------------------------ looking

    async def _look_at_truth(self) -> None:
        """Learn how far the truth is, on hints and on a beat (a hint may be lost)."""
        while True:
            try:
                await self._look()
            except GenerationSuspect as error:
                await self._fall_back(error)
            except BulkheadError as error:
                # An actor that is asked is away for the moment; the next beat looks again.
                self.house.log.debug("truth not looked at", extra={"error": error.message})
            if self._due() is not None:
                self._wishes.set()
            if self._delta_due():
                self._delta_wishes.set()
            self._hints = trio.Event()
            with trio.move_on_after(LOOK_EVERY_S):
                await self._hints.wait()
                await trio.sleep(self.limits.settle_ms / 1000)

    async def _look(self) -> None:
        deadline_ns = deadline_after(SHORT_S)
        house = self.house
        transcript = await house.ask("transcript_appender", TranscriptStatus(), Statistics, deadline_ns=deadline_ns)
        core = await house.ask("core_writer", CoreStatus(), Statistics, deadline_ns=deadline_ns)
        known = await house.ask("core_writer", ListSources(tenant=None), SourceRoots, deadline_ns=deadline_ns)
        event_seq, core_seq = int(transcript.values["seq"] or 0), int(core.values["core_seq"] or 0)
        digest = self._latest.sources_digest
        if known.sources != self._sources or time.monotonic() - self._scanned_at > self.limits.scan_every_ms / 1000:
            digest = await self._scan(known.sources)
        latest = Covers(event_seq=event_seq, core_seq=core_seq, sources_digest=digest)
        if latest != self._latest:
            self._latest, self._moved_at = latest, time.monotonic()
        gaps = decode_gaps(str(transcript.values.get("gaps") or ""))
        self._post(event_seq=event_seq, core_seq=core_seq, event_gaps=gaps)
        serving = self.board.notice.serving
        if serving is not None and not self._publishing.locked():
            probe = ProbeIndex(generation=serving.generation, delta=serving.delta)
            try:
                await self._work(probe, Done, seconds=SHORT_S)
            except GenerationSuspect:
                if serving == self.board.notice.serving:  # else it was replaced while it was looked at
                    raise

    async def _scan(self, sources: list[SourceRoot]) -> str:
        result = await self._work(ScanSources(sources=sources), ScanResult)
        self._sources, self._scanned_at = sources, time.monotonic()
        self._post(files=result.files, skipped=tuple(result.skipped), held=tuple(result.held))
        return result.digest

    # ------------------------------------------------------------ building

    def _due(self) -> str | None:
        """Return why a generation is due now, or None."""
        if self.board.notice.no_room:
            return None
        if self._forced is not None:
            return self._forced
        serving = self.board.notice.serving
        empty = self._latest == Covers(sources_digest=self._latest.sources_digest) and not self.board.notice.files
        if self._paused_at == self._latest or not self._latest.sources_digest:
            return None
        if serving is None:
            reason = None if empty else "no generation"
        else:
            reason = self._succession.due() or self._owed or self._outgrown(serving)
        if reason is None or time.monotonic() < self._next_build_at():
            return None
        return reason

    def _outgrown(self, serving: GenerationRef) -> str | None:
        """Return why the delta should become part of a generation, None while it may go on."""
        base = self.board.notice.base
        if base is None:
            return None
        if self._rows_since(base) > self._delta_share(base):
            return OUTGROWN
        quiet_ms = (time.monotonic() - self._moved_at) * 1000
        if quiet_ms > self.limits.compact_after_ms and _is_worth_compacting(serving, base) and not self._delta_due():
            return QUIET
        return None

    def _rows_since(self, base: GenerationRef) -> int:
        """Return about how many rows a delta over the generation has, or would have now."""
        serving = self.board.notice.serving
        held = 0 if serving is None or serving.generation != base.generation else serving.delta_rows
        moved = self._latest.event_seq - base.covers.event_seq + self._latest.core_seq - base.covers.core_seq
        return max(held, moved)

    def _delta_share(self, base: GenerationRef) -> float:
        return max(self.limits.delta_rows_max, sum(base.rows.values()) * self.limits.delta_percent_max / 100)

    def _next_build_at(self) -> float:
        """Return when the next build may start by itself: the share of time spent building is bounded."""
        notice = self.board.notice
        if notice.attempts and notice.attempted == self._latest:
            if notice.attempts >= ATTEMPTS_MAX and not notice.disk_full_ns:
                return float("inf")
            return self._built_at + min(BUILD_RETRY_S_MAX, BUILD_RETRY_S_MIN * 2.0 ** (notice.attempts - 1))
        pause_s: float = notice.build_ms / 1000 * (100 / self.limits.duty_percent_max - 1)
        return self._built_at + max(self.limits.build_every_ms / 1000, pause_s)

    async def _build_when_due(self) -> None:
        while True:
            reason = self._due()
            if reason is None:
                self._wishes = trio.Event()
                with trio.move_on_after(LOOK_EVERY_S):
                    await self._wishes.wait()
                continue
            self._forced = None
            with trio.CancelScope() as scope:
                self._endable = scope
                await self._build_once(reason)
            self._endable = None
            self._built_at = time.monotonic()
            if scope.cancelled_caught:
                await self._make_room(reason)

    async def _build_once(self, reason: str) -> None:
        started = time.monotonic()
        self._paused_at = None
        number = self.board.notice.builds_started + 1
        self._post(building=Progress(stage="begin"), builds_started=number, paused=False)
        self.house.log.info("build started", extra={"reason": reason, "build": number})
        try:
            covers = await self._refresh()
            attempts = self.board.notice.attempts if self.board.notice.attempted == covers else 0
            self._post(attempted=covers, attempts=attempts + 1)
            sealed = await self._rebuild(covers, reason)
            if self._succession.may_publish(sealed, reason):
                await self._publish_generation(sealed)
            else:
                self._post(successor=sealed)
        except BulkheadError as error:
            self._succession.failed(reason)
            self._owed = reason
            self._give_up(error)
        else:
            self._owed = None
            self._succession.built(sealed)
            self._scanned_at = 0.0  # the next scan reports what this build could not read
            self._post(
                building=None,
                builds_published=number,
                attempts=0,
                last_error=None,
                disk_full_ns=0,
                build_ms=(time.monotonic() - started) * 1000,
            )
            self.house.log.info("build published", extra={"generation": sealed.generation, "rows": sealed.rows})

    async def _refresh(self) -> Covers:
        """Look once more right before the build, so that it covers all that was acknowledged until now."""
        self._scanned_at = 0.0
        await self._look()
        return self._latest

    async def _publish_generation(self, sealed: GenerationRef) -> None:
        """Publish a generation together with a delta of what came while it was built."""
        async with self._publishing:
            view = await self._brought_up_to_date(sealed)
            await self._prepare(view, self._step)
            comparison = await self._succession.compare(self.house, view)
            self._endable = None  # what is complete is published, so that the one before it can go
            await self._publish(view, self._step, base=sealed, previous=self._kept_behind(sealed))
        following = None if sealed.identity == self.board.notice.identity else self.board.notice.successor
        self._post(comparison=comparison, successor=following)

    async def _rebuild(self, covers: Covers, reason: str) -> GenerationRef:
        """Build a generation in a process of its own, which ends with it: LanceDB gives nothing back."""
        sealed: GenerationRef | None = None
        identity, lender = self._succession.choose(reason)
        try:
            async with trio.open_nursery() as nursery:
                seat = Seat(self.house, self._rebuilder_spec, nursery)
                await seat.fill()
                nursery.start_soon(keep_below, seat, hard_limit(self.limits.rss_bytes_max))
                plan = self._plan(covers, self._work_of(seat), self._step, identity=identity, lender=lender)
                sealed = await build(plan)
                nursery.cancel_scope.cancel("the generation is sealed")
        except* WorkerDied as group:
            raise BuildFailed(f"the process that built it died: {_leaf(group).cause}") from group
        except* BulkheadError as group:
            raise _leaf(group) from group
        assert sealed is not None
        return sealed

    def _work_of(self, seat: Seat) -> Work:
        """Return how to make calls to a worker whose progress goes to the board."""

        async def work(message: Message, answer: type[Answer], *, seconds: float | None = None) -> Answer:
            seconds = self.limits.step_deadline_ms / 1000 if seconds is None else seconds
            return await seat.call(message, answer, deadline_ns=deadline_after(seconds), on_report=self._on_report)

        return work

    async def _brought_up_to_date(self, sealed: GenerationRef) -> GenerationRef:
        """Return the generation with a delta of what came while it was built; without one if that fails."""
        await self._look()
        if self._latest == sealed.covers:
            return sealed
        try:
            return await self._build_delta(sealed)
        except (BulkheadError, TooMuchForDelta) as error:
            self.house.log.warning("delta failed", extra={"error": str(error)})
            return sealed
        finally:
            self._post(delta_building=None)

    def _plan(
        self,
        covers: Covers,
        work: Work,
        step: Step,
        *,
        identity: EmbeddingIdentity | None,
        lender: GenerationRef | None = None,
    ) -> BuildPlan:
        return BuildPlan(
            house=self.house,
            work=work,
            step=step,
            limits=self.limits,
            covers=covers,
            sources=self._sources,
            identity=identity,
            previous=self.board.notice.serving,
            lender=lender,
            at_least=self.board.notice.highest,
        )

    async def _step(self, stage: str, generation: int, done: int, total: int) -> None:
        """Note where the build is; under chaos it may be held here."""
        self._post(
            building=Progress(stage=stage, done=done, total=total, generation=generation),
            highest=max(self.board.notice.highest, generation),
        )
        while self._hold_stage == stage:
            await self._released.wait()

    # ------------------------------------------------------------ deltas

    def _want_delta(self) -> None:
        """Make a delta as soon as one may be made: there are vectors that it does not have."""
        self._delta_wanted = True
        self._delta_wishes.set()

    def _delta_due(self) -> bool:
        """Say whether what serves lacks something that a delta can give it."""
        notice = self.board.notice
        if notice.serving is None or notice.base is None or notice.no_room or not self._latest.sources_digest:
            return False
        if self._deltas_waiting >= DELTAS_WAITING_MAX:
            return False  # the searcher does not say which of them it reads, so none can be deleted
        if self._rows_since(notice.base) > DELTA_HARD_FACTOR * self._delta_share(notice.base):
            return False  # a generation is on its way, and the words of what is new are found without either
        return self._delta_wanted or notice.serving.covers != self._latest

    def _next_delta_at(self) -> float:
        """Return when the next delta may start: the share of time spent on them is bounded, failures wait longer."""
        pause_s = max(self.limits.delta_every_ms, self.board.notice.delta_ms) / 1000
        return self._delta_ended_at + min(BUILD_RETRY_S_MAX, pause_s * 2.0 ** min(self._delta_failures, 16))

    async def _delta_when_due(self) -> None:
        while True:
            wait_s = self._next_delta_at() - time.monotonic()
            if self._delta_due() and wait_s <= 0:
                await self._delta_once()
                await self._replace_worker_in_time()
                continue
            self._delta_wishes = trio.Event()
            with trio.move_on_after(LOOK_EVERY_S if wait_s <= 0 else min(wait_s, LOOK_EVERY_S)):
                await self._delta_wishes.wait()

    async def _delta_once(self) -> None:
        began = time.monotonic()
        try:
            async with self._publishing:
                base = self.board.notice.base
                if base is None or not self._delta_due():
                    return
                self._delta_wanted = False
                view = await self._build_delta(base)
                await self._prepare(view, self._delta_step)
                await self._publish(view, self._delta_step, base=base, previous=self.board.notice.previous)
        except TooMuchForDelta as error:
            self._force(f"too much for a delta: {error}")
        except GenerationSuspect as error:
            await self._fall_back(error)
        except BulkheadError as error:
            self._delta_failures += 1
            self._post(delta_error=error.message)
            self.house.log.warning("delta failed", extra={"error": error.message})
        else:
            self._delta_failures = 0
            self._deltas_waiting += 1
            notice = self.board.notice
            self._post(
                delta_error=None,
                deltas_published=notice.deltas_published + 1,
                delta_ms=(time.monotonic() - began) * 1000,
            )
        finally:
            self._delta_ended_at = time.monotonic()
            self._post(delta_building=None)

    async def _build_delta(self, base: GenerationRef) -> GenerationRef:
        self._delta_number += 1
        plan = self._plan(self._latest, self._work, self._delta_step, identity=base.identity)
        try:
            return await build_delta(plan, base=base, delta=self._delta_number, changes_max=self.limits.delta_rows_max)
        except (BulkheadError, TooMuchForDelta):
            await self._abandon()
            raise

    async def _abandon(self) -> None:
        """Drop what is left of a delta; one that is cancelled with the actor goes with its worker."""
        with contextlib.suppress(BulkheadError):
            await self._work(AbandonBuild(), Done, seconds=SHORT_S)

    async def _delta_step(self, stage: str, generation: int, done: int, total: int) -> None:
        """Note where the delta is; under chaos it may be held here."""
        stage = f"delta {stage}"
        self._post(delta_building=Progress(stage=stage, done=done, total=total, generation=generation))
        while self._hold_stage == stage:
            await self._released.wait()

    def _give_up(self, error: BulkheadError) -> None:
        # A full disk is not the fault of the input, so it is tried for ever, with longer and longer pauses.
        full_ns = time.monotonic_ns() if isinstance(error, DiskFull) else 0
        self._post(building=None, last_error=error.message, disk_full_ns=full_ns)
        self.house.log.warning("build failed", extra={"error": error.message})
        self._retired = None  # its folder is to be deleted

    async def _replace_worker_in_time(self) -> None:
        """Replace the worker between two deltas when it has grown large or old; LanceDB gives nothing back."""
        self._builds_made += 1
        size = self._seat.rss_bytes
        if size > self.limits.rss_bytes_max:
            cause = f"{size} bytes resident, limit is {self.limits.rss_bytes_max} (generation_builder.rss_bytes_max)"
        elif self._builds_made >= self.limits.builds_per_worker_max:
            cause = f"{self._builds_made} builds (generation_builder.builds_per_worker_max)"
        else:
            return
        async with self._publishing:
            await self._seat.replace(cause, pending_s=self.limits.step_deadline_ms / 1000)
        self._builds_made = 0
        self._post(workers_replaced=self.board.notice.workers_replaced + 1)

    # ------------------------------------------------------------ a low disk

    async def _heed_disk(self) -> None:
        """Give way while the disk is low: derived data can be made again, the truth cannot."""
        told = False
        while True:
            low = self._disk.notice.level is not DiskLevel.OK
            if low is not self.board.notice.no_room:
                self._post(no_room=low)
                self._wishes.set()
            if low is not told:
                told = low
                self.house.degraded(LOW_DISK if low else None)
            if low:
                self._give_way()
            await self._disk.wait_changed()

    def _give_way(self) -> None:
        if self._endable is not None:
            self._endable.cancel("the disk is low")
        if self.board.notice.previous or self.board.notice.successor is not None:
            self._post(previous=(), successor=None)

    async def _make_room(self, reason: str) -> None:
        """Drop the build that a low disk ended, at once, and remember that it is wanted. Its process has ended."""
        if self._forced is None:
            self._forced = reason
        self.house.log.warning("build ended", extra={"reason": "the disk is low"})
        attempts = max(0, self.board.notice.attempts - 1)  # its input is not to blame
        self._post(building=None, attempts=attempts, last_error="build ended: the disk is low")
        await self._abandon()
        with contextlib.suppress(BulkheadError):  # what is left is deleted in time
            await self._retire(self._wanted())
        self._retired = None  # it may have been sealed already

    def _wanted(self) -> tuple[GenerationRef | None, ...]:
        """Return what must stay on the disk."""
        notice = self.board.notice
        return (notice.serving, notice.base, notice.successor, *notice.previous)

    # ------------------------------------------------------------ publishing

    async def _prepare(self, sealed: GenerationRef, step: Step) -> None:
        """Have the spare searcher open and probe it; a searcher that is away does not hold up publication."""
        await step("prepare", sealed.generation, 0, 0)
        message = PrepareGeneration(generation=sealed)
        try:
            await self.house.ask("searcher", message, Done, deadline_ns=deadline_after(PREPARE_S))
        except GenerationSuspect:
            raise
        except BulkheadError as error:
            self.house.log.warning("searcher did not prepare", extra={"error": error.message})

    async def _publish(
        self, view: GenerationRef, step: Step, *, base: GenerationRef, previous: tuple[GenerationRef, ...]
    ) -> None:
        await step("flip", view.generation, 0, 0)
        began = time.monotonic()
        await self._work(FlipGeneration(generation=view.generation, delta=view.delta), Done, seconds=SHORT_S)
        self._post(serving=view, base=base, previous=previous)
        await self._offer()
        self._post(publish_ms=(time.monotonic() - began) * 1000)

    def _kept_behind(self, sealed: GenerationRef) -> tuple[GenerationRef, ...]:
        if self.board.notice.no_room:
            return ()
        return self._succession.kept_behind(sealed, self.limits.generations_kept - 1)

    async def _offer(self) -> None:
        """Tell the searcher what to serve. It also asks the board itself, so a lost message costs a moment only."""
        message = ServeGeneration(generation=self.board.notice.serving)
        try:
            await self.house.ask("searcher", message, Done, deadline_ns=deadline_after(SHORT_S))
        except BulkheadError as error:
            self.house.log.info("searcher not told", extra={"error": error.message})

    async def _fall_back(self, error: BulkheadError) -> None:
        """The serving generation is damaged or gone: serve the best verified one, and build anew."""
        self.house.log.error("generation suspect", extra={"error": error.message})
        state = await self._work(RecoverIndex(building=self._number_building()), IndexState)
        self._post(
            serving=state.current,
            base=state.base,
            previous=tuple(state.previous),
            suspects=tuple(state.suspects),
            last_error=error.message,
        )
        await self._offer()
        self._wish("generation damaged")

    async def _retire_in_time(self) -> None:
        """Delete generations that are neither kept nor read by anybody, after a grace."""
        grace_s = max(LOOK_EVERY_S, self.limits.retire_grace_ms / 1000)
        while True:
            await trio.sleep(grace_s)
            wanted = self._wanted()
            if wanted == self._retired:
                continue
            try:
                if await self._retire(wanted):
                    self._retired = wanted
            except BulkheadError as error:
                self.house.log.info("retirement put off", extra={"error": error.message})

    async def _retire(self, wanted: tuple[GenerationRef | None, ...]) -> bool:
        """Delete what is not wanted; False when somebody still reads an unwanted one.

        Under the lock, so that nothing is deleted between its seal and its publication.
        """
        async with self._publishing:
            return await self._retire_now(wanted)

    async def _retire_now(self, wanted: tuple[GenerationRef | None, ...]) -> bool:
        view = await self.house.ask("searcher", GetIndexView(), IndexView, deadline_ns=deadline_after(SHORT_S))
        kept = {ref.view for ref in wanted if ref is not None}
        read = {*view.leased, *(() if view.serving is None else (view.serving,))}
        retire = RetireGenerations(keep=sorted(kept | read), building=self._number_building())
        await self._work(retire, Done)
        self._deltas_waiting = 0
        return read <= kept

    def _number_building(self) -> int | None:
        building = self.board.notice.building
        return building.generation if building is not None and building.generation else None


def _is_worth_compacting(serving: GenerationRef, base: GenerationRef) -> bool:
    """Say whether a new generation is cheap, or spares searches enough, to be made for the sake of it."""
    rows = sum(base.rows.values())
    return serving.delta is not None and (rows <= COMPACT_ROWS or serving.delta_rows * 100 >= rows * COMPACT_PERCENT)


def _leaf(group: BaseExceptionGroup[Error]) -> Error:
    """Return the innermost first error of a group."""
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first


def _number(ref: GenerationRef | None) -> int | None:
    return None if ref is None else ref.generation


def _row(members: dict[str, object]) -> Row:
    return Row(row=msgspec.json.encode(members))
