"""What an actor is, and the loop that the three storage actors share.

An actor is a trio task that borrows a mailbox from the supervisor. It decides; its worker process does. When its
`run` raises, the incarnation is over: whatever it had in hand is settled by the supervisor, and the next
incarnation starts with a new epoch on the same mailbox.

`House` is what an actor may use of the outside world: mailboxes of the actors it is allowed to ask (the graph is
data in `supervisor/roster.py`), a way to start workers that the watchdog knows of, and its notice board.
"""

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Generic, Protocol, TypeVar

import msgspec
import trio

from actors.envelope import Envelope
from actors.errors import BulkheadError
from actors.mailbox import Mailbox
from actors.messages.base import Message, Statistics
from actors.messages.core_writer import CoreStatus
from actors.messages.transcript_appender import TranscriptStatus
from actors.quarantine import Quarantine
from actors.understudy import Understudies
from actors.worker import OnReport, Worker, WorkerSpec

UNDERSTUDY_AFTER_S = 0.2
WRITER_LOOK_S = 0.5
WRITER_ASK_S = 5.0

Answer = TypeVar("Answer", bound=msgspec.Struct)
Notice = TypeVar("Notice", bound=msgspec.Struct)


STATUS_OF: dict[str, Message] = {"transcript_appender": TranscriptStatus(), "core_writer": CoreStatus()}


class Board(Generic[Notice]):
    """The last thing an actor made public about itself; readable by everybody while the actor is dead.

    It outlives the incarnations, so it is also where one keeps what its successor must know.
    """

    def __init__(self, notice: Notice) -> None:
        self.notice = notice
        self._changed = trio.Event()

    def post(self, notice: Notice) -> None:
        """Replace the notice and wake those who wait for a change."""
        self.notice = notice
        self._changed.set()
        self._changed = trio.Event()

    @property
    def change(self) -> trio.Event:
        """The next post, for those who wait for it in a task of its own: taken at the look, it misses nothing."""
        return self._changed

    async def wait_changed(self) -> None:
        """Wait for the next post. Call it right after the look, with nothing awaited in between."""
        await self._changed.wait()


