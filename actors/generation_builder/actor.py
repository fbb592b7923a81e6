"""generation_builder, the trio side: wires the tasks of one incarnation together, and answers commands.

What is built, when, and what of it is served is decided in files of their own, by tasks that share one desk (desk.py):
* `Lookout` (looking.py) finds out, on hints and by itself, how far the truth is ahead and whether the index still
  exists; its `SourceWatch` (watching.py) learns of changes under the source roots, and says which are to be walked;
* `Deltas` (deltas.py) makes a delta over the generation that serves whenever the truth has moved, a second or two
  later;
* `Rebuilds` (rebuilding.py, full_build.py) makes full generations, in a process of their own;
* `Publisher` (publishing.py) changes what is served and deletes what nobody keeps or reads;
* `Verifier` (verifying.py) holds what is served against what was sealed, and `Scrubber` (scrubbing.py) does so all
  the time;
* `Archiver` (archiving.py) turns segments of the transcript into archives, on command or by age;
* `EmbedBehind` (embedding.py) fills in missing vectors, into the cache, so that the next generation has them;
* `_heed_disk`, here, ends and forbids builds while the disk is low, and gives up the generations kept for a rollback.

Nothing waits for a build, and a build holds nothing that others need: the truth is paged in short reads, the
worker runs at the lowest priority, and publication is a pointer flip. When anything fails, the generation that
served goes on serving.
"""

from functools import partial

import msgspec
import trio

from actors.actor import Board, House, serve_tray
from actors.envelope import Envelope
from actors.errors import InvalidParams
from actors.generation_builder.archiving import Archiver
from actors.generation_builder.counting import Counting
from actors.generation_builder.deltas import Deltas
from actors.generation_builder.desk import Desk
from actors.generation_builder.embedding import EmbedBehind
from actors.generation_builder.looking import Lookout
from actors.generation_builder.pace import STAGES
from actors.generation_builder.publishing import Publisher, behind
from actors.generation_builder.purging import Purging
from actors.generation_builder.rebuilding import ENDS_KEPT, Rebuilds
from actors.generation_builder.scrubbing import Scrubber
from actors.generation_builder.seat import Seat, hard_limit, keep_below
from actors.generation_builder.succession import Succession
from actors.generation_builder.verifying import Verifier
from actors.generation_builder.wishes import Wishes
from actors.mailbox import DEFAULT_TRAY
from actors.messages.archives import ArchiveEvents, VerifyArchive
from actors.messages.base import Done, Message
from actors.messages.builder_work import IndexState, ModelChange, RecallModelChange, RecoverIndex
from actors.messages.generation_builder import (
    CancelBuild,
    CountItems,
    GetItemState,
    HoldBuild,
    Rebuild,
    RebuildQueued,
    ReportSuspect,
    RollbackIndex,
    TruthAdvanced,
    VerifyIndex,
)
from actors.messages.index import BuildEnd
from actors.notices import BuilderNotice, DiskLevel, DiskNotice, ForgetNotice, SearchActivity
from actors.settings import EmbeddingSettings, GenerationBuilderSettings
from actors.worker import WorkerSpec

TRUTH_FIRST_S = 2.0
LOW_DISK = "no builds: the disk is low"
COUNT_TRAY = "count"  # of what is only asked, and may take a moment: commands do not wait behind it


def tray_of(message: Message) -> str:
    """Sort questions about items from commands."""
    return COUNT_TRAY if isinstance(message, CountItems | GetItemState) else DEFAULT_TRAY


