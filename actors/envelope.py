"""An envelope: one message on its way to an actor, the time it has, and the slot for its answer.

The asker waits at it, the mailbox keeps it, the incarnation that takes it in hand answers it. Promises: it is answered
exactly once, a later answer is dropped; once an incarnation died with it in hand, no answer says `not_executed`.
"""

import msgspec
import trio

from actors.errors import BulkheadError
from actors.messages.base import Message
from actors.quarantine import key_of


class Envelope:
    """One message, its deadline, and the slot for its answer."""

    __slots__ = (
        "_done",
        "_error",
        "_key",
        "_value",
        "attempts",
        "body",
        "client",
        "deadline_ns",
        "message",
        "taken_ns",
        "tray",
        "uncertain",
    )

    def __init__(self, message: Message, deadline_ns: int, tray: str, client: int = 0) -> None:
        self.message = message
        self.body = msgspec.msgpack.encode(message)
        self.deadline_ns = deadline_ns
        self.tray = tray
        self.client = client
        self.attempts = 0  # how many incarnations died with this in hand and may have died of it
        self.uncertain = False  # an incarnation died with this in hand, so it may have taken effect unseen
        self.taken_ns = 0
        self._key = b""
        self._done = trio.Event()
        self._value: msgspec.Struct | None = None
        self._error: BulkheadError | None = None

    @property
    def key(self) -> bytes:
        """Return the content hash of the message, so that a client's retry counts as the same message."""
        if not self._key:
            self._key = key_of(self.body)
        return self._key

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
        """Answer it with an error. Only the first answer counts.

        After a death with it in hand nobody can say any more that it was not executed.
        """
        if not self.done:
            if self.uncertain and error.outcome == "not_executed":
                error.outcome = "unknown"
            self._error = error
            self._done.set()

    async def wait(self) -> msgspec.Struct:
        """Wait for the answer and return it, or raise the error it was answered with."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value