async def wait_any(*events: trio.Event) -> None:
    """Wait until one of these is set.

    They are events and not functions that wait for one: a task begins to wait a moment after it was started, and what
    is replaced when it is set (`Board.change`) would be looked up too late then.
    """
    async with trio.open_nursery() as nursery:

        async def end_with(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel("one is set")

        for event in events:
            nursery.start_soon(end_with, event)


class House:
    """What one incarnation may use: its mailbox, those it may ask, its workers, its log."""

    def __init__(
        self,
        *,
        name: str,
        epoch: int,
        mailbox: Mailbox,
        others: Mapping[str, Mailbox],
        workers: list[Worker],
        started: Callable[[], None],
        degraded: Callable[[str | None, tuple[str, ...]], None],
        understudies: Understudies | None = None,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.mailbox = mailbox
        self._others = others
        self._workers = workers
        self._started = started
        self._degraded = degraded
        self._understudies = understudies or Understudies()
        self.log = logging.getLogger(f"bulkhead.{name}")

    @property
    def quarantine(self) -> Quarantine:
        """Return the messages that were in hand at deaths, of the whole house."""
        return self.mailbox.quarantine

    async def ask(self, actor: str, message: Message, answer: type[Answer], *, deadline_ns: int) -> Answer:
        """Ask another actor; only those that the roster allows are there."""
        return await self._others[actor].ask(message, answer, deadline_ns=deadline_ns)

    def tell(self, actor: str, message: Message, *, seconds: float = 30.0) -> bool:
        """Give another actor a hint; False when its mailbox did not take it."""
        return self._others[actor].tell(message, deadline_ns=time.monotonic_ns() + int(seconds * 1e9))

    async def wait_for_truth(self, *actors: str, seconds: float) -> None:
        """Wait until these actors answer, for a while: at the start of the daemon the truth goes first.

        Nothing depends on it. But what is derived takes seconds of CPU to load, and on a small machine the first
        append and the first search would wait behind that.
        """
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9)
        for actor, message in STATUS_OF.items():
            if actor in actors:
                with contextlib.suppress(BulkheadError):
                    await self.ask(actor, message, Statistics, deadline_ns=deadline_ns)

    async def start_worker(self, spec: WorkerSpec, nursery: trio.Nursery) -> Worker:
        """Start a worker in the nursery, known to the watchdog, and wait until it is ready."""
        worker = Worker(spec, epoch=self.epoch, process=self._understudies.take(spec))

        async def live(*, task_status: trio.TaskStatus[Worker]) -> None:
            self._workers.append(worker)
            try:
                await worker.run(task_status=task_status)
            finally:
                self._workers.remove(worker)

        started: Worker = await nursery.start(live)
        if spec.understudy:
            nursery.start_soon(self._prepare_understudy, spec)
        return started

    async def _prepare_understudy(self, spec: WorkerSpec) -> None:
        """Start the process of the next incarnation once this one has had the CPU to itself for a while."""
        await trio.sleep(UNDERSTUDY_AFTER_S)
        self._understudies.prepare(spec)

    def ready(self) -> None:
        """Tell the supervisor that this incarnation works."""
        self._started()

    def degraded(self, reason: str | None, *, without: tuple[str, ...] = ()) -> None:
        """Tell the supervisor that it works with a limitation (None: without), and which capabilities that takes."""
        self._degraded(reason, without)


class Actor(Protocol):
    """One incarnation of an actor."""

    async def run(self) -> None:
        """Work until cancelled. Call `house.ready()` once mail can be served; raise to end the incarnation."""
        ...


async def serve_tray(
    mailbox: Mailbox,
    tray: str,
    serve: Callable[[Envelope], Awaitable[None]],
    *,
    at_once: int,
) -> None:
    """Take envelopes of a tray and serve them, at most `at_once` at a time. Envelopes that survived a death go alone.

    Serving one by one what was in hand at a death keeps an innocent message from being condemned with the guilty.
    """
    slots = trio.CapacityLimiter(at_once)

    async def serve_one(envelope: Envelope, slot: object) -> None:
        try:
            await serve(envelope)
        except BulkheadError as error:
            mailbox.refuse(envelope, error)
        finally:
            slots.release_on_behalf_of(slot)

    async with trio.open_nursery() as nursery:
        while True:
            slot = object()
            await slots.acquire_on_behalf_of(slot)
            envelope = await mailbox.take(tray)
            if envelope.attempts:
                await serve_one(envelope, slot)
            else:
                nursery.start_soon(serve_one, envelope, slot)


SEARCH_TRAY = "search"
BACKUP_TRAY = "backup"


class StorageActor:
    """An actor whose whole work is done by one worker: writes one after the other, reads beside them."""

    READ_TRAYS: tuple[str, ...] = ("read",)
    READS_AT_ONCE = 8  # of each of these trays
    WRITES_AT_ONCE = 2  # one in the worker, one on its way: the worker's write lane does them one by one

    def __init__(self, house: House, spec: WorkerSpec) -> None:
        self.house = house
        self.spec = spec
        self.worker: Worker

    async def run(self) -> None:
        """Start the worker, then serve both trays until it dies."""
        async with trio.open_nursery() as nursery:
            self.worker = await self.house.start_worker(self.spec, nursery)
            self.house.log.info("ready", extra={"epoch": self.house.epoch, "pid": self.worker.pid})
            self.house.ready()
            nursery.start_soon(self._serve_reads)
            nursery.start_soon(self.serve_writes)
            nursery.start_soon(self.beat)

    async def _serve_reads(self) -> None:
        async with trio.open_nursery() as nursery:
            for tray in self.READ_TRAYS:
                nursery.start_soon(
                    partial(serve_tray, self.house.mailbox, tray, self.relay, at_once=self.READS_AT_ONCE)
                )

    async def serve_writes(self) -> None:
        """Serve the tray of writes; the transcript replaces this by group commit."""
        await serve_tray(self.house.mailbox, "write", self.relay, at_once=self.WRITES_AT_ONCE)

    async def beat(self) -> None:
        """Do what is to be done from time to time; nothing by default."""

    async def relay(self, envelope: Envelope) -> None:
        """Pass an envelope to the worker, undecoded, and its answer back."""
        message = envelope.message
        answer = await self.worker.call(
            message, type(message).answer, deadline_ns=envelope.deadline_ns, body=envelope.body
        )
        self.house.mailbox.finish(envelope, answer)

    async def wait_until_writer(self) -> None:
        """Wait until the worker of a truth that started on a full disk has become the writer of its file."""
        while True:
            await trio.sleep(WRITER_LOOK_S)
            with contextlib.suppress(BulkheadError):
                deadline_ns = time.monotonic_ns() + int(WRITER_ASK_S * 1e9)
                status = await self.work(STATUS_OF[self.house.name], Statistics, deadline_ns=deadline_ns)
                if status.values.get("read_only") is None:
                    return

    async def work(
        self, message: Message, answer: type[Answer], *, deadline_ns: int, on_report: OnReport | None = None
    ) -> Answer:
        """Make a call of the actor's own."""
        return await self.worker.call(message, answer, deadline_ns=deadline_ns, on_report=on_report)
