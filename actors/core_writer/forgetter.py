"""Carries out the orders to forget, on the trio side: it asks one room after the other, each for a short slice.

    ordered   the units get their tombstones, then the events: found in the transcript, noted in core, hidden there,
              and last made known on the board, which the searcher heeds; only then it is acknowledged
    masked    what holds their content is made empty: keyword indexes, rows, kept results, WALs
    erased    no generation that was begun before may stay: a new one is built, the others go
    gone

Every step may be repeated, so whatever dies, the order is taken up again where it was. Nobody waits for the steps
behind the acknowledgement.
"""

from collections.abc import AsyncIterator, Callable
from typing import Protocol, TypeVar

import msgspec
import trio

from actors.actor import Board, House
from actors.errors import ActorUnavailable, BulkheadError, NotFound
from actors.mailbox import deadline_after
from actors.messages.base import Corpus, Done, Message, Row, Rows, Statistics
from actors.messages.core_writer import CoreStatus
from actors.messages.forgetting import (
    AdvanceForget,
    CountForgettable,
    EraseEvents,
    EraseUnits,
    FindForgettable,
    ForgetEvents,
    ForgetMemory,
    ForgetOrder,
    ForgetOrders,
    ForgetScope,
    ForgetSlice,
    ForgetState,
    ForgettableEvents,
    ForgetUnits,
    GetForget,
    HideEvents,
    ListOpenForgets,
    ListTombstones,
    LookForForgotten,
    OrderForget,
    ProveForgotten,
    ScourKeywords,
    ScourWal,
    Tombstones,
    UnindexEvents,
)
from actors.messages.transcript_appender import TranscriptStatus
from actors.notices import BuilderNotice, ForgetNotice

Answer = TypeVar("Answer", bound=msgspec.Struct)

FOUND_A_PAGE = 500
ERASED_A_SLICE = 64  # of long events: about 15 ms
STEP_S = 10.0
LOOKED_S = 5.0
LOOK_EVERY_S = 2.0
REST_S = 0.01  # between two slices, for those who wait for the lane


class Work(Protocol):
    """Make a call to core's worker."""

    async def __call__(self, message: Message, answer: type[Answer], *, deadline_ns: int) -> Answer: ...


class NotYet(Exception):
    """A step has to wait for something; it is tried again a little later."""


