"""transcript_appender, the trio side: group commit.

One transaction with fsync costs the disk the same for one event as for sixty-four. While a batch is being
committed, the next one gathers in the mailbox; so a lone client pays no waiting time and many clients share one
fsync. Nothing is acknowledged before COMMIT has returned in the worker.
"""

import msgspec

from actors.actor import House, StorageActor
from actors.errors import BulkheadError, ErrorInfo, from_info
from actors.mailbox import Envelope
from actors.messages import AppendBatch, AppendEvents, AppendOutcome, BatchResult, Message
from actors.settings import TranscriptAppenderSettings
from actors.worker import WorkerSpec


def tray_of(message: Message) -> str:
    """Sort appends from everything else."""
    return "write" if isinstance(message, AppendEvents) else "read"


class TranscriptAppender(StorageActor):
    """One incarnation of transcript_appender."""

    def __init__(self, house: House, spec: WorkerSpec, limits: TranscriptAppenderSettings) -> None:
        super().__init__(house, spec)
        self._limits = limits

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
            self.house.mailbox.finish(envelope, outcome.result)
        else:
            assert outcome.error is not None
            info = msgspec.msgpack.decode(outcome.error, type=ErrorInfo)
            self.house.mailbox.refuse(envelope, from_info(info))


def _rows(envelope: Envelope) -> int:
    return len(envelope.message.events) if isinstance(envelope.message, AppendEvents) else 1


def _copy(error: BulkheadError) -> BulkheadError:
    """Make an exception of its own for each asker: a raised exception collects its raiser's traceback."""
    return from_info(error.info())
