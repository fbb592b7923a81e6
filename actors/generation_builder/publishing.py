"""What is served, and what is kept behind it: publish, roll back, fall back, retire.

Publication is the flip of a pointer, after the spare searcher has opened what it will point at. `lock` is held from the
look that a view covers until it is published, and while anything is deleted: so nothing is deleted between its seal and
its publication, and of two views the later one is published last. Nobody else waits for it: searches go on, and the
truth knows nothing of it. A rollback waits for no delta either: the one under way gives way to it.
"""

import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator

import msgspec
import trio

from actors.errors import BulkheadError, GenerationSuspect, InvalidParams
from actors.generation_builder.building import Step
from actors.generation_builder.desk import LOOK_EVERY_S, SHORT_S, Desk
from actors.generation_builder.steps import Steps
from actors.generation_builder.succession import Succession
from actors.generation_builder.wishes import Wishes
from actors.mailbox import deadline_after
from actors.messages.base import Done, Row
from actors.messages.builder_work import (
    FlipGeneration,
    IndexState,
    KeepModelChange,
    ModelChange,
    RecoverIndex,
    RetireGenerations,
    VerifyGeneration,
)
from actors.messages.index import GenerationRef
from actors.messages.searcher import GetIndexView, IndexView, PrepareGeneration, ServeGeneration

PREPARE_S = 120.0
ROLLBACK = "an earlier generation is to serve"


