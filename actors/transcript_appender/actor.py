"""transcript_appender, the trio side: group commit.

One transaction with fsync costs the disk the same for one event as for sixty-four. While a batch is being
committed, the next one gathers in the mailbox; so a lone client pays no waiting time and many clients share one
fsync. Nothing is acknowledged before COMMIT has returned in the worker.

How far the transcript has been acknowledged is remembered for the life of the daemon and given to each new worker: a
segment that ends before that has lost its tail, whatever else it looks like.
"""

import contextlib

import msgspec

from actors.actor import BACKUP_TRAY, SEARCH_TRAY, House, StorageActor
from actors.envelope import Envelope
from actors.errors import BulkheadError, ErrorInfo, from_info
from actors.mailbox import deadline_after
from actors.messages.backup import BackUp, StopBackUp
from actors.messages.base import Message, Row, Statistics
from actors.messages.core_writer import RestoreTruth
from actors.messages.transcript_appender import (
    AppendBatch,
    AppendEvents,
    AppendOutcome,
    AppendResult,
    BatchResult,
    SearchEvents,
    TranscriptStatus,
)
from actors.settings import RoomSetup, TranscriptAppenderSettings
from actors.worker import WorkerSpec

STATUS_S = 5.0


class Acknowledged:
    """The highest seq that was acknowledged; it outlives the incarnations."""

    def __init__(self) -> None:
        self.seq = 0

    def note(self, result: AppendResult) -> None:
        """Take note of an answer that is about to be given."""
        if result.results:
            self.seq = max(self.seq, result.results[-1].seq)


def tray_of(message: Message) -> str:
    """Sort appends from everything else, and searches from what is quickly looked up."""
    if isinstance(message, SearchEvents):
        return SEARCH_TRAY
    if isinstance(message, BackUp | StopBackUp):
        return BACKUP_TRAY
    return "write" if isinstance(message, AppendEvents) else "read"


class TranscriptAppender(StorageActor):
    """One incarnation of transcript_appender."""

    READ_TRAYS = ("read", SEARCH_TRAY, BACKUP_TRAY)

    def __init__(
        self, house: House, spec: WorkerSpec, limits: TranscriptAppenderSettings, acknowledged: Acknowledged
    ) -> None:
        super().__init__(house, knowing(spec, acknowledged.seq))
        self._limits = limits
        self._acknowledged = acknowledged

    async def beat(self) -> None:
        """Say in public which segments are damaged, and that only reads are served until there is room to write."""
        damaged, read_only = (self.worker.info.get(name) for name in ("degraded", "read_only"))
        if read_only is not None:
            reasons = [f"read-only: {read_only}", *([] if damaged is None else [str(damaged)])]
            self.house.degraded("; ".join(reasons), without=("append",))
            await self.wait_until_writer()
        self._limit(damaged)

    async def relay(self, envelope: Envelope) -> None:
        """Pass an envelope to the worker, and its answer back."""
        if isinstance(envelope.message, RestoreTruth):
            await self._restore(envelope, envelope.message)
        else:
            await super().relay(envelope)

    async def _restore(self, envelope: Envelope, message: RestoreTruth) -> None:
        """Have a segment restored, and say in public what is still damaged before that is answered."""
        answer = await self.work(message, Row, deadline_ns=envelope.deadline_ns)
        with contextlib.suppress(BulkheadError):  # the restore is done all the same; the next start says it
            status = await self.work(TranscriptStatus(), Statistics, deadline_ns=deadline_after(STATUS_S))
            self._limit(status.values.get("degraded"))
        self.house.mailbox.finish(envelope, answer)

    def _limit(self, reason: object) -> None:
        self.house.degraded(None if reason is None else str(reason))

    async def serve_writes(self) -> None:
        """Commit what waits, as one transaction, again and again."""
        mailbox = self.house.mailbox
        while True:
            batch = self._gather(await mailbox.take("write"))
            try:
                await self._commit(batch)
            except BulkheadError as error:
                for envelope in batch:
                    mailbox.refuse(envelope, _copy(error))

    def _gather(self, first: Envelope) -> list[Envelope]:
        """Add to the first envelope what is already waiting, within the limits of a batch.

        An envelope that was in hand at a death is committed alone: if it is the cause, it takes nobody along.
        """
        batch, rows, size = [first], _rows(first), len(first.body)
        while not first.attempts:
            following = self.house.mailbox.peek("write")
            if following is None or following.attempts:
                break
            rows, size = rows + _rows(following), size + len(following.body)
            if rows > self._limits.batch_rows_max or size > self._limits.batch_bytes_max:
                break
            taken = self.house.mailbox.take_nowait("write")
            if taken is None:  # it had expired and was refused
                break
            batch.append(taken)
        return batch

    async def _commit(self, batch: list[Envelope]) -> None:
        appends = tuple(message for envelope in batch if isinstance(message := envelope.message, AppendEvents))
        assert len(appends) == len(batch)
        # The batch ends when its most patient member does; a member that expires earlier is told "unknown" by its
        # mailbox and finds the result under its request_id.
        deadline_ns = max(envelope.deadline_ns for envelope in batch)
        result = await self.work(AppendBatch(appends=appends), BatchResult, deadline_ns=deadline_ns)
        assert len(result.outcomes) == len(batch)
        for envelope, outcome in zip(batch, result.outcomes, strict=True):
            self._answer(envelope, outcome)

    def _answer(self, envelope: Envelope, outcome: AppendOutcome) -> None:
        if outcome.result is not None:
            self._acknowledged.note(outcome.result)
            self.house.mailbox.finish(envelope, outcome.result)
        else:
            assert outcome.error is not None
            info = msgspec.msgpack.decode(outcome.error, type=ErrorInfo)
            self.house.mailbox.refuse(envelope, from_info(info))


def knowing(spec: WorkerSpec, acknowledged: int) -> WorkerSpec:
    """Return the specification of a worker that knows what was acknowledged."""
    setup = msgspec.msgpack.decode(spec.settings, type=RoomSetup)
    settings = msgspec.msgpack.encode(msgspec.structs.replace(setup, acknowledged=acknowledged))
    return msgspec.structs.replace(spec, settings=msgspec.Raw(settings))


def _rows(envelope: Envelope) -> int:
    return len(envelope.message.events) if isinstance(envelope.message, AppendEvents) else 1


def _copy(error: BulkheadError) -> BulkheadError:
    """Make an exception of its own for each asker: a raised exception collects its raiser's traceback."""
    return from_info(error.info())
