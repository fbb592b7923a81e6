"""Where a build is, shown on the board with its speed and the time left, and, under chaos, the place to hold it."""

import time
from collections.abc import Mapping
from typing import Literal

import msgspec
import trio

from actors.frames import Report
from actors.generation_builder.desk import Desk
from actors.generation_builder.pace import Pace
from actors.messages.index import Progress

TICK_S = 0.5


class Steps:
    """The steps of one build after the other, of full generations or of deltas: one of each kind runs at a time."""

    def __init__(self, desk: Desk, kind: Literal["building", "delta_building"]) -> None:
        self._desk = desk
        self._kind = kind
        self._pace: Pace | None = None
        self._costs: dict[str, float] = {}  # of a row, as the last build showed them
        self._now = Progress(stage="begin")

    def begin(self, rows: Mapping[str, int], *, build: int = 0, reason: str = "") -> None:
        """Begin with a build that is expected to have these rows of each corpus."""
        self._pace = Pace(rows, self._costs, time.monotonic())
        self._now = Progress(stage="begin", build=build, reason=reason)
        self._show(stage="begin", done=0, total=0)

    async def enter(self, stage: str, generation: int, done: int, total: int) -> None:
        """Note where the build is; under chaos it may be held here."""
        self._desk.post(highest=max(self._desk.notice.highest, generation))
        self._now = msgspec.structs.replace(self._now, generation=generation)
        self._show(stage=stage, done=done, total=total)
        await self._desk.hold.wait_passed(self._now.stage)

    def report(self, report: Report) -> None:
        """Note how far the worker says that it is."""
        self._show(stage=report.stage, done=report.done, total=report.total)

    async def tick(self) -> None:
        """Show the time that passes, for ever: a stage may be long and say nothing."""
        while True:
            await trio.sleep(TICK_S)
            self._post()

    def end(self, rows: Mapping[str, int] | None = None) -> None:
        """Show that no build is under way; one that is through, with these rows, tells what a row costs."""
        if rows is not None and self._pace is not None:
            self._costs |= self._pace.learned(rows, time.monotonic())
        self._pace = None
        self._desk.post(**{self._kind: None})

    def _show(self, *, stage: str, done: int, total: int) -> None:
        if self._pace is not None:
            self._pace.at(stage, done, total, time.monotonic())
        shown = stage if self._kind == "building" else f"delta {stage}"
        self._now = msgspec.structs.replace(self._now, stage=shown, done=done, total=total)
        self._post()

    def _post(self) -> None:
        if self._pace is not None:
            percent, rows_per_s, eta_s = self._pace.estimate(time.monotonic())
            self._now = msgspec.structs.replace(self._now, percent=percent, rows_per_s=rows_per_s, eta_s=eta_s)
        self._desk.post(**{self._kind: self._now})
