"""Search workers without a process: each call waits until the test says what becomes of it."""

from typing import cast

import msgspec
import trio

from actors.messages.base import Message
from actors.messages.searcher import QueryResult
from actors.worker import Answer, OnReport, Worker, WorkerDied, WorkerSpec

SPEC = WorkerSpec(name="searcher", module="none", settings=msgspec.Raw(b""))
RESULT = QueryResult(text=[], vector=[], degraded=[], mode="keyword", timings_ms={})


class ScriptedCall:
    """A call in the hands of a scripted worker."""

    def __init__(self, message: Message) -> None:
        self.message = message
        self._outcome: msgspec.Struct | Exception | None = None
        self._done = trio.Event()

    def finish(self, outcome: msgspec.Struct | Exception = RESULT) -> None:
        """Answer it, or fail it."""
        self._outcome = outcome
        self._done.set()

    async def wait(self) -> msgspec.Struct:
        """Wait for the outcome."""
        await self._done.wait()
        if isinstance(self._outcome, Exception):
            raise self._outcome
        assert self._outcome is not None
        return self._outcome


class ScriptedWorker(Worker):
    """A worker whose calls the test ends. `answers_after_s`: it answers by itself, none: it never does."""

    def __init__(self, name: str, *, answers_after_s: float | None = None) -> None:
        super().__init__(SPEC, epoch=1)
        self.label = name
        self.answers_after_s = answers_after_s
        self.calls: list[ScriptedCall] = []
        self.killed: str | None = None
        self.retired = False
        self.ended = trio.Event()

    async def call(
        self,
        message: Message,
        answer: type[Answer],
        *,
        deadline_ns: int,
        body: bytes | None = None,
        on_report: OnReport | None = None,
    ) -> Answer:
        """Take a call."""
        call = ScriptedCall(message)
        self.calls.append(call)
        if self.killed is not None:
            raise self._death()
        if self.answers_after_s is not None:
            with trio.move_on_after(self.answers_after_s):
                return cast(Answer, await call.wait())
            call.finish()
        return cast(Answer, await call.wait())

    def is_dead(self) -> bool:
        """Say whether it has been killed."""
        return self.ended.is_set()

    def kill(self, cause: str) -> None:
        """Die, with everything in hand."""
        self.killed = cause
        self.ended.set()
        for call in self.calls:
            call.finish(self._death())

    async def retire(self, *, pending_s: float = 10.0, leave_s: float = 3.0) -> None:
        """Leave politely."""
        self.retired = True
        self.ended.set()

    async def live(self) -> None:
        """Live until it is killed or retired, as `run` does with a process."""
        await self.ended.wait()
        if not self.retired:
            raise self._death()

    def fall_silent(self) -> None:
        """Send no beat any more."""
        self._silent_ms = 10_000.0

    def speak(self) -> None:
        """Beat again."""
        self._silent_ms = 0.0

    def _death(self, end: str = "") -> WorkerDied:
        return WorkerDied("searcher", self.pid, self.killed or end)
