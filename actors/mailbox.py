"""Bounded mailboxes: how anything is said to an actor, and how its answer comes back.

The supervisor owns every mailbox; an incarnation of the actor only borrows it. So mail that waits survives a
crash, and what the dead incarnation had in hand is known exactly and can be settled at once.

Promises:
* full means refused, at once, with a `retry_after_ms`; nothing ever waits for room unless `wait_ms` says so.
* every envelope is answered exactly once; a later answer is dropped (the asker may have left).
* an envelope whose deadline passed while it waited is refused without work.
* `ask` returns by the deadline plus `SETTLE_S`, whatever the actor does.

A mailbox has trays, so that an actor can take its writes and its reads separately under one common bound.
"""

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

import msgspec
import trio

from actors.errors import (
    ActorDied,
    ActorRestarting,
    BulkheadError,
    DeadlineExceeded,
    Overloaded,
    PoisonMessage,
    ShuttingDown,
)
from actors.messages import Message

Answer = TypeVar("Answer", bound=msgspec.Struct)

# How long an asker waits beyond its deadline for a definite outcome: the worker is interrupted at the deadline and
# mostly answers "rolled back" within this time, which is worth more to the caller than "unknown".
SETTLE_S = 0.2
DEATHS_MAX = 2
POISON_KEPT = 256
SERVICE_WEIGHT = 0.1
RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX = 10, 5000
DEFAULT_TRAY = ""


