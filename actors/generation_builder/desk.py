"""What the tasks of one incarnation of the builder share: house, board and worker, the truth as last seen, the hold.

No decisions are made here. `work_of` makes a seat into something that a build can be given to.
"""

from typing import TypeVar

import msgspec
import trio

from actors.actor import Board, House
from actors.generation_builder.building import Work
from actors.generation_builder.seat import Seat
from actors.mailbox import deadline_after
from actors.messages.base import Message
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Covers
from actors.notices import BuilderNotice
from actors.settings import GenerationBuilderSettings
from actors.worker import OnReport

Answer = TypeVar("Answer", bound=msgspec.Struct)

SHORT_S = 10.0
LOOK_EVERY_S = 1.0


class Desk:
    """The house, the board, the limits, and the worker that looks after the folder and makes the deltas."""

    def __init__(
        self, house: House, board: Board[BuilderNotice], limits: GenerationBuilderSettings, seat: Seat
    ) -> None:
        self.house = house
        self.board = board
        self.limits = limits
        self.seat = seat
        self.work = work_of(seat, limits)
        self.truth = Truth()
        self.hold = Hold()

    @property
    def notice(self) -> BuilderNotice:
        """Return what is on the board."""
        return self.board.notice

    def post(self, **changes: object) -> None:
        """Change what is on the board."""
        self.board.post(msgspec.structs.replace(self.board.notice, **changes))


class Truth:
    """The truth as `Lookout` last saw it. `latest.sources_digest` is empty until the sources were walked once."""

    def __init__(self) -> None:
        self.latest = Covers()
        self.sources: list[SourceRoot] = []
        self.moved_at = 0.0  # when it was last seen to have moved; CLOCK_MONOTONIC, seconds


class Hold:
    """Where builds pause until they are let go: chaos only."""

    def __init__(self) -> None:
        self._stage: str | None = None
        self._released = trio.Event()

    def set(self, stage: str | None) -> None:
        """Pause builds at a stage; None lets go those that pause and holds nobody."""
        self._stage = stage
        self._released.set()
        self._released = trio.Event()

    async def wait_passed(self, stage: str) -> None:
        """Return at once unless builds are to pause at this stage."""
        while self._stage == stage:
            await self._released.wait()


def work_of(seat: Seat, limits: GenerationBuilderSettings, on_report: OnReport | None = None) -> Work:
    """Return how to make calls to whoever sits there: each has the time of a step unless it says otherwise."""

    async def work(message: Message, answer: type[Answer], *, seconds: float | None = None) -> Answer:
        seconds = limits.step_deadline_ms / 1000 if seconds is None else seconds
        return await seat.call(message, answer, deadline_ns=deadline_after(seconds), on_report=on_report)

    return work
