"""The deltas: whenever the truth has moved, or vectors have come, one is made over the generation that serves.

Each is made whole, from the delta before and what came since, by the worker that looks after the folder, which is
replaced from time to time between two of them. When one fails, the view that served goes on serving, what it lacks is
found by its words, and the next one is tried after a pause that grows.
"""

import contextlib
import time

from actors.errors import BulkheadError, GenerationSuspect
from actors.generation_builder.building import BuildPlan, Step, TooMuchForDelta, Work, build_delta
from actors.generation_builder.desk import LOOK_EVERY_S, SHORT_S, Desk
from actors.generation_builder.looking import Lookout
from actors.generation_builder.publishing import Publisher
from actors.generation_builder.steps import Steps
from actors.generation_builder.wishes import Wishes
from actors.messages.base import Done
from actors.messages.builder_work import AbandonBuild
from actors.messages.index import Covers, GenerationRef

RETRY_S_MAX = 30.0
WAITING_MAX = 30
HARD_FACTOR = 4  # a delta that would be so many times its share is not made


class Deltas:
    """Makes one delta after the other."""

    def __init__(self, desk: Desk, wishes: Wishes, publisher: Publisher, lookout: Lookout, *, highest: int) -> None:
        """`highest` is the highest number that a delta on the disk has."""
        self._desk = desk
        self._wishes = wishes
        self._publisher = publisher
        self._lookout = lookout
        self._steps = Steps(desk, "delta_building")
        self._number = highest  # of the last one
        self._ended_at = 0.0
        self._failures = 0  # in a row
        self._made = 0  # by the worker that is in the seat

    async def run(self) -> None:
        """Make a delta whenever one is due, for ever."""
        while True:
            wait_s = self._next_at() - time.monotonic()
            if self.due() and wait_s <= 0:
                await self._make_one()
                await self._replace_worker_in_time()
            else:
                await self._wishes.wait_delta(LOOK_EVERY_S if wait_s <= 0 else min(wait_s, LOOK_EVERY_S))

    # ------------------------------------------------------------ when

    def due(self) -> bool:
        """Say whether what serves lacks something that a delta can give it."""
        notice, latest = self._desk.notice, self._desk.truth.latest
        if notice.serving is None or notice.base is None or notice.no_room or not latest.sources_digest:
            return False
        if self._publisher.deltas_waiting >= WAITING_MAX:
            return False  # the searcher does not say which of them it reads, so none can be deleted
        if self.rows_since(notice.base) > HARD_FACTOR * self.share(notice.base):
            return False  # a generation is on its way, and the words of what is new are found without either
        return self._wishes.vectors or notice.serving.covers != latest

    def rows_since(self, base: GenerationRef) -> int:
        """Return about how many rows a delta over the generation has, or would have now."""
        serving, latest = self._desk.notice.serving, self._desk.truth.latest
        held = 0 if serving is None or serving.generation != base.generation else serving.delta_rows
        moved = latest.event_seq - base.covers.event_seq + latest.core_seq - base.covers.core_seq
        return max(held, moved)

    def share(self, base: GenerationRef) -> float:
        """Return how many rows a delta over the generation may have before it becomes part of a new one."""
        limits = self._desk.limits
        return max(limits.delta_rows_max, sum(base.rows.values()) * limits.delta_percent_max / 100)

    def _next_at(self) -> float:
        """Return when the next delta may start: the share of time spent on them is bounded, failures wait longer."""
        pause_s = max(self._desk.limits.delta_every_ms, self._desk.notice.delta_ms) / 1000
        return self._ended_at + min(RETRY_S_MAX, pause_s * 2.0 ** min(self._failures, 16))

    # ------------------------------------------------------------ how

    async def _make_one(self) -> None:
        began = time.monotonic()
        publisher, steps = self._publisher, self._steps
        try:
            async with publisher.lock:
                base, serving = self._desk.notice.base, self._desk.notice.serving
                if base is None or serving is None or not self.due():
                    return
                self._wishes.vectors = False
                with contextlib.suppress(BulkheadError):  # what came since the last look belongs into it as well
                    await self._lookout.look()
                steps.begin(_expected(serving, self._desk.truth.latest))
                with publisher.giving_way() as scope:
                    view = await self.build(base, before=serving, work=self._desk.work, step=steps.enter)
                    await publisher.prepare(view, steps.enter)
                if scope.cancelled_caught:
                    await abandon(self._desk.work)
                    publisher.retire_again()
                    self._wishes.want_delta()
                    return
                await publisher.publish(view, steps.enter, base=base, previous=self._desk.notice.previous)
        except TooMuchForDelta as error:
            self._wishes.force(f"too much for a delta: {error}")
        except GenerationSuspect as error:
            await publisher.fall_back(error)
        except BulkheadError as error:
            self._failures += 1
            self._desk.post(delta_error=error.message)
            self._desk.house.log.warning("delta failed", extra={"error": error.message})
        else:
            self._succeeded((time.monotonic() - began) * 1000)
        finally:
            self._ended_at = time.monotonic()
            self._steps.end()

    def _succeeded(self, took_ms: float) -> None:
        self._failures = 0
        self._publisher.deltas_waiting += 1
        published = self._desk.notice.deltas_published + 1
        self._desk.post(delta_error=None, deltas_published=published, delta_ms=took_ms)

    async def build_last(self, base: GenerationRef, *, before: GenerationRef) -> GenerationRef:
        """Build the delta that a new generation is published with, in the worker in the seat. The lock must be held.

        Raises what `build` raises.
        """
        self._steps.begin(_expected(before, self._desk.truth.latest))
        try:
            return await self.build(base, before=before, work=self._desk.work, step=self._steps.enter)
        finally:
            self._steps.end()

    async def build(
        self, base: GenerationRef, *, before: GenerationRef | None, work: Work, step: Step
    ) -> GenerationRef:
        """Build a delta over a generation up to now, sealed, and return the view of both.

        The delta of `before` hands its rows on when it lies over the same generation. Raises TooMuchForDelta,
        GenerationSuspect, or another BulkheadError.
        """
        self._number += 1
        desk, truth = self._desk, self._desk.truth
        plan = BuildPlan(
            house=desk.house,
            work=work,
            step=step,
            limits=desk.limits,
            covers=truth.latest,
            sources=truth.sources,
            identity=base.identity,
            previous=before,
            at_least=desk.notice.highest,
        )
        try:
            return await build_delta(plan, base=base, delta=self._number, changes_max=desk.limits.delta_rows_max)
        except (BulkheadError, TooMuchForDelta):
            await abandon(work)
            raise

    async def _replace_worker_in_time(self) -> None:
        """Replace the worker between two deltas when it has grown large or old; LanceDB gives nothing back."""
        self._made += 1
        limits, size = self._desk.limits, self._desk.seat.rss_bytes
        if size > limits.rss_bytes_max:
            cause = f"{size} bytes resident, limit is {limits.rss_bytes_max} (generation_builder.rss_bytes_max)"
        elif self._made >= limits.builds_per_worker_max:
            cause = f"{self._made} builds (generation_builder.builds_per_worker_max)"
        else:
            return
        async with self._publisher.lock:
            await self._desk.seat.replace(cause, pending_s=limits.step_deadline_ms / 1000)
        self._made = 0
        self._desk.post(workers_replaced=self._desk.notice.workers_replaced + 1)


async def abandon(work: Work, *, remains: bool = False) -> None:
    """Drop what is left of a build in a worker; one that is cancelled with the actor goes with its worker.

    `remains`: also what a process that has ended left of its build.
    """
    with contextlib.suppress(BulkheadError):
        await work(AbandonBuild(remains=remains), Done, seconds=SHORT_S)


def _expected(before: GenerationRef, latest: Covers) -> dict[str, int]:
    """Return about how many rows a delta after a view has: what that one's holds, and what came since."""
    events, units = latest.event_seq - before.covers.event_seq, latest.core_seq - before.covers.core_seq
    return {"events": before.delta_rows + events, "units": units}
