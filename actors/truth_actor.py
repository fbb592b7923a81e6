"""An actor whose worker keeps a truth: it can serve a damaged one in part, and have it restored by command.

A worker that found its files damaged says so when it is ready; the actor is then DEGRADED without the capability to
write. `RestoreTruth` comes through the control tray, so it is taken whatever else waits: the worker is retired, a
worker in maintenance mode does the work, and an ordinary one starts again on what it made. Meanwhile reads and writes
are refused at once. One incarnation does all of that, so a restore is no death.

An actor that can't even start is quarantined; the supervisor lets it go with the order waiting in its mailbox
(`Supervisor.release`), so the order is looked for before the first worker is started.
"""

from typing import NoReturn

import msgspec
import trio

from actors.actor import Answer, House, StorageActor
from actors.envelope import Envelope
from actors.errors import ActorDied, ActorRestarting, BulkheadError
from actors.mailbox import CONTROL_TRAY
from actors.messages.base import Message, Row
from actors.messages.core_writer import RestoreTruth
from actors.settings import RoomSetup
from actors.worker import OnReport, WorkerDied, WorkerSpec

# How long calls under way are given before their worker goes.
RETIRE_S = 5.0
RETRY_AFTER_MS = 1000


class TruthActor(StorageActor):
    """A storage actor that obeys `RestoreTruth`. Its mailbox must sort that message into the control tray."""

    def __init__(self, house: House, spec: WorkerSpec) -> None:
        super().__init__(house, spec)
        self.quarantined: str | None = None  # what was found, while only reads are served
        self._restoring = False
        self._announced = False

    async def run(self) -> None:
        """Serve until cancelled, with a break for each restore that is ordered."""
        order = self.house.mailbox.take_nowait(CONTROL_TRAY)
        self._restoring = order is not None
        async with trio.open_nursery() as nursery:
            if order is None:
                await self._open(nursery)
            nursery.start_soon(self._serve_reads)
            nursery.start_soon(self.serve_writes)
            nursery.start_soon(self.beat)
            while True:
                if order is not None:
                    await self._restore(order, nursery)
                    await self._open(nursery)
                order = await self.house.mailbox.take(CONTROL_TRAY)
                self._restoring = True
                await self.worker.retire(pending_s=RETIRE_S)

    async def relay(self, envelope: Envelope) -> None:
        """Pass an envelope to the worker, unless there is none to pass it to."""
        self._refuse_while_restoring()
        try:
            await super().relay(envelope)
        except WorkerDied as death:
            self._excuse(death)

    async def work(
        self, message: Message, answer: type[Answer], *, deadline_ns: int, on_report: OnReport | None = None
    ) -> Answer:
        """Make a call of the actor's own."""
        self._refuse_while_restoring()
        try:
            return await super().work(message, answer, deadline_ns=deadline_ns, on_report=on_report)
        except WorkerDied as death:
            self._excuse(death)

    # ------------------------------------------------------------ opening

    async def _open(self, nursery: trio.Nursery) -> None:
        """Start the ordinary worker and say in public how much of the truth it can serve."""
        self.worker = await self.house.start_worker(self.spec, nursery)
        info = self.worker.info
        self.house.log.info("ready", extra={"epoch": self.house.epoch, "pid": self.worker.pid})
        self._restoring = False
        self._announce()
        finding = info.get("quarantined")
        self.quarantined = str(finding) if finding else None
        if info.get("read_only"):
            nursery.start_soon(self._wait_for_room, info["read_only"])
        elif self.quarantined is None:
            self.house.degraded(None)
        else:
            refused, aside = info.get("refused"), info.get("set_aside")
            self.house.log.error(
                "quarantined",
                extra={"actor": self.house.name, "reason": f"{finding}; refused tables: {refused or 'none'}; {aside}"},
            )
            self.house.degraded(f"quarantined: {finding}", without=("write",))

    async def _wait_for_room(self, reason: object) -> None:
        """Say in public that only reads are served until the disk has room for the first write."""
        self.house.degraded(f"read-only: {reason}", without=("write",))
        await self.wait_until_writer()
        self.house.degraded(None)

    def _announce(self) -> None:
        """Tell the supervisor once that this incarnation works."""
        if not self._announced:
            self._announced = True
            self.house.ready()

    # ------------------------------------------------------------ restoring

    async def _restore(self, order: Envelope, nursery: trio.Nursery) -> None:
        """Let a worker in maintenance mode do what was ordered, and answer. A failure has changed nothing."""
        self._announce()
        self.house.degraded("being restored by command", without=("read", "write"))
        worker = await self.house.start_worker(self._maintenance(), nursery)
        try:
            answer = await worker.call(order.message, Row, deadline_ns=order.deadline_ns, body=order.body)
        except BulkheadError as error:
            self.house.log.error("not restored", extra={"actor": self.house.name, "error": error.message})
            self.house.mailbox.refuse(order, error)
        else:
            self.house.log.warning("restored", extra={"actor": self.house.name})
            self.house.mailbox.finish(order, answer)
        await worker.retire()

    def _maintenance(self) -> WorkerSpec:
        setup = msgspec.msgpack.decode(self.spec.settings, type=RoomSetup)
        settings = msgspec.msgpack.encode(msgspec.structs.replace(setup, restoring=True))
        return msgspec.structs.replace(self.spec, settings=msgspec.Raw(settings))

    def _refuse_while_restoring(self) -> None:
        if self._restoring:
            raise ActorRestarting(f"{self.house.name} is being restored", retry_after_ms=RETRY_AFTER_MS)

    def _excuse(self, death: WorkerDied) -> NoReturn:
        """Turn the death of a worker that was retired into an answer; any other one ends the incarnation."""
        if not self._restoring:
            raise death
        raise ActorDied(f"{self.house.name} is being restored; a call under way was cut off") from death


def is_order(message: Message) -> bool:
    """Say whether a message belongs into the control tray."""
    return isinstance(message, RestoreTruth)