class Envelope:
    """One message, its deadline, and the slot for its answer."""

    __slots__ = ("_done", "_error", "_value", "attempts", "body", "deadline_ns", "key", "message", "taken_ns", "tray")

    def __init__(self, message: Message, deadline_ns: int, tray: str) -> None:
        self.message = message
        self.body = msgspec.msgpack.encode(message)
        self.deadline_ns = deadline_ns
        self.tray = tray
        self.attempts = 0  # how many incarnations died with this in hand
        self.taken_ns = 0
        self.key = b""
        self._done = trio.Event()
        self._value: msgspec.Struct | None = None
        self._error: BulkheadError | None = None

    @property
    def done(self) -> bool:
        """Say whether it has been answered."""
        return self._done.is_set()

    def expired(self, now_ns: int) -> bool:
        """Say whether the deadline has passed."""
        return now_ns >= self.deadline_ns

    def resolve(self, value: msgspec.Struct) -> None:
        """Answer it. Only the first answer counts."""
        if not self.done:
            self._value = value
            self._done.set()

    def reject(self, error: BulkheadError) -> None:
        """Answer it with an error. Only the first answer counts."""
        if not self.done:
            self._error = error
            self._done.set()

    async def wait(self) -> msgspec.Struct:
        """Wait for the answer and return it, or raise the error it was answered with."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value


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
    ) -> None:
        self.owner = owner
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.wait_ms = wait_ms
        self.epoch = 0
        self._tray_of = tray_of
        self._trays: dict[str, deque[Envelope]] = {}
        self._arrived: dict[str, trio.Event] = {}
        self._left = trio.Event()
        self._in_hand: dict[int, Envelope] = {}
        # Invariant: equals the number and the body bytes of the envelopes in all trays.
        self._count = 0
        self._bytes = 0
        self._peak = 0
        self._service_ns = 0.0
        self._refused = self._expired = self._redelivered = self._poisoned = 0
        self._refusal: Callable[[], BulkheadError] | None = None
        self._restart_eta_ns = 0
        self._deaths: dict[bytes, int] = {}
        self._poison: dict[bytes, str] = {}

    # ------------------------------------------------------------ the asker's side

    async def ask(
        self,
        message: Message,
        answer: type[Answer],
        *,
        deadline_ns: int,
        posted: Callable[[], None] | None = None,
    ) -> Answer:
        """Send a message and wait for its answer, at most to the deadline plus `SETTLE_S`.

        `posted` is called once the message has its place in the queue: who asks several things in an order keeps
        it by posting one after the other.

        Raises the operating error that the actor answered with; Overloaded, ActorUnavailable, ActorRestarting,
        PoisonMessage or ShuttingDown at once when the message is not accepted; DeadlineExceeded when time ran
        out. When the asker is cancelled, a message that still waits is withdrawn; one in hand goes on.
        """
        envelope = await self._post(message, deadline_ns)
        if posted is not None:
            posted()
        try:
            with trio.move_on_after(seconds_until(deadline_ns)):
                return cast(Answer, await envelope.wait())
            if self._withdraw(envelope):
                raise self._too_late(envelope)
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
        try:
            self._accept(Envelope(message, deadline_ns, self._tray_of(message)))
        except BulkheadError:
            return False
        return True

    async def _post(self, message: Message, deadline_ns: int) -> Envelope:
        envelope = Envelope(message, deadline_ns, self._tray_of(message))
        give_up = trio.current_time() + min(self.wait_ms / 1000, seconds_until(deadline_ns))
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
        if self._poison:
            self._refuse_poison(envelope)
        if self._count >= self.count_max or (self._count and self._bytes + len(envelope.body) > self.bytes_max):
            self._refused += 1
            raise Overloaded(
                f"mailbox of {self.owner} is full: {self._count} messages, {self._bytes} bytes "
                f"(limits {self.count_max} and {self.bytes_max})",
                actor=self.owner,
                epoch=self.epoch,
                retry_after_ms=self.retry_after_ms(),
            )
        self._put(envelope, front=False)

    def _put(self, envelope: Envelope, *, front: bool) -> None:
        tray = self._trays.setdefault(envelope.tray, deque())
        if front:
            tray.appendleft(envelope)
        else:
            tray.append(envelope)
        self._count += 1
        self._bytes += len(envelope.body)
        self._peak = max(self._peak, self._count)
        self._arrived.setdefault(envelope.tray, trio.Event()).set()

    def _withdraw(self, envelope: Envelope) -> bool:
        """Take an envelope back that still waits; False when it is in hand or answered."""
        tray = self._trays.get(envelope.tray)
        if envelope.done or id(envelope) in self._in_hand or tray is None or envelope not in tray:
            return False
        tray.remove(envelope)
        self._removed(envelope)
        return True

    def _removed(self, envelope: Envelope) -> None:
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
        """Take the next envelope of a tray in hand, or return None when there is none."""
        waiting = self._trays.get(tray)
        while waiting:
            envelope = waiting.popleft()
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

    def peek(self, tray: str = DEFAULT_TRAY) -> Envelope | None:
        """Return the next envelope of a tray without taking it."""
        waiting = self._trays.get(tray)
        return waiting[0] if waiting else None

    def finish(self, envelope: Envelope, value: msgspec.Struct) -> None:
        """Answer an envelope that is in hand."""
        self._let_go(envelope)
        envelope.resolve(value)

    def refuse(self, envelope: Envelope, error: BulkheadError) -> None:
        """Answer an envelope that is in hand with an error."""
        self._let_go(envelope)
        if error.actor is None:
            error.actor, error.epoch = self.owner, self.epoch
        envelope.reject(error)

    def _let_go(self, envelope: Envelope) -> None:
        if self._in_hand.pop(id(envelope), None) is not None:
            taken = time.monotonic_ns() - envelope.taken_ns
            self._service_ns += SERVICE_WEIGHT * (taken - self._service_ns)
        if envelope.attempts:
            self._deaths.pop(self._key(envelope), None)

    # ------------------------------------------------------------ the supervisor's side

    def open_for(self, epoch: int) -> None:
        """Lend the mailbox to a new incarnation."""
        self.epoch = epoch
        self._refusal = None
        self._restart_eta_ns = 0

    def refuse_all(self, refusal: Callable[[], BulkheadError]) -> None:
        """Refuse new mail from now on, and what waits, with this error."""
        self._refusal = refusal
        for envelope in list(self._all_waiting()):
            self._trays[envelope.tray].remove(envelope)
            self._removed(envelope)
            envelope.reject(refusal())

    def close(self) -> None:
        """Refuse new mail because the daemon is shutting down; what is queued is still worked off."""
        self._refusal = lambda: ShuttingDown("the daemon is shutting down", actor=self.owner, epoch=self.epoch)

    def settle(self, cause: str, *, restart_eta_ns: int) -> None:
        """Settle everything that a dead incarnation had in hand, and bridge the time to the next one.

        What may be redelivered and has time left goes back to the front of its tray, once; the second death
        with the same message makes it poison. The rest is refused with ActorDied at once. Mail that waits stays,
        unless its deadline passes before the next incarnation can be there.
        """
        self._restart_eta_ns = restart_eta_ns
        in_hand, self._in_hand = list(self._in_hand.values()), {}
        for envelope in reversed(in_hand):
            self._settle_one(envelope, cause, restart_eta_ns)
        for envelope in list(self._all_waiting()):
            if envelope.deadline_ns < restart_eta_ns:
                self._trays[envelope.tray].remove(envelope)
                self._removed(envelope)
                envelope.reject(
                    ActorRestarting(
                        f"{self.owner} died ({cause}) and will not be back before the deadline",
                        actor=self.owner,
                        epoch=self.epoch,
                        retry_after_ms=_clamp_retry((restart_eta_ns - time.monotonic_ns()) / 1e6),
                    )
                )

    def _settle_one(self, envelope: Envelope, cause: str, restart_eta_ns: int) -> None:
        if envelope.done:
            return
        key = self._key(envelope)
        deaths = self._deaths[key] = self._deaths.get(key, 0) + 1
        while len(self._deaths) > POISON_KEPT:
            self._deaths.pop(next(iter(self._deaths)))
        envelope.attempts += 1
        if deaths >= DEATHS_MAX:
            self._condemn(key, cause)
            envelope.reject(self._poison_error(type(envelope.message).__name__, cause))
        elif type(envelope.message).redeliver and envelope.deadline_ns > restart_eta_ns:
            self._redelivered += 1
            self._put(envelope, front=True)
        else:
            envelope.reject(
                ActorDied(
                    f"{self.owner} died ({cause}) with {type(envelope.message).__name__} in hand",
                    actor=self.owner,
                    epoch=self.epoch,
                    retry_after_ms=_clamp_retry((restart_eta_ns - time.monotonic_ns()) / 1e6),
                    hint="repeat it with the same request_id: if it took effect, the first result is returned",
                )
            )

    def _condemn(self, key: bytes, cause: str) -> None:
        self._poisoned += 1
        self._poison[key] = cause
        self._deaths.pop(key, None)
        while len(self._poison) > POISON_KEPT:
            self._poison.pop(next(iter(self._poison)))

    def _refuse_poison(self, envelope: Envelope) -> None:
        cause = self._poison.get(self._key(envelope))
        if cause is not None:
            raise self._poison_error(type(envelope.message).__name__, cause)

    def _poison_error(self, kind: str, cause: str) -> PoisonMessage:
        return PoisonMessage(
            f"{self.owner} died {DEATHS_MAX} times with this {kind} in hand (last: {cause}); it is not tried again",
            outcome="unknown",
            actor=self.owner,
            epoch=self.epoch,
        )

    def _key(self, envelope: Envelope) -> bytes:
        """Return the content hash of a message, so that a client's retry counts as the same message."""
        if not envelope.key:
            envelope.key = hashlib.blake2b(envelope.body, digest_size=16).digest()
        return envelope.key

    def _all_waiting(self) -> Iterable[Envelope]:
        for tray in self._trays.values():
            yield from tray

    @property
    def idle(self) -> bool:
        """Say whether nothing waits and nothing is in hand."""
        return self._count == 0 and not self._in_hand

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


def _clamp_retry(milliseconds: float) -> int:
    return int(max(RETRY_AFTER_MS_MIN, min(RETRY_AFTER_MS_MAX, milliseconds)))