class GenerationBuilder:
    """One incarnation of generation_builder."""

    def __init__(
        self,
        house: House,
        *,
        builder: WorkerSpec,
        rebuilder: WorkerSpec,
        embedder: WorkerSpec,
        watcher: WorkerSpec,
        limits: GenerationBuilderSettings,
        embedding: EmbeddingSettings,
        board: Board[BuilderNotice],
        searching: Board[SearchActivity],
        disk: Board[DiskNotice],
        forgetting: Board[ForgetNotice],
    ) -> None:
        self._forgetting = forgetting
        self.house = house
        self.board = board
        self.limits = limits
        self._builder = builder
        self._rebuilder = rebuilder
        self._embedder = embedder
        self._watcher = watcher
        self._embedding = embedding
        self._searching = searching
        self._disk = disk

    async def run(self) -> None:
        """Recover what is on disk, offer it to the searcher, then keep it up with the truth."""
        await self.house.wait_for_truth("transcript_appender", "core_writer", seconds=TRUTH_FIRST_S)
        async with trio.open_nursery() as nursery:
            seat = Seat(self.house, self._builder, nursery)
            await seat.fill()
            nursery.start_soon(keep_below, seat, hard_limit(self.limits.rss_bytes_max))
            desk = Desk(self.house, self.board, self.limits, seat)
            succession = Succession(self.board, self.limits, self._embedding)
            owed = self._settle_died(desk)
            state = await self._recover(desk, succession)
            self.house.ready()
            self._start(desk, nursery, succession, deltas_highest=state.deltas_highest, owed=owed)

    def _settle_died(self, desk: Desk) -> str | None:
        """Note that a build died with the incarnation before; return why it was made, for it is made again."""
        died = desk.notice.building
        if died is None or not died.build:
            return None
        if all(end.build != died.build for end in desk.notice.builds_ended):
            end = BuildEnd(build=died.build, state="failed", error="the builder died meanwhile")
            desk.post(builds_ended=(*desk.notice.builds_ended, end)[-ENDS_KEPT:])
        return died.reason

    async def _recover(self, desk: Desk, succession: Succession) -> IndexState:
        state = await desk.work(RecoverIndex(), IndexState)
        change = succession.recalled(await desk.work(RecallModelChange(), ModelChange), state.current)
        desk.post(
            successor=change.successor,
            declined=change.declined,
            comparison=change.comparison,
            serving=state.current,
            base=state.base,
            previous=behind(state, change.successor),
            highest=max(state.highest, desk.notice.highest),
            suspects=tuple(state.suspects),
            building=None,
            delta_building=None,
            last_error=desk.notice.last_error,
        )
        return state

    def _start(
        self, desk: Desk, nursery: trio.Nursery, succession: Succession, *, deltas_highest: int, owed: str | None
    ) -> None:
        """Wire the tasks together and let them run."""
        wishes = Wishes(desk, owed=owed)
        publisher = Publisher(desk, wishes, succession)
        embed = EmbedBehind(
            self.house,
            spec=self._embedder,
            limits=self.limits,
            embedding=self._embedding,
            board=self.board,
            searching=self._searching,
            wish=wishes.force,
            wish_delta=wishes.want_delta,
        )
        lookout = Lookout(desk, wishes, publisher, watcher=self._watcher, moved=embed.hint)
        deltas = Deltas(desk, wishes, publisher, lookout, highest=deltas_highest)
        rebuilds = Rebuilds(
            desk,
            wishes,
            publisher=publisher,
            lookout=lookout,
            deltas=deltas,
            succession=succession,
            worker=self._rebuilder,
        )
        archiver = Archiver(desk, wishes)
        verifier, scrubber = Verifier(desk, publisher), Scrubber(desk, publisher, self._searching)
        commands = Commands(
            desk,
            wishes,
            publisher=publisher,
            lookout=lookout,
            rebuilds=rebuilds,
            verifier=verifier,
            embed=embed,
            archiver=archiver,
            counting=Counting(
                self.house, self.board, work=desk.work, sources=lambda: desk.truth.sources, refused=embed.refused
            ),
        )
        nursery.start_soon(self._heed_disk, desk, wishes, publisher, rebuilds)
        nursery.start_soon(publisher.offer)
        nursery.start_soon(Purging(desk, wishes, publisher, self._forgetting).run)
        tasks = (
            commands.run,
            lookout.run,
            lookout.watch.run,
            deltas.run,
            rebuilds.run,
            embed.run,
            scrubber.run,
            archiver.run,
        )
        for task in tasks:
            nursery.start_soon(task)
        nursery.start_soon(publisher.retire_in_time)

    async def _heed_disk(self, desk: Desk, wishes: Wishes, publisher: Publisher, rebuilds: Rebuilds) -> None:
        """Give way while the disk is low: derived data can be made again, the truth cannot."""
        told = False
        while True:
            low = self._disk.notice.level is not DiskLevel.OK
            if low is not desk.notice.no_room:
                desk.post(no_room=low)
                wishes.wake()
            if low is not told:
                told = low
                self.house.degraded(LOW_DISK if low else None)
            if low:
                rebuilds.end_for_disk()
                publisher.give_up_earlier()
            await self._disk.wait_changed()


class Commands:
    """Answers the mail of one incarnation."""

    def __init__(
        self,
        desk: Desk,
        wishes: Wishes,
        *,
        publisher: Publisher,
        lookout: Lookout,
        rebuilds: Rebuilds,
        verifier: Verifier,
        embed: EmbedBehind,
        archiver: Archiver,
        counting: Counting,
    ) -> None:
        self._desk = desk
        self._wishes = wishes
        self._publisher = publisher
        self._lookout = lookout
        self._rebuilds = rebuilds
        self._verifier = verifier
        self._embed = embed
        self._archiver = archiver
        self._counting = counting

    async def run(self) -> None:
        """Answer for ever."""
        async with trio.open_nursery() as nursery:
            for tray in (DEFAULT_TRAY, COUNT_TRAY):
                nursery.start_soon(partial(serve_tray, self._desk.house.mailbox, tray, self._serve, at_once=4))

    async def _serve(self, envelope: Envelope) -> None:
        self._desk.house.mailbox.finish(envelope, await self._answer(envelope))

    async def _answer(self, envelope: Envelope) -> msgspec.Struct:
        message = envelope.message
        match message:
            case TruthAdvanced():
                self._lookout.hint()
                self._embed.hint()
                return Done()
            case Rebuild():
                return self._queue_rebuild(message)
            case CancelBuild():
                return await self._rebuilds.cancel(message.build)
            case VerifyIndex():
                return await self._verifier.verify(envelope.deadline_ns)
            case RollbackIndex():
                return await self._publisher.roll_back(message.generation, self._rebuilds.make_way)
            case ReportSuspect():
                return await self._verifier.look_into(message)
            case CountItems():
                return await self._counting.count()
            case GetItemState():
                return await self._counting.find(message)
            case HoldBuild():
                return self._hold(message.stage)
            case ArchiveEvents():
                return await self._archiver.queue(message)
            case VerifyArchive():
                return await self._desk.work(message, Done)
            case _:
                raise TypeError(f"generation_builder does not take {type(message).__name__}")

    def _hold(self, stage: str | None) -> Done:
        known = (*STAGES, *(f"delta {each}" for each in STAGES))
        if stage is not None and stage not in known:
            raise InvalidParams(
                f"debug.hold_build: no build has a stage {stage!r}", hint=f"stages are {', '.join(known)}"
            )
        self._desk.hold.set(stage)
        return Done()

    def _queue_rebuild(self, message: Rebuild) -> RebuildQueued:
        """Two requests coalesce, but one that comes while a build runs is about what came after its start."""
        notice = self._desk.notice
        running = notice.building is not None
        self._desk.post(declined=None)
        self._wishes.wish(message.reason)
        return RebuildQueued(build=notice.builds_started + 1, already_running=running)
