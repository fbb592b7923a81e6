"""One message to the search workers: whose turn it is, who is asked, and who is asked as well.

Owns the line of searches that wait for a worker, and the calls that the workers have in hand. Promises:

* a worker is given no more searches than it does at a time, so what it has in hand is being executed;
* a search that a dead or silent worker has in hand is repeated by the other one at once; one that takes longer than
  searches do is given to the other one as well, within a budget; twice at most, and the first answer counts;
* clients take turns, and nobody waits for a turn that will hardly come in time.

A call whose asker has left goes on to its own deadline: LanceDB cannot be interrupted, and what a worker owes says
whether it can be trusted. It does not look after the workers: `pool.py` does.
"""

import math
from collections import Counter
from typing import TypeVar, cast

import msgspec
import trio

from actors.errors import BulkheadError
from actors.mailbox import seconds_until
from actors.messages.base import Message
from actors.searcher.blame import Case
from actors.searcher.hedging import HedgeBudget, Pace
from actors.searcher.pair import Pair, Slot
from actors.tray import Tray
from actors.worker import Worker, WorkerDied

Answer = TypeVar("Answer", bound=msgspec.Struct)

TRIES = 2
LOOK_EVERY_S = 0.05
OWED_S_MAX = 5.0
# Every so many searches one goes to the spare, so that its caches are warm on the day it is needed.
SPARE_EVERY = 16


class NobodyServes(Exception):
    """There is no worker that could be asked."""


class NoTurn(Exception):
    """So many searches wait already that this one would hardly get its turn in time."""


class Inquiry:
    """One message on its way: what it is, how often it was given to a worker, and what came of that."""

    def __init__(
        self,
        message: Message,
        *,
        deadline_ns: int,
        client: int = 0,
        view: int | None = None,
        case: Case | None = None,
        begun: trio.Event | None = None,
    ) -> None:
        """Make a search of an open view; without a view any worker will do, and it is not a search.

        `deadline_ns` is the worker's, `client` whose turn it takes; `begun` is set once a worker has it in hand.
        """
        self.message = message
        self.body = msgspec.msgpack.encode(message)
        self.deadline_ns = deadline_ns
        self.client = client
        self.view = view
        self.case = case
        self.begun = begun if begun is not None else trio.Event()
        self.attempts: list[Attempt] = []
        self.hedge_at = math.inf
        self.asked = False  # its asker is still there
        self.queued = False
        self.given_up = False  # not to be repeated after the death of a worker
        self._changed = trio.Event()

    @property
    def search(self) -> bool:
        """Say whether it is one of the calls that are rationed."""
        return self.view is not None

    @property
    def forlorn(self) -> bool:
        """Say whether it is a search that somebody waits for, in nobody's hands and not in the line."""
        return self.search and self.asked and not self.queued and not any(attempt.open for attempt in self.attempts)

    def nudge(self) -> None:
        """Have it look again."""
        self._changed.set()

    async def wait_nudged(self, until: float) -> None:
        """Wait for something to have changed, at most until a time."""
        with trio.move_on_at(until):
            await self._changed.wait()
        self._changed = trio.Event()


class Attempt:
    """One call to one worker."""

    def __init__(self, inquiry: Inquiry, slot: Slot) -> None:
        assert slot.worker is not None
        self.inquiry = inquiry
        self.slot = slot
        self.worker = slot.worker
        self.search = inquiry.search
        self.began = trio.current_time()
        self.answers_before = slot.answers
        self.result: msgspec.Struct | None = None
        self.error: WorkerDied | BulkheadError | None = None

    @property
    def open(self) -> bool:
        """Say whether it may still be answered."""
        return self.result is None and self.error is None

    def is_mute(self) -> bool:
        """Say whether its worker has answered no search at all since it was given this one."""
        return self.slot.worker is self.worker and self.slot.answers == self.answers_before

    def nudge(self) -> None:
        """Have whoever waits for the call look again."""
        self.inquiry.nudge()