class Publisher:
    """Changes what is served, one change at a time."""

    def __init__(self, desk: Desk, wishes: Wishes, succession: Succession) -> None:
        self._desk = desk
        self._wishes = wishes
        self._succession = succession
        self.lock = trio.Lock()
        self.deltas_waiting = 0  # made since the last time that old ones were deleted
        self._retired: tuple[GenerationRef | None, ...] | None = None  # what was kept when nothing was left to delete
        self._pinned: list[GenerationRef] = []
        self._rollbacks = 0  # under way
        self._unfinished: trio.CancelScope | None = None  # what gives way to them

    @contextlib.contextmanager
    def pinned(self, view: GenerationRef) -> Iterator[None]:
        """Keep the files of a view for as long as somebody looks at them, whatever is published meanwhile."""
        self._pinned.append(view)
        try:
            yield
        finally:
            self._pinned.remove(view)
            self.retire_again()

    @property
    def rolling_back(self) -> bool:
        """Say whether a rollback is under way, during which nothing is begun that would have to wait for it."""
        return self._rollbacks > 0

    @contextlib.contextmanager
    def giving_way(self) -> Iterator[trio.CancelScope]:
        """Do what a rollback may end in here; the scope says whether one did. The lock must be held."""
        with trio.CancelScope() as scope:
            self._unfinished = scope
            if self.rolling_back:
                scope.cancel(ROLLBACK)
            try:
                yield scope
            finally:
                self._unfinished = None

    # ------------------------------------------------------------ forward

    async def prepare(self, sealed: GenerationRef, step: Step) -> None:
        """Have the spare searcher open and probe it; a searcher that is away does not hold up publication."""
        await step("prepare", sealed.generation, 0, 0)
        await self._ask_to_open(PrepareGeneration(generation=sealed))

    async def _ask_to_open(self, message: PrepareGeneration) -> bool:
        """Say whether a searcher was there to do it. Raises GenerationSuspect."""
        house = self._desk.house
        try:
            await house.ask("searcher", message, Done, deadline_ns=deadline_after(PREPARE_S))
        except GenerationSuspect:
            raise
        except BulkheadError as error:
            house.log.warning("searcher did not prepare", extra={"error": error.message})
            return False
        return True

    async def publish(
        self, view: GenerationRef, step: Step, *, base: GenerationRef, previous: tuple[GenerationRef, ...]
    ) -> None:
        """Point CURRENT at a view and tell the searcher. The lock must be held."""
        await step("flip", view.generation, 0, 0)
        began = time.monotonic()
        message = FlipGeneration(generation=view.generation, delta=view.delta)
        await self._desk.work(message, Done, seconds=SHORT_S)
        self._desk.post(serving=view, base=base, previous=previous)
        await self.offer()
        self._desk.post(publish_ms=(time.monotonic() - began) * 1000)

    def kept_behind(self, sealed: GenerationRef) -> tuple[GenerationRef, ...]:
        """Return what is kept for a rollback once `sealed` serves."""
        if self._desk.notice.no_room:
            return ()
        return self._succession.kept_behind(sealed, self._desk.limits.generations_kept - 1)

    async def offer(self) -> None:
        """Tell the searcher what to serve. It also asks the board itself, so a lost message costs a moment only."""
        house = self._desk.house
        message = ServeGeneration(generation=self._desk.notice.serving)
        try:
            await house.ask("searcher", message, Done, deadline_ns=deadline_after(SHORT_S))
        except BulkheadError as error:
            house.log.info("searcher not told", extra={"error": error.message})

    async def keep_model_change(self) -> None:
        """Have what is known of a change of the model survive a restart; where it cannot, the next life starts over."""
        notice = self._desk.notice
        change = ModelChange(successor=notice.successor, declined=notice.declined, comparison=notice.comparison)
        with contextlib.suppress(BulkheadError):
            await self._desk.work(KeepModelChange(change=change), Done, seconds=SHORT_S)

    # ------------------------------------------------------------ back

    async def roll_back(self, wanted: int | None, end_builds: Callable[[], Awaitable[list[int]]]) -> Row:
        """Serve an earlier generation again; none is built by itself until the truth moves.

        What is under way would only be in the way: a delta is ended, and `end_builds` ends the builds of generations
        and returns their numbers. Raises InvalidParams when nothing earlier is kept, GenerationSuspect when it is
        damaged.
        """
        earlier = self._kept(wanted)
        generation = earlier.generation
        with self._first():
            # By a searcher, who has the CPU for it: what looks at files in the builder gives way to everything.
            if not await self._ask_to_open(PrepareGeneration(generation=earlier, anew=True)):
                await self._desk.work(VerifyGeneration(generation=generation), GenerationRef)
            cancelled = await end_builds()
            before = self._desk.notice.serving
            await self._serve_again(generation)
        self._wishes.paused_at = self._desk.truth.latest
        self._desk.post(paused=True)
        rolled_back_from = None if before is None else before.generation
        return as_row({"generation": generation, "rolled_back_from": rolled_back_from, "cancelled": cancelled})

    @contextlib.contextmanager
    def _first(self) -> Iterator[None]:
        """End what gives way, and keep anything more of it from beginning."""
        self._rollbacks += 1
        if self._unfinished is not None:
            self._unfinished.cancel(ROLLBACK)
        try:
            yield
        finally:
            self._rollbacks -= 1

    async def _serve_again(self, generation: int) -> None:
        earlier, notice = self._kept(generation), self._desk.notice
        behind_it = notice.previous[notice.previous.index(earlier) + 1 :]
        steps = Steps(self._desk, "building")
        try:
            await self.prepare(earlier, steps.enter)
            self._desk.post(successor=None, declined=self._succession.declined_by(earlier))
            await self.keep_model_change()  # first: else a kill right after the flip would undo it by and by
            async with self.lock:
                await self.publish(earlier, steps.enter, base=earlier, previous=behind_it)
        except BulkheadError:
            self._desk.post(declined=notice.declined)
            await self.keep_model_change()
            raise
        finally:
            steps.end()

    def _kept(self, wanted: int | None) -> GenerationRef:
        """Return which of the previous generations is meant; raise InvalidParams when there is none."""
        previous = self._desk.notice.previous
        if not previous:
            raise InvalidParams(
                "index.rollback: no earlier generation is kept",
                hint="one is kept after the second build (config: generation_builder.generations_kept), and none while "
                "the disk is low",
            )
        kept = {ref.generation: ref for ref in previous}
        if wanted is not None and wanted not in kept:
            raise InvalidParams(f"index.rollback: generation {wanted} is not kept", hint=f"kept are {list(kept)}")
        return previous[0] if wanted is None else kept[wanted]

    async def fall_back(self, error: BulkheadError, *, distrusted: int | None = None) -> None:
        """The serving generation is damaged or gone: serve the best verified one, and build anew.

        A `distrusted` generation is put aside although its files are what was sealed.
        """
        self._desk.house.log.error("generation suspect", extra={"error": error.message})
        distrust = {} if distrusted is None else {distrusted: error.message}
        recover = RecoverIndex(building=self.number_building(), distrusted=distrust)
        state = await self._desk.work(recover, IndexState)
        self._desk.post(
            serving=state.current,
            base=state.base,
            previous=behind(state, self._desk.notice.successor),
            suspects=tuple(state.suspects),
            last_error=error.message,
        )
        await self.offer()
        self._wishes.wish("generation damaged")

    # ------------------------------------------------------------ away

    async def retire_in_time(self) -> None:
        """Delete generations that are neither kept nor read by anybody, after a grace, for ever."""
        grace_s = max(LOOK_EVERY_S, self._desk.limits.retire_grace_ms / 1000)
        while True:
            await trio.sleep(grace_s)
            if self._wanted() == self._retired:
                continue
            try:
                self._retired = await self._retire()
            except BulkheadError as error:
                self._desk.house.log.info("retirement put off", extra={"error": error.message})

    async def retire_at_once(self) -> None:
        """Delete what is neither kept nor read; what cannot be deleted now is deleted in time. Raises BulkheadError."""
        self._retired = None
        await self._retire()

    def retire_again(self) -> None:
        """Look again for what is to be deleted, although what is kept is the same: a build left something behind."""
        self._retired = None

    def give_up_earlier(self) -> None:
        """Keep nothing for a rollback any longer."""
        notice = self._desk.notice
        if notice.previous or notice.successor is not None:
            self._desk.post(previous=(), successor=None)

    def _wanted(self) -> tuple[GenerationRef | None, ...]:
        """Return what must stay on the disk."""
        notice = self._desk.notice
        return (notice.serving, notice.base, notice.successor, *notice.previous)

    async def _retire(self) -> tuple[GenerationRef | None, ...] | None:
        """Delete what is not wanted; return what is, or None when somebody still uses an unwanted one."""
        async with self.lock:
            message, deadline_ns = GetIndexView(), deadline_after(SHORT_S)
            view = await self._desk.house.ask("searcher", message, IndexView, deadline_ns=deadline_ns)
            # Only now: while we waited a successor may have been sealed, which takes no lock.
            wanted, pinned = self._wanted(), tuple(self._pinned)
            kept = {ref.view for ref in (*wanted, *pinned) if ref is not None}
            read = {*view.leased, *(() if view.serving is None else (view.serving,))}
            retire = RetireGenerations(keep=sorted(kept | read), building=self.number_building())
            await self._desk.work(retire, Done)
            self.deltas_waiting = 0
            return wanted if read <= kept and not pinned else None

    def number_building(self) -> int | None:
        """Return the number of the generation that is being built, None when there is none."""
        building = self._desk.notice.building
        return building.generation if building is not None and building.generation else None


def behind(state: IndexState, successor: GenerationRef | None) -> tuple[GenerationRef, ...]:
    """Return what a rollback can go to: a successor lies there too, and has never served."""
    number = None if successor is None else successor.generation
    return tuple(ref for ref in state.previous if ref.generation != number)


def as_row(members: dict[str, object]) -> Row:
    """Return an answer that is passed on undecoded."""
    return Row(row=msgspec.json.encode(members))
