"""Waits for a build on behalf of a client, and tells it how far the build is if it asked for that.

Reads the builder's board and asks nobody, so a client that waits costs nothing and holds up nothing: what it is not
given in time is dropped. Who waits has no part in the build: one that leaves, or is late, or cancels its request,
changes nothing about it.
"""

import time
from collections.abc import Callable

import trio

from actors.actor import Board
from actors.mailbox import seconds_until
from actors.messages.index import BuildEnd, Progress
from actors.notices import BuilderNotice
from supervisor.rpc import Id, encode_notification

NOTE_EVERY_S = 0.25
COMPLETE = 100  # percent

Notify = Callable[[bytes], bool]


class Notes:
    """The progress notifications of one request: not too many, each with more progress than the one before."""

    def __init__(self, token: Id, build: int, notify: Notify) -> None:
        self._token = token
        self._build = build
        self._notify = notify
        self._told = -1.0  # percent
        self._told_at = -NOTE_EVERY_S

    def tell(self, notice: BuilderNotice, now: float) -> None:
        """Tell the client where its build is, if there is anything new; it is dropped when the client reads slowly."""
        building = notice.building
        mine = building is not None and building.build == self._build
        percent = building.percent if building is not None and mine else 0.0
        if percent <= self._told or now - self._told_at < NOTE_EVERY_S:
            return
        message = describe(building) if building is not None and mine else "waits for its turn"
        params: dict[str, object] = {
            "progressToken": self._token,
            "progress": percent,
            "total": COMPLETE,
            "message": message,
        }
        if mine:
            params["_meta"] = {"building": building}
        if self._notify(encode_notification("notifications/progress", params)):
            self._told, self._told_at = percent, now


async def follow(
    board: Board[BuilderNotice], build: int, *, deadline_ns: int, notes: Notes | None = None
) -> BuildEnd | None:
    """Wait until a build has ended and return how; None when the deadline came first."""
    with trio.move_on_after(seconds_until(deadline_ns)):
        while (end := end_of(board.notice, build)) is None:
            if notes is not None:
                notes.tell(board.notice, time.monotonic())
            await board.wait_changed()
        return end
    return None


def end_of(notice: BuilderNotice, build: int) -> BuildEnd | None:
    """Return what became of a build; None while it has not ended."""
    return next((end for end in notice.builds_ended if end.build == build), None)


def describe(building: Progress) -> str:
    """Return where a build is as a line for people: rows of total, speed, time left."""
    parts = [f"{building.stage}"]
    if building.total:
        parts[0] += f": {building.done:,} of {building.total:,}"
    if building.rows_per_s is not None:
        parts.append(f"{building.rows_per_s:,.0f} rows/s")
    if building.eta_s is not None:
        parts.append(f"{building.eta_s:,} s left")
    return ", ".join(parts)


def outcome(end: BuildEnd | None, notice: BuilderNotice, build: int) -> dict[str, object]:
    """Return what a client that waited is told: how its build ended, or where it is."""
    if end is not None:
        return {"state": end.state, "generation": end.generation, "error": end.error}
    running = notice.building is not None and notice.building.build == build
    return {"state": "running" if running else "queued", "generation": None, "error": None}