class Asker:
    """Puts messages to the pair. `seats` is how many searches a worker does at a time."""

    def __init__(self, pair: Pair, *, seats: int) -> None:
        self._pair = pair
        self._seats = seats
        self._pace = Pace()
        self._budget = HedgeBudget()
        self._line: Tray[Inquiry] = Tray()
        self._carried: set[Attempt] = set()
        self._turns = 0
        self._nursery: trio.Nursery | None = None
        self.hedges = 0
        self.repeats = 0

    async def run(self) -> None:
        """Carry the calls, and watch over those who owe one."""
        silent: set[Slot] = set()
        async with trio.open_nursery() as self._nursery:
            while True:
                await trio.sleep(LOOK_EVERY_S)
                before, silent = silent, {slot for slot in self._pair if slot.silent}
                for slot in silent - before:
                    slot.nudge()
                if silent != before:
                    self.nudge()
                self._collect_debts()

    def _collect_debts(self) -> None:
        """Kill a worker that hangs in a call which the other one has done long since, so that there is a spare again.

        The deadline of the call would do it as well, but that may be two minutes away.
        """
        now = trio.current_time()
        for slot in self._pair:
            owed_s = now - min((attempt.began for attempt in slot.attempts if attempt.search), default=now)
            if slot.worker is not None and slot.owes and owed_s > OWED_S_MAX:
                slot.worker.kill(f"has owed for {owed_s:.1f} s what the other search worker answered")

    def nudge(self) -> None:
        """Have the first in the line look again; to be called when a worker came, went, or opened something."""
        first = self._line.peek()
        if first is not None:
            first.nudge()

    async def ask(self, inquiry: Inquiry, answer: type[Answer]) -> Answer:
        """Return the first answer. To be cancelled by the caller when its time is up.

        Raises the operating error that a worker answered with; WorkerDied when the workers died of it or with it,
        NobodyServes and NoTurn when it was given to none.
        """
        inquiry.asked = True
        try:
            while True:
                for attempt in inquiry.attempts:
                    if attempt.result is not None:
                        return cast(Answer, attempt.result)
                    if isinstance(attempt.error, BulkheadError):
                        raise attempt.error
                slot = self._next(inquiry)
                if slot is None:
                    await inquiry.wait_nudged(inquiry.hedge_at)
                else:
                    self._begin(inquiry, slot, answer)
        finally:
            inquiry.asked = False
            self._leave_line(inquiry)

    # ------------------------------------------------------------ who is asked

    def _next(self, inquiry: Inquiry) -> Slot | None:
        """Return whom to ask now, None when it is to wait; raise when nobody is left to ask or to wait for."""
        waiting_for = [attempt for attempt in inquiry.attempts if attempt.open]
        untried = self._untried(inquiry)
        if not waiting_for:
            if not untried:
                raise _last_death(inquiry) or NobodyServes
            return self._seat(inquiry, untried[0])
        trusted = [slot for slot in untried if slot.trusted]
        if trusted and not any(attempt.slot.trusted for attempt in waiting_for):
            return self._seat(inquiry, trusted[0])
        self._leave_line(inquiry)
        return self._hedge(inquiry, trusted)

    def _untried(self, inquiry: Inquiry) -> list[Slot]:
        """Return the places whose worker could be asked and has not been, the best first."""
        if inquiry.given_up or len(inquiry.attempts) >= TRIES:
            return []
        able = self._pair.living() if inquiry.view is None else self._pair.serving(inquiry.view)
        return [slot for slot in able if all(attempt.worker is not slot.worker for attempt in inquiry.attempts)]

    def _seat(self, inquiry: Inquiry, slot: Slot) -> Slot | None:
        """Return the worker's place once it is this one's turn and there is a seat; what is repeated comes first."""
        if not inquiry.search:
            return slot
        if not inquiry.queued:
            self._join_line(inquiry)
        if self._line.peek() is not inquiry:
            return None
        slot = self._spare_instead(inquiry) or slot
        if slot.searches >= self._seats:
            return None
        self._line.pop()  # the turn goes to the next client
        inquiry.queued = False
        self.nudge()
        return slot

    def _join_line(self, inquiry: Inquiry) -> None:
        if inquiry.attempts:
            self._line.put_back(inquiry)
            inquiry.hedge_at = math.inf
            self.repeats += 1
        elif self._pace.wait_s(self._ahead(inquiry), self._seats) > seconds_until(inquiry.deadline_ns):
            raise NoTurn(f"{len(self._line)} searches wait for a worker")
        else:
            self._line.put(inquiry)
        inquiry.queued = True

    def _ahead(self, inquiry: Inquiry) -> int:
        """Return how many have their turn before a newcomer: of each client as many as of its own, and one more."""
        waiting = Counter(each.client for each in self._line)
        own = waiting[inquiry.client]
        return sum(min(count, own + (client != inquiry.client)) for client, count in waiting.items())

    def _leave_line(self, inquiry: Inquiry) -> None:
        if inquiry.queued:
            self._line.remove(inquiry)
            inquiry.queued = False
            self.nudge()

    def _spare_instead(self, inquiry: Inquiry) -> Slot | None:
        """Return the spare's place when it is its turn to be kept warm."""
        assert inquiry.view is not None
        spare = self._pair.other(self._pair.active)
        due = not inquiry.attempts and self._turns % SPARE_EVERY == SPARE_EVERY - 1
        fit = spare.serves(inquiry.view) and spare.trusted and spare.searches < self._seats
        return spare if due and fit else None

    def _hedge(self, inquiry: Inquiry, trusted: list[Slot]) -> Slot | None:
        """Return another worker when this takes longer than searches do and both the worker and the budget allow it."""
        now = trio.current_time()
        if now < inquiry.hedge_at:
            return None
        slot = next((slot for slot in trusted if slot.searches < self._seats), None)
        if slot is None or not self._budget.spend():
            inquiry.hedge_at = now + self._pace.hedge_delay_s()
            return None
        self.hedges += 1
        return slot

    # ------------------------------------------------------------ the calls

    def _begin(self, inquiry: Inquiry, slot: Slot, answer: type[msgspec.Struct]) -> None:
        attempt = Attempt(inquiry, slot)
        if inquiry.search:
            self._count(inquiry, slot)
        inquiry.attempts.append(attempt)
        slot.attempts.add(attempt)
        self._carried.add(attempt)
        inquiry.begun.set()
        assert self._nursery is not None
        self._nursery.start_soon(self._call, attempt, answer)

    def _count(self, inquiry: Inquiry, slot: Slot) -> None:
        if not inquiry.attempts:
            self._turns += 1
            self._budget.save()
            inquiry.hedge_at = trio.current_time() + self._pace.hedge_delay_s()
        else:
            inquiry.hedge_at = math.inf
        if not self._pair.active.trusted or not self._pair.active.serves(inquiry.view or 0):
            self._pair.promote(slot)

    async def _call(self, attempt: Attempt, answer: type[msgspec.Struct]) -> None:
        inquiry, slot = attempt.inquiry, attempt.slot
        try:
            attempt.result = await attempt.worker.call(
                inquiry.message, answer, deadline_ns=inquiry.deadline_ns, body=inquiry.body
            )
            self._answered(attempt)
        except WorkerDied as death:
            self._bury(attempt.worker, death)
        except BulkheadError as error:
            attempt.error = error
            self._answered(attempt)
        finally:
            self._carried.discard(attempt)
            slot.attempts.discard(attempt)
            inquiry.nudge()
            self.nudge()

    def _answered(self, attempt: Attempt) -> None:
        """Note an answer: the worker owes nothing any more; one that was asked before and is mute since then does."""
        if not attempt.search:
            return
        attempt.slot.answers += 1
        attempt.slot.owes = False
        for other in attempt.inquiry.attempts:
            if other.open and other.began < attempt.began and other.is_mute():
                other.slot.owes = True
                other.slot.nudge()
        if attempt.result is not None:
            self._pace.note(trio.current_time() - attempt.began)
            if attempt.inquiry.case is not None:
                attempt.inquiry.case.answered()

    def _bury(self, worker: Worker, death: WorkerDied) -> None:
        """Settle all that a dead worker had in hand at once: what is repeated must come before what waits."""
        lost = [attempt for attempt in self._carried if attempt.worker is worker and attempt.open]
        for attempt in lost:
            self._died(attempt, death, alone=len(lost) == 1)
        self._pair.bury(worker)
        for attempt in sorted(lost, key=lambda attempt: -attempt.began):
            inquiry = attempt.inquiry
            inquiry.nudge()
            if inquiry.forlorn and self._untried(inquiry):
                self._join_line(inquiry)

    def _died(self, attempt: Attempt, death: WorkerDied, *, alone: bool) -> None:
        inquiry = attempt.inquiry
        attempt.error = death
        if inquiry.case is None:
            inquiry.given_up = True  # whether it would kill the other worker too is not known
        elif inquiry.case.died(death, query=inquiry.body, alone=alone):
            inquiry.given_up = True


def _last_death(inquiry: Inquiry) -> WorkerDied | None:
    errors = [attempt.error for attempt in inquiry.attempts]
    return next((error for error in reversed(errors) if isinstance(error, WorkerDied)), None)