class Forgetter:
    """Orders to forget, of one incarnation of core_writer."""

    def __init__(self, house: House, work: Work, board: Board[ForgetNotice], index: Board[BuilderNotice]) -> None:
        self._board = board
        self._index = index
        self._house = house
        self._work = work
        self._lock = trio.Lock()  # one order at a time
        self._nudged = trio.Event()
        self._complete = False  # the transcript hides all that has a tombstone

    # ------------------------------------------------------------ what is asked for

    async def forget(self, message: ForgetMemory, *, deadline_ns: int) -> Row:
        """Order and mask; what is left to do is done behind that. Raises BulkheadError: `committed` once ordered."""
        status = await self._ask("transcript_appender", TranscriptStatus(), Statistics, deadline_ns=deadline_ns)
        until = int(status.values.get("seq") or 0)
        if message.dry_run:
            return await self._count(message, until, deadline_ns)
        order = OrderForget(
            scope=message.scope,
            reason=message.reason,
            event_until=until,
            tenant=message.tenant,
            request_id=message.request_id,
            caller=message.caller,
        )
        noted = msgspec.json.decode((await self._work(order, Row, deadline_ns=deadline_ns)).row, type=dict[str, object])
        forget_id = str(noted["forget_id"])
        try:
            async with self._lock:
                await self._mask(forget_id, lambda: deadline_ns)
        except BulkheadError as error:
            raise ActorUnavailable(
                f"memory.forget: order {forget_id!r} stands, but is not in force yet: {error.message}",
                outcome="committed",
                retry_after_ms=1000,
                hint="it is carried out as soon as that is possible; memory.forget_status says when",
            ) from error
        finally:
            self._nudged.set()
        got = GetForget(forget_id=forget_id, tenant=message.tenant)
        return await self._work(got, Row, deadline_ns=deadline_ns)

    async def _count(self, message: ForgetMemory, until: int, deadline_ns: int) -> Row:
        counting = CountForgettable(scope=message.scope, tenant=message.tenant)
        units = (await self._work(counting, Rows, deadline_ns=deadline_ns)).count
        events = after = 0
        more = True
        while more:
            page = await self._find(message.scope, message.tenant, after, until, deadline_ns)
            events, after, more = events + len(page.events), page.cursor, page.more
        return Row(row=msgspec.json.encode({"dry_run": True, "would_forget": {"events": events, "units": units}}))

    async def prove(self, message: ProveForgotten, *, deadline_ns: int) -> Row:
        """Look where the items of an order were, and say what is left of them."""
        got = GetForget(forget_id=message.forget_id, tenant=message.tenant)
        receipt = msgspec.json.decode((await self._work(got, Row, deadline_ns=deadline_ns)).row)
        order = await self._order(message.forget_id, deadline_ns)
        look = LookForForgotten(forget_seq=order.forget_seq)
        units = await self._work(look, ForgetSlice, deadline_ns=deadline_ns)
        events = 0
        async for seqs in self._seqs_of(order, lambda: deadline_ns):
            look = LookForForgotten(seqs=seqs)
            found = await self._ask("transcript_appender", look, ForgetSlice, deadline_ns=deadline_ns)
            events += found.rows
        generations: int | None = None
        if order.generation_after is not None:
            generations = await self._look_for_generations(order.generation_after)
        receipt["left"] = {"events": events, "units": units.rows, "generations": generations}
        return Row(row=msgspec.json.encode(receipt))

    # ------------------------------------------------------------ what is done

    async def run(self) -> None:
        """Carry out what is open, for ever."""
        while True:
            self._nudged = trio.Event()
            open_orders = 0
            try:
                await self._hide_all()
                orders = await self._work(ListOpenForgets(), ForgetOrders, deadline_ns=deadline_after(STEP_S))
                open_orders = len(orders.orders)
                for order in orders.orders:
                    await self._advance(order)
            except (BulkheadError, NotYet) as error:
                self._house.log.debug("orders to forget wait", extra={"error": str(error)})
            with trio.move_on_after(LOOK_EVERY_S if open_orders else 10 * LOOK_EVERY_S):
                await self._nudged.wait()

    async def _advance(self, order: ForgetOrder) -> None:
        try:
            if order.state == "ordered":
                async with self._lock:
                    await self._mask(order.forget_id, _step)
            elif order.state == "masked":
                await self._erase(order)
            elif order.state == "erased":
                await self._purge(order)
            else:
                return
        except (BulkheadError, NotYet) as error:
            self._house.log.info("forgetting waits", extra={"error": f"order {order.forget_id}: {error}"})
            return
        self._nudged.set()

    async def _hide_all(self) -> None:
        """Have the transcript hide what has a tombstone, once in a life: it may have lost its list."""
        if self._complete:
            return
        after, more = 0, True
        while more:
            page = await self._page(after, None, "events", _step)
            await self._hide(tuple(each.seq for each in page.tombstones), _step())
            after, more = page.tombstones[-1].tombstone_seq if page.tombstones else after, page.more
        self._complete = True

    async def _mask(self, forget_id: str, deadline: Callable[[], int]) -> None:
        """Bring an order into force: from the next answer on nobody gets any of it."""
        order = await self._order(forget_id, deadline())
        if order.state != "ordered":
            return
        more = True
        while more:
            step = ForgetUnits(forget_seq=order.forget_seq)
            more = (await self._work(step, ForgetSlice, deadline_ns=deadline())).more
        after, more = order.event_cursor, order.event_cursor < order.event_until
        while more:
            page = await self._find(order.scope, order.tenant, after, order.event_until, deadline())
            noted = ForgetEvents(forget_seq=order.forget_seq, events=page.events, cursor=page.cursor)
            await self._work(noted, Done, deadline_ns=deadline())
            after, more = page.cursor, page.more
        async for seqs in self._seqs_of(order, deadline):
            await self._hide(seqs, deadline())
        self._post(orders=self._board.notice.orders + 1)
        await self._note(order, "masked", deadline())

    async def _erase(self, order: ForgetOrder) -> None:
        """Remove the content from the files of the truth."""
        await self._require_indexed()
        more = True
        while more:
            step = EraseUnits(forget_seq=order.forget_seq)
            more = (await self._work(step, ForgetSlice, deadline_ns=_step())).more
            await trio.sleep(REST_S)
        waits = False
        async for page in self._seqs_of(order, _step):
            for start in range(0, len(page), ERASED_A_SLICE):
                seqs = page[start : start + ERASED_A_SLICE]
                await self._ask("transcript_appender", UnindexEvents(seqs=seqs), ForgetSlice, deadline_ns=_step())
                erased = await self._ask(
                    "transcript_appender", EraseEvents(seqs=seqs), ForgetSlice, deadline_ns=_step()
                )
                waits |= erased.waits
                await trio.sleep(REST_S)
        await self._scour()
        if waits:
            raise NotYet("a segment is damaged, or in an archive: what it holds is masked, and not erased yet")
        await self._note(order, "erased", _step())

    async def _require_indexed(self) -> None:
        """Wait until core's keyword index has taken out the units, for which it needs their words."""
        status = await self._work(CoreStatus(), Statistics, deadline_ns=_step())
        if status.values.get("keyword_behind"):
            raise NotYet("core's keyword index is behind")

    async def _scour(self) -> None:
        """Let what was removed leave the files as well."""
        for message in (ScourKeywords(), ScourWal()):
            more = True
            while more:
                core = await self._work(message, ForgetSlice, deadline_ns=_step())
                there = await self._ask("transcript_appender", message, ForgetSlice, deadline_ns=_step())
                if core.waits or there.waits:
                    raise NotYet("a WAL is being read")
                more = core.more or there.more
                await trio.sleep(REST_S)

    async def _purge(self, order: ForgetOrder) -> None:
        assert order.generation_after is not None, "it is noted when an order comes into force"
        left = await self._look_for_generations(order.generation_after)
        if left != 0:
            raise NotYet(f"{left} generations were begun before")
        await self._note(order, "gone", _step())

    # ------------------------------------------------------------ steps

    async def _look_for_generations(self, until: int) -> int | None:
        """Have the builder let generations up to a number go; return how many there are, None if it does not say."""
        self._post(purge_until=max(until, self._board.notice.purge_until), look=self._board.notice.look + 1)
        wanted = self._board.notice.look
        with trio.move_on_after(LOOKED_S):
            while self._index.notice.purge_look < wanted:
                await self._index.wait_changed()
            return self._index.notice.purge_left
        return None

    def _post(self, **changes: int) -> None:
        self._board.post(msgspec.structs.replace(self._board.notice, **changes))

    async def _order(self, forget_id: str, deadline_ns: int) -> ForgetOrder:
        found = await self._work(ListOpenForgets(forget_id=forget_id), ForgetOrders, deadline_ns=deadline_ns)
        if not found.orders:
            raise NotFound(f"there is no order to forget with the id {forget_id!r}")
        return found.orders[0]

    async def _note(self, order: ForgetOrder, state: ForgetState, deadline_ns: int) -> None:
        noted = AdvanceForget(forget_seq=order.forget_seq, state=state)
        await self._work(noted, Row, deadline_ns=deadline_ns)

    async def _find(
        self, scope: ForgetScope, tenant: str, after: int, until: int, deadline_ns: int
    ) -> ForgettableEvents:
        message = FindForgettable(scope=scope, tenant=tenant, after=after, until=until, limit=FOUND_A_PAGE)
        return await self._ask("transcript_appender", message, ForgettableEvents, deadline_ns=deadline_ns)

    async def _hide(self, seqs: tuple[int, ...], deadline_ns: int) -> None:
        if seqs:
            await self._ask("transcript_appender", HideEvents(seqs=seqs), ForgetSlice, deadline_ns=deadline_ns)

    async def _page(
        self, after: int, forget_seq: int | None, corpus: Corpus, deadline: Callable[[], int]
    ) -> Tombstones:
        message = ListTombstones(after=after, limit=FOUND_A_PAGE, forget_seq=forget_seq, corpus=corpus)
        return await self._work(message, Tombstones, deadline_ns=deadline())

    async def _seqs_of(self, order: ForgetOrder, deadline: Callable[[], int]) -> AsyncIterator[tuple[int, ...]]:
        """Yield the places of an order's events, a page at a time."""
        after, more = 0, True
        while more:
            page = await self._page(after, order.forget_seq, "events", deadline)
            if page.tombstones:
                yield tuple(each.seq for each in page.tombstones)
                after = page.tombstones[-1].tombstone_seq
            more = page.more

    async def _ask(self, actor: str, message: Message, answer: type[Answer], *, deadline_ns: int) -> Answer:
        return await self._house.ask(actor, message, answer, deadline_ns=deadline_ns)


def _step() -> int:
    return deadline_after(STEP_S)
