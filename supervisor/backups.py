"""Makes backups: on command and, when it is configured, every so many hours. It asks; the rooms do the work.

One at a time. Core is copied first and the transcript after it, so the backup has every event that core speaks of. Each
copy is a call of its own that takes as long as it takes; it is made beside everything else, and ends at once when the
daemon goes down. Whatever fails, a backup counts or is none, the earlier ones stay, and what was begun is removed: now,
or when the next one is begun.

Nothing is remembered over a restart but what the backups say themselves; whether one is due follows from the newest.
"""

import contextlib
import logging
import time
from datetime import UTC, datetime

import msgspec
import trio

from actors.errors import BulkheadError, ShuttingDown
from actors.mailbox import Mailbox, deadline_after
from actors.messages.backup import (
    BackedUp,
    BackUp,
    BackupBegun,
    BeginBackup,
    DropBackup,
    FinishBackup,
    ListBackups,
    StopBackUp,
)
from actors.messages.base import Done, Row, Rows
from actors.settings import BackupSettings
from actors.sql.rows import rfc3339
from supervisor.version import VERSION

ROOMS = ("core_writer", "transcript_appender")
QUICK_S = 30.0
COPY_S = 4 * 3600.0
FINISH_S = 300.0
LOOK_EVERY_S = 60.0
RETRY_S = 900.0  # after one by the clock has failed

log = logging.getLogger("bulkhead.backup")


class Order:
    """A backup that was asked for, from its order to its end."""

    def __init__(self, request_id: str | None = None) -> None:
        self.request_id = request_id
        self.at = _now_us()
        self.name: str | None = None
        self.stage = "waits"
        self.row: bytes | None = None  # what the finished one says of itself
        self.error: BulkheadError | None = None
        self.begun = trio.Event()
        self.ended = trio.Event()

    def as_row(self) -> dict[str, object]:
        """Return it as a client sees it, finished or not."""
        if self.row is not None:
            return {"state": "finished", **msgspec.json.decode(self.row)}
        known: dict[str, object] = {"backup": self.name, "state": self.stage, "ordered_at": rfc3339(self.at)}
        return known if self.error is None else {**known, "state": "failed", "reason": self.error.message}


class BackupKeeper:
    """Makes the backups of a daemon."""

    def __init__(self, *, mailboxes: "dict[str, Mailbox]", limits: BackupSettings) -> None:
        self._mailboxes = mailboxes
        self._limits = limits
        self._order: Order | None = None
        self._ordered = trio.Event()
        self._closed = False
        self._not_before_s = 0.0  # monotonic
        self.last: Order | None = None  # the last one that has ended, in the life of the daemon

    @property
    def running(self) -> Order | None:
        """Return the one that is being made."""
        return self._order

    def order(self, request_id: str | None = None) -> tuple[Order, bool]:
        """Have a backup made; return its order, and whether one was under way already, which it then is."""
        if self._closed:
            raise ShuttingDown("backup.create refused: the daemon goes down", actor="daemon")
        if self._order is not None:
            return self._order, True
        self._order = Order(request_id)
        self._ordered.set()
        return self._order, False

    async def run(self) -> None:
        """Make what is ordered and what is due, until cancelled."""
        while True:
            with trio.move_on_after(LOOK_EVERY_S):
                await self._ordered.wait()
            if self._order is None and await self._is_due():
                self._order = Order()
            if self._order is not None:
                await self._make(self._order)

    async def stop(self) -> None:
        """End what is being copied, so that a drain need not wait for it."""
        self._closed = True
        if self._order is not None:
            for mailbox in self._mailboxes.values():
                with contextlib.suppress(BulkheadError):
                    await mailbox.ask(StopBackUp(), Done, deadline_ns=deadline_after(1.0))

    # ------------------------------------------------------------ making one

    async def _make(self, order: Order) -> None:
        started = time.monotonic()
        try:
            await self._steps(order)
        except BulkheadError as error:
            order.error = error
            self._not_before_s = time.monotonic() + RETRY_S
            log.error("no backup made", extra={"error": error.message})
            await self._drop(order)
        else:
            took_ms = round((time.monotonic() - started) * 1000)
            log.info("backup made", extra={"path": order.name, "duration_ms": took_ms})
        finally:
            self._order, self.last = None, order
            self._ordered = trio.Event()
            order.begun.set()
            order.ended.set()

    async def _steps(self, order: Order) -> None:
        core = self._mailboxes["core_writer"]
        order.stage = "begins"
        begun = await core.ask(
            BeginBackup(request_id=order.request_id), BackupBegun, deadline_ns=deadline_after(QUICK_S)
        )
        order.name, order.row = begun.backup, begun.finished
        order.begun.set()
        if begun.finished is not None:
            return
        parts = []
        for room in ROOMS:
            order.stage = f"copies {room}"
            message = BackUp(backup=begun.backup)
            parts.append(await self._mailboxes[room].ask(message, BackedUp, deadline_ns=deadline_after(COPY_S)))
        order.stage = "finishes"
        finish = FinishBackup(
            backup=begun.backup,
            parts=tuple(parts),
            program=VERSION,
            kept=self._limits.kept,
            request_id=order.request_id,
        )
        order.row = (await core.ask(finish, Row, deadline_ns=deadline_after(FINISH_S))).row

    async def _drop(self, order: Order) -> None:
        """Remove what was begun; when core is away, the next one does it."""
        if order.name is not None:
            with contextlib.suppress(BulkheadError):
                message = DropBackup(backup=order.name)
                await self._mailboxes["core_writer"].ask(message, Done, deadline_ns=deadline_after(QUICK_S))

    # ------------------------------------------------------------ the clock

    async def _is_due(self) -> bool:
        if self._closed or not self._limits.every_h or time.monotonic() < self._not_before_s:
            return False
        try:
            page = await self._mailboxes["core_writer"].ask(
                ListBackups(limit=100), Rows, deadline_ns=deadline_after(QUICK_S)
            )
        except BulkheadError as error:
            log.warning("backups not listed", extra={"error": error.message})
            return False
        rows = msgspec.json.decode(page.rows, type=list[_Made])
        newest = next((_us_of(row.created_at) for row in rows if row.created_at is not None), None)
        return is_due(_now_us(), newest, self._limits.every_h)


class _Made(msgspec.Struct):
    created_at: str | None = None


def is_due(now_us: int, newest_us: int | None, every_h: int) -> bool:
    """Say whether it is time for a backup. One from the future, as after a clock was set back, counts for nothing."""
    if newest_us is None:
        return True
    every_us = every_h * 3_600_000_000
    return not 0 <= now_us - newest_us < every_us


def _us_of(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1_000_000)


def _now_us() -> int:
    return time.time_ns() // 1000
