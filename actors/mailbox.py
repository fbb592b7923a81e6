"""Bounded mailboxes: how anything is said to an actor, and how its answer comes back.

The supervisor owns every mailbox; an incarnation of the actor only borrows it. So mail that waits survives a
crash, and what the dead incarnation had in hand is known exactly and can be settled at once.

Promises:
* full means refused, at once, with a `retry_after_ms`; nothing ever waits for room unless `wait_ms` says so.
* every envelope is answered exactly once (`actors/envelope.py`).
* `not_executed` is only said of what no incarnation had in hand when it died.
* an envelope whose deadline passed while it waited is refused without work.
* `ask` returns by the deadline plus `SETTLE_S`, whatever the actor does.
* within a tray the clients take turns, and a full mailbox refuses the greediest of them, not the one that comes.

A mailbox has trays, so that an actor can take its writes and its reads separately under one common bound. A tray may
have a bound of its own: the tray of an actor's control messages never fills up with data.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeVar, cast

import msgspec
import trio

from actors.envelope import Envelope
from actors.errors import (
    ActorDied,
    ActorRestarting,
    BulkheadError,
    DeadlineExceeded,
    Overloaded,
    PoisonMessage,
    ShuttingDown,
)
from actors.messages.base import Message
from actors.quarantine import DEATHS_MAX, Condemned, Quarantine
from actors.service_times import ServiceTimes
from actors.tray import Tray

Answer = TypeVar("Answer", bound=msgspec.Struct)

# How long an asker waits beyond its deadline for a definite outcome: the worker is interrupted at the deadline and
# mostly answers "rolled back" within this time, which is worth more to the caller than "unknown". A caller is promised
# an answer by his deadline and a quarter of a second: the rest is for the way to him, on a machine without idle CPU.
SETTLE_S = 0.15
SERVICE_WEIGHT = 0.1
RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX = 10, 5000
DEFAULT_TRAY = ""
CONTROL_TRAY = "control"
CONTROL_COUNT_MAX = 32
# What a full mailbox refuses of the greediest client: its newest message, or the one that has least time left.
Shed = Literal["greediest", "least_budget"]


class MailboxStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What a mailbox holds now and held at most. `in_hand_ms` is the age of the oldest envelope being worked on."""

    count: int
    count_max: int
    bytes: int
    bytes_max: int
    peak: int
    in_hand: int
    in_hand_ms: float
    service_ms: float
    refused: int
    expired: int
    redelivered: int
    poisoned: int


