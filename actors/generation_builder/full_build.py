"""One full generation: built in a process of its own, brought up to date, published.

The process comes and goes with the build: LanceDB gives nothing back. While it builds, deltas over the old generation
go on. Before the new one is published it catches up: rounds of deltas over it, each for what came during the one
before, made by the same process, until little is left; what is left is made under the lock of publication, where a
large round would hold up the deltas that people see.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import trio

from actors.errors import BuildFailed, BulkheadError
from actors.generation_builder.building import BuildPlan, TooMuchForDelta, Work, build
from actors.generation_builder.deltas import Deltas
from actors.generation_builder.desk import Desk, work_of
from actors.generation_builder.looking import Lookout
from actors.generation_builder.publishing import Publisher
from actors.generation_builder.seat import Seat, hard_limit, keep_below
from actors.generation_builder.steps import Steps
from actors.generation_builder.succession import Succession
from actors.messages.index import Covers, GenerationRef
from actors.worker import WorkerDied, WorkerSpec

Error = TypeVar("Error", bound=BaseException)

# A delta of so many rows takes 0.1 to 0.2 s, which a delta that is due can wait.
CATCH_UP_ROWS = 500
CATCH_UP_ROUNDS_MAX = 4


class Built(NamedTuple):
    """A sealed generation, the view of it with what came meanwhile, and whether it is to be published."""

    sealed: GenerationRef
    view: GenerationRef
    publish: bool


class FullBuilds:
    """Makes full generations; one at a time is asked for."""

    def __init__(
        self,
        desk: Desk,
        steps: Steps,
        *,
        publisher: Publisher,
        lookout: Lookout,
        deltas: Deltas,
        succession: Succession,
        worker: WorkerSpec,
    ) -> None:
        self._desk = desk
        self._steps = steps
        self._publisher = publisher
        self._lookout = lookout
        self._deltas = deltas
        self._succession = succession
        self._worker = worker

    async def make(self, covers: Covers, reason: str) -> Built:
        """Build a generation, sealed and nearly up to date. Nobody sees it yet. Raises BulkheadError."""
        built: Built | None = None
        desk = self._desk
        try:
            async with trio.open_nursery() as nursery:
                seat = Seat(desk.house, self._worker, nursery)
                await seat.fill()
                nursery.start_soon(keep_below, seat, hard_limit(desk.limits.rss_bytes_max))
                nursery.start_soon(self._steps.tick)
                work = work_of(seat, desk.limits, self._steps.report)
                sealed = await build(self._plan(covers, reason, work))
                publish = self._succession.may_publish(sealed, reason)
                view = await self._catch_up(sealed, work_of(seat, desk.limits)) if publish else sealed
                built = Built(sealed, view, publish)
                nursery.cancel_scope.cancel("the generation is sealed")
        except* WorkerDied as group:
            raise BuildFailed(f"the process that built it died: {_leaf(group).cause}") from group
        except* BulkheadError as group:
            raise _leaf(group) from group
        assert built is not None
        return built

    def _plan(self, covers: Covers, reason: str, work: Work) -> BuildPlan:
        identity, lender = self._succession.choose(reason)
        return BuildPlan(
            house=self._desk.house,
            work=work,
            step=self._steps.enter,
            limits=self._desk.limits,
            covers=covers,
            sources=self._desk.truth.sources,
            identity=identity,
            previous=self._desk.notice.serving,
            lender=lender,
            at_least=self._desk.notice.highest,
        )

    async def _catch_up(self, sealed: GenerationRef, work: Work) -> GenerationRef:
        """Make deltas over the new generation until the next one would be short; return the view with the last one."""
        view = sealed
        for done in range(CATCH_UP_ROUNDS_MAX):
            await self._steps.enter("catch up", sealed.generation, done, CATCH_UP_ROUNDS_MAX)
            try:
                if _rows_between(view.covers, await self._lookout.look()) <= CATCH_UP_ROWS:
                    break
                view = await self._deltas.build(sealed, before=view, work=work, step=_unseen)
            except (BulkheadError, TooMuchForDelta) as error:
                self._desk.house.log.warning("delta failed", extra={"error": str(error)})
                break
        return view

    async def publish(self, built: Built, *, complete: Callable[[], None]) -> None:
        """Publish a generation together with a delta of what came since.

        `complete` is called right before the flip: from then on it cannot be ended any more.
        """
        publisher, enter, sealed = self._publisher, self._steps.enter, built.sealed
        async with publisher.lock:
            view = await self._brought_up_to_date(built)
            await publisher.prepare(view, enter)
            comparison = await self._succession.compare(self._desk.house, view)
            complete()
            await publisher.publish(view, enter, base=sealed, previous=publisher.kept_behind(sealed))
        notice = self._desk.notice
        following = None if sealed.identity == notice.identity else notice.successor
        self._desk.post(comparison=comparison, successor=following)
        await publisher.keep_model_change()

    async def _brought_up_to_date(self, built: Built) -> GenerationRef:
        """Return the generation with a delta of all that came while it was built; with less if that fails."""
        if await self._lookout.look() == built.view.covers:
            return built.view
        try:
            return await self._deltas.build_last(built.sealed, before=built.view)
        except (BulkheadError, TooMuchForDelta) as error:
            self._desk.house.log.warning("delta failed", extra={"error": str(error)})
            return built.view


async def _unseen(stage: str, generation: int, done: int, total: int) -> None:
    """Show nothing: a delta of a round is a part of one stage."""


def _rows_between(covers: Covers, latest: Covers) -> int:
    return latest.event_seq - covers.event_seq + latest.core_seq - covers.core_seq


def _leaf(group: BaseExceptionGroup[Error]) -> Error:
    """Return the innermost first error of a group."""
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first
