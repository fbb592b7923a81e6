"""What the keyword search of the truth has for a search, and for how long it is waited for.

The owners of the truth are asked beside the generation. One that hangs must not make every search wait for it: once
it has let a search wait in vain, the next ones wait BRIEF_S only, and say that its newest rows are missing. They go on
asking, and it is waited for again as soon as any answer has come, however late. A search that has nothing but the
truth to rest on waits as long as it may.
"""

import trio

from actors.actor import House
from actors.errors import BulkheadError, DeadlineExceeded
from actors.mailbox import seconds_until
from actors.messages.base import Candidates, Message

BRIEF_S = 0.1


class Truth:
    """What the keyword search of the truth has found for one search so far."""

    def __init__(self) -> None:
        self.events: Candidates | None = None
        self.units: Candidates | None = None
        self.degraded: list[tuple[str, str]] = []


class _Asked:
    """One question to one owner."""

    def __init__(self) -> None:
        self.done = trio.Event()
        self.scope = trio.CancelScope()
        self.found: Candidates | None = None
        self.error: BulkheadError | None = None


class Owners:
    """Asks those who own the truth. `run` must be running."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._mute: set[str] = set()  # those who owe an answer that was waited for in vain
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Carry the questions, also those that nobody waits for any more, up to their deadlines."""
        async with trio.open_nursery() as self._nursery:
            await trio.sleep_forever()

    async def ask(self, owner: str, message: Message, *, limit_ns: int, patient: bool) -> Candidates | None:
        """Return what an owner found, None when that is not known in time. Raises what it answered with."""
        assert self._nursery is not None, "the owners are asked while run() runs"
        asked = _Asked()
        self._nursery.start_soon(self._carry, owner, message, limit_ns, asked)
        brief = owner in self._mute and not patient
        try:
            with trio.move_on_after(min(seconds_until(limit_ns), BRIEF_S) if brief else seconds_until(limit_ns)):
                await asked.done.wait()
        except trio.Cancelled:
            asked.scope.cancel("the search has left")
            raise
        if asked.error is not None:
            raise asked.error
        if asked.found is None and not brief:
            self._mute.add(owner)
        return asked.found

    async def _carry(self, owner: str, message: Message, limit_ns: int, asked: _Asked) -> None:
        with asked.scope:
            try:
                asked.found = await self._house.ask(owner, message, Candidates, deadline_ns=limit_ns)
                self._mute.discard(owner)
            except BulkheadError as error:
                asked.error = error
                if isinstance(error, DeadlineExceeded):
                    self._mute.add(owner)
        asked.done.set()