class Mailbox:
    """A bounded queue of envelopes in front of one actor."""

    def __init__(
        self,
        owner: str,
        *,
        count_max: int,
        bytes_max: int,
        wait_ms: int = 0,
        tray_of: Callable[[Message], str] = lambda message: DEFAULT_TRAY,
        own_bounds: Mapping[str, int] | None = None,
        shed: Shed = "greediest",
        conflated: tuple[type[Message], ...] = (),
        refuses_early: bool = True,
        quarantine: Quarantine | None = None,
    ) -> None:
        """Make an empty mailbox.

        `own_bounds` gives trays a count of their own, outside of `count_max` and `bytes_max`. Of a `conflated` kind
        one message waits at most: more would say the same. An actor that fits its work to the time it has does not
        want to be spared (`refuses_early`).
        """
        self.owner = owner
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.wait_ms = wait_ms
        self.epoch = 0
        self.served = 0  # envelopes answered with a result, over all incarnations
        if quarantine is None:
            quarantine = Quarantine(monotonic_s=time.monotonic, wall_us=_wall_us)
        self.quarantine = quarantine
        self._tray_of = tray_of
        self._own_bounds = {CONTROL_TRAY: CONTROL_COUNT_MAX, **(own_bounds or {})}
        self._shed: Shed = shed
        self._conflated = conflated
        self._times = ServiceTimes() if refuses_early else None
        self._trays: dict[str, Tray[Envelope]] = {}
        self._arrived: dict[str, trio.Event] = {}
        self._left = trio.Event()
        self._in_hand: dict[int, Envelope] = {}
        # Invariant: equals the number and the body bytes of the envelopes in the trays without a bound of their own.
        self._count = 0
        self._bytes = 0
        self._peak = 0
        self._service_ns = 0.0
        self._refused = self._expired = self._redelivered = self._poisoned = 0
        self._refusal: Callable[[], BulkheadError] | None = None
        self._restart_eta_ns = 0

    # ------------------------------------------------------------ the asker's side

    async def ask(
        self,
        message: Message,
        answer: type[Answer],
        *,
        deadline_ns: int,
        posted: Callable[[], None] | None = None,
        client: int = 0,
    ) -> Answer:
        """Send a message and wait for its answer, at most to the deadline plus `SETTLE_S`.

        `posted` is called once the message has its place in the queue: who asks several things in an order keeps
        it by posting one after the other.

        Raises the operating error that the actor answered with; Overloaded, ActorUnavailable, ActorRestarting,
        PoisonMessage or ShuttingDown at once when the message is not accepted; DeadlineExceeded when time ran
        out. When the asker is cancelled, a message that still waits is withdrawn; one in hand goes on.
        """
        envelope = await self._post(Envelope(message, deadline_ns, self._tray_of(message), client))
        if posted is not None:
            posted()
        try:
            with trio.move_on_after(seconds_until(deadline_ns)):
                return cast(Answer, await envelope.wait())
            if self._withdraw(envelope):
                envelope.reject(self._too_late(envelope))
                return cast(Answer, await envelope.wait())
            with trio.move_on_after(SETTLE_S):
                return cast(Answer, await envelope.wait())
            raise DeadlineExceeded(
                f"{self.owner} had not finished {type(message).__name__} when its deadline passed",
                outcome="unknown",
                actor=self.owner,
                epoch=self.epoch,
                hint="repeat it with the same request_id: if it took effect, the first result is returned",
            )
        finally:
            self._withdraw(envelope)

    def tell(self, message: Message, *, deadline_ns: int) -> bool:
        """Send a message that nobody waits for; say whether it was accepted."""
        if isinstance(message, self._conflated) and self._waits_already(message):
            return True
        try:
            self._accept(Envelope(message, deadline_ns, self._tray_of(message)))
        except BulkheadError:
            return False
        return True

    def _waits_already(self, message: Message) -> bool:
        return any(each.message == message for each in self._trays.get(self._tray_of(message), ()))

    async def _post(self, envelope: Envelope) -> Envelope:
        give_up = trio.current_time() + min(self.wait_ms / 1000, seconds_until(envelope.deadline_ns))
        while True:
            try:
                self._accept(envelope)
                return envelope
            except Overloaded:
                if trio.current_time() >= give_up:
                    raise
                with trio.move_on_at(give_up):
                    await self._left.wait()

    def _accept(self, envelope: Envelope) -> None:
        if self._refusal is not None:
            raise self._refusal()
        now_ns = time.monotonic_ns()
        if envelope.expired(now_ns):
            self._expired += 1
            raise self._too_late(envelope)
        if self._restart_eta_ns > envelope.deadline_ns:
            raise ActorRestarting(
                f"{self.owner} is restarting and will not be back before the deadline",
                actor=self.owner,
                epoch=self.epoch,
                retry_after_ms=_clamp_retry((self._restart_eta_ns - now_ns) / 1e6),
            )
        self._refuse_hopeless(envelope, now_ns)
        if not self.quarantine.empty:
            self._refuse_poison(envelope)
        if not self._has_room(envelope) and not self._make_room(envelope, now_ns):
            raise self._overloaded(envelope)
        self._put(envelope, front=False)

    def _refuse_hopeless(self, envelope: Envelope, now_ns: int) -> None:
        """Refuse what has less time left than its kind takes: it would only keep others waiting."""
        kind, remaining_ns = type(envelope.message), envelope.deadline_ns - now_ns
        if self._times is not None and not self._times.suffices(kind, remaining_ns):
            self._expired += 1
            raise DeadlineExceeded(
                f"{kind.__name__} has {remaining_ns / 1e6:.1f} ms left and takes {self.owner} "
                f"{self._times.median_ns(kind) / 1e6:.1f} ms (median of late)",
                outcome="not_executed",
                actor=self.owner,
                epoch=self.epoch,
                retry_after_ms=self.retry_after_ms(),
                hint="give it a later deadline_ms",
            )

    def _has_room(self, envelope: Envelope) -> bool:
        own_max = self._own_bounds.get(envelope.tray)
        if own_max is not None:
            return len(self._trays.get(envelope.tray, ())) < own_max
        if self._count >= self.count_max:
            return False
        return not self._count or self._bytes + len(envelope.body) <= self.bytes_max

    def _make_room(self, envelope: Envelope, now_ns: int) -> bool:
        """Refuse what has the least right to its place; False when that is the newcomer."""
        if envelope.tray in self._own_bounds:
            return False
        for expired in [each for each in self._all_waiting() if each.expired(now_ns)]:
            self._take_out(expired)
            self._expired += 1
            expired.reject(self._too_late(expired))
        while not self._has_room(envelope):
            victim = self._victim(envelope)
            if victim is None:
                return False
            self._take_out(victim)
            victim.reject(self._overloaded(victim))
        return True

    def _victim(self, envelope: Envelope) -> Envelope | None:
        tray = self._trays.get(envelope.tray)
        if tray is None:
            return None
        if self._shed == "greediest":
            return tray.last_of_greedier(envelope.client)
        # Of the greediest client only: a modest one that has waited for its turn has little time left by then, and
        # whoever asks with the latest deadlines would push all others out.
        poorest = min(tray.of_greediest(envelope.client), key=lambda each: each.deadline_ns, default=None)
        if poorest is None or (poorest.client == envelope.client and poorest.deadline_ns >= envelope.deadline_ns):
            return None
        return poorest

    def _overloaded(self, envelope: Envelope) -> Overloaded:
        self._refused += 1
        own_max = self._own_bounds.get(envelope.tray)
        if own_max is not None:
            held = f"{own_max} messages in its {envelope.tray} tray (limit {own_max})"
        else:
            held = f"{self._count} messages, {self._bytes} bytes (limits {self.count_max} and {self.bytes_max})"
        return Overloaded(
            f"mailbox of {self.owner} is full: {held}",
            actor=self.owner,
            epoch=self.epoch,
            retry_after_ms=self.retry_after_ms(),
        )

    def _put(self, envelope: Envelope, *, front: bool) -> None:
        tray = self._trays.setdefault(envelope.tray, Tray())
        if front:
            tray.put_back(envelope)
        else:
            tray.put(envelope)
        if envelope.tray not in self._own_bounds:
            self._count += 1
            self._bytes += len(envelope.body)
            self._peak = max(self._peak, self._count)
        self._arrived.setdefault(envelope.tray, trio.Event()).set()

    def _withdraw(self, envelope: Envelope) -> bool:
        """Take an envelope back that still waits; False when it is in hand or answered."""
        if envelope.done or id(envelope) in self._in_hand:
            return False
        return self._take_out(envelope)

    def _take_out(self, envelope: Envelope) -> bool:
        tray = self._trays.get(envelope.tray)
        if tray is None or not tray.remove(envelope):
            return False
        self._removed(envelope)
        return True

    def _removed(self, envelope: Envelope) -> None:
        if envelope.tray not in self._own_bounds:
            self._count -= 1
            self._bytes -= len(envelope.body)
            assert self._count >= 0 and self._bytes >= 0
        self._left.set()
        self._left = trio.Event()

    def _too_late(self, envelope: Envelope) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"the deadline of {type(envelope.message).__name__} passed before {self.owner} took it",
            outcome="not_executed",
            actor=self.owner,
            epoch=self.epoch,
            retry_after_ms=self.retry_after_ms(),
        )

    def retry_after_ms(self) -> int:
        """Estimate when there will be room: what waits, times how long one takes."""
        return _clamp_retry(self._count * self._service_ns / 1e6)

    # ------------------------------------------------------------ the actor's side

    async def take(self, tray: str = DEFAULT_TRAY) -> Envelope:
        """Wait for the next envelope of a tray and take it in hand; expired ones are refused on the way."""
        while True:
            envelope = self.take_nowait(tray)
            if envelope is not None:
                # A cancellation may still be delivered at the caller's next checkpoint: it is in hand already,
                # so the supervisor settles it like any other.
                return envelope
            arrived = self._arrived.get(tray)
            if arrived is None or arrived.is_set():  # else somebody waits on it already and must not lose it
                arrived = self._arrived[tray] = trio.Event()
            await arrived.wait()

    def take_nowait(self, tray: str = DEFAULT_TRAY) -> Envelope | None:
        """Take the next envelope of a tray in hand, or return None when there is none that may be taken now."""
        waiting = self._trays.get(tray)
        while waiting is not None and self._may_take(waiting.peek()) and (envelope := waiting.pop()) is not None:
            self._removed(envelope)
            now_ns = time.monotonic_ns()
            if envelope.expired(now_ns):
                self._expired += 1
                envelope.reject(self._too_late(envelope))
                continue
            envelope.taken_ns = now_ns
            self._in_hand[id(envelope)] = envelope
            return envelope
        return None

    def _may_take(self, following: Envelope | None) -> bool:
        """Say whether an envelope may be taken beside what is in hand.

        What was in hand at a death is taken alone, whatever tray it is in: if there is another death, it was the
        cause, and nobody who happened to be there is condemned with it. Control messages do not wait for that.
        """
        if following is None or following.tray == CONTROL_TRAY or not self._in_hand:
            return True
        suspects = any(each.attempts for each in self._in_hand.values())
        return not suspects and not following.attempts

    def peek(self, tray: str = DEFAULT_TRAY) -> Envelope | None:
        """Return the next envelope of a tray without taking it."""
        waiting = self._trays.get(tray)
        return waiting.peek() if waiting is not None else None

    def finish(self, envelope: Envelope, value: msgspec.Struct) -> None:
        """Answer an envelope that is in hand."""
        self._let_go(envelope)
        self.served += 1
        envelope.resolve(value)

    def refuse(self, envelope: Envelope, error: BulkheadError) -> None:
        """Answer an envelope that is in hand with an error."""
        self._let_go(envelope)
        if error.actor is None:
            error.actor, error.epoch = self.owner, self.epoch
        envelope.reject(error)

    def _let_go(self, envelope: Envelope) -> None:
        if self._in_hand.pop(id(envelope), None) is not None:
            self._wake_takers()
            taken = time.monotonic_ns() - envelope.taken_ns
            self._service_ns += SERVICE_WEIGHT * (taken - self._service_ns)
            if self._times is not None:
                self._times.note(type(envelope.message), taken)
        if envelope.attempts or self.quarantine.suspicious:
            self.quarantine.acquit(envelope.key)

    def _wake_takers(self) -> None:
        """Let those look again who could not take what waited beside what was in hand."""
        for tray, arrived in self._arrived.items():
            if self._trays.get(tray):
                arrived.set()

    # ------------------------------------------------------------ the supervisor's side

    def open_for(self, epoch: int) -> None:
        """Lend the mailbox to a new incarnation."""
        self.epoch = epoch
        self._refusal = None
        self._restart_eta_ns = 0

    def refuse_all(self, refusal: Callable[[], BulkheadError]) -> None:
        """Refuse new mail from now on, and what waits, with this error."""
        self._refusal = refusal
        for envelope in list(self._all_waiting(controls=True)):
            self._take_out(envelope)
            envelope.reject(refusal())

    def close(self) -> None:
        """Refuse new mail because the daemon is shutting down; what is queued is still worked off."""
        self._refusal = lambda: ShuttingDown("the daemon is shutting down", actor=self.owner, epoch=self.epoch)

    def settle(self, cause: str, *, restart_eta_ns: int, culprit: bytes | None = None, blameless: bool = False) -> None:
        """Settle everything that a dead incarnation had in hand, and bridge the time to the next one.

        What may be repeated and has time left goes back to the front of its tray; the second death with the same
        message makes it poison. The rest is refused with ActorDied at once. Mail that waits stays, unless its
        deadline passes before the next incarnation can be there. `culprit` is the body of the message that is known
        to have caused the death; without it everything in hand is suspect, unless the death is known to have another
        cause (`blameless`).
        """
        self._restart_eta_ns = restart_eta_ns
        in_hand, self._in_hand = list(self._in_hand.values()), {}
        self._wake_takers()
        known = any(envelope.body == culprit for envelope in in_hand)
        suspects = [each for each in in_hand if not each.done and (each.body == culprit if known else not blameless)]
        self._blame(suspects, cause)
        for envelope in reversed(in_hand):
            self._settle_one(envelope, cause, restart_eta_ns)
        for envelope in list(self._all_waiting(controls=True)):
            if envelope.deadline_ns < restart_eta_ns:
                self._take_out(envelope)
                envelope.reject(
                    ActorRestarting(
                        f"{self.owner} died ({cause}) and will not be back before the deadline",
                        actor=self.owner,
                        epoch=self.epoch,
                        retry_after_ms=_clamp_retry((restart_eta_ns - time.monotonic_ns()) / 1e6),
                    )
                )

    def _blame(self, suspects: list[Envelope], cause: str) -> None:
        """Note a death with these in hand: once for each content, however many askers sent the same."""
        for key, envelope in {each.key: each for each in suspects}.items():
            kind = type(envelope.message).__name__
            if self.quarantine.blame(key, actor=self.owner, kind=kind, size=len(envelope.body), cause=cause):
                self._poisoned += 1
        for envelope in suspects:
            envelope.attempts += 1  # from now on it is taken alone

    def _settle_one(self, envelope: Envelope, cause: str, restart_eta_ns: int) -> None:
        if envelope.done:
            return
        envelope.uncertain = True
        kind = type(envelope.message).__name__
        condemned = self.quarantine.find(envelope.key) if envelope.attempts else None
        if condemned is not None:
            envelope.reject(self._poison_error(condemned))
            return
        if envelope.message.may_repeat() and envelope.deadline_ns > restart_eta_ns:
            self._redelivered += 1
            self._put(envelope, front=True)
            return
        envelope.reject(
            ActorDied(
                f"{self.owner} died ({cause}) with {kind} in hand",
                actor=self.owner,
                epoch=self.epoch,
                retry_after_ms=_clamp_retry((restart_eta_ns - time.monotonic_ns()) / 1e6),
                hint="repeat it with the same request_id: if it took effect, the first result is returned",
            )
        )

    def _refuse_poison(self, envelope: Envelope) -> None:
        condemned = self.quarantine.find(envelope.key)
        if condemned is not None and condemned.actor == self.owner:
            raise self._poison_error(condemned)

    def _poison_error(self, condemned: Condemned) -> PoisonMessage:
        return PoisonMessage(
            f"{self.owner} died {DEATHS_MAX} times with this {condemned.kind} in hand (last: {condemned.causes[-1]}); "
            "it is not tried again",
            outcome="unknown",
            actor=self.owner,
            epoch=self.epoch,
            hint=f"after the cause is removed: bulkhead poison clear {condemned.key}",
        )

    def _all_waiting(self, *, controls: bool = False) -> Iterable[Envelope]:
        """Return what waits in the trays that share the common bound, with `controls` in all."""
        for name, tray in self._trays.items():
            if controls or name not in self._own_bounds:
                yield from tray

    @property
    def idle(self) -> bool:
        """Say whether nothing waits and nothing is in hand."""
        return not self._in_hand and not any(self._trays.values())

    def statistics(self) -> MailboxStatistics:
        """Return the counters."""
        now_ns = time.monotonic_ns()
        oldest = min((envelope.taken_ns for envelope in self._in_hand.values()), default=now_ns)
        return MailboxStatistics(
            count=self._count,
            count_max=self.count_max,
            bytes=self._bytes,
            bytes_max=self.bytes_max,
            peak=self._peak,
            in_hand=len(self._in_hand),
            in_hand_ms=round((now_ns - oldest) / 1e6, 1),
            service_ms=round(self._service_ns / 1e6, 3),
            refused=self._refused,
            expired=self._expired,
            redelivered=self._redelivered,
            poisoned=self._poisoned,
        )


def seconds_until(deadline_ns: int) -> float:
    """Return the seconds from now to an absolute deadline, at least 0.

    Invariant: deadlines are CLOCK_MONOTONIC everywhere; trio's clock has an offset of its own and is only used
    for the relative wait.
    """
    return max(0.0, (deadline_ns - time.monotonic_ns()) / 1e9)


def deadline_after(seconds: float) -> int:
    """Return the absolute deadline that many seconds from now."""
    return time.monotonic_ns() + math.ceil(seconds * 1e9)


def _wall_us() -> int:
    return time.time_ns() // 1000


def _clamp_retry(milliseconds: float) -> int:
    return int(max(RETRY_AFTER_MS_MIN, min(RETRY_AFTER_MS_MAX, milliseconds)))
