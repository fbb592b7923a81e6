"""core_writer, the trio side: relays to its worker, and learns from the transcript which sessions exist.

The transcript must accept an event of a session that core has never heard of (an append depends on nothing but
the transcript). So core pulls: on a hint, and on every beat in case a hint was lost.
"""

import trio

from actors.actor import BACKUP_TRAY, SEARCH_TRAY, Board, House
from actors.core_writer.forgetter import Forgetter
from actors.envelope import Envelope
from actors.errors import BulkheadError
from actors.mailbox import CONTROL_TRAY, deadline_after
from actors.messages import approvals, claims, unit_refs
from actors.messages.backup import (
    BackUp,
    BeginBackup,
    DropBackup,
    FinishBackup,
    ListBackups,
    StopBackUp,
    VerifyBackup,
)
from actors.messages.base import Done, Message, Statistics
from actors.messages.core_writer import (
    AdoptSessions,
    CoreStatus,
    GetSession,
    GetUnit,
    ListChangedUnits,
    ListSessions,
    ListSources,
    ListUnitChanges,
    ListUnits,
    PageUnits,
    SearchUnits,
    UnitHistory,
)
from actors.messages.exporting import ExportUnits
from actors.messages.forgetting import (
    CountForgettable,
    ForgetMemory,
    GetForget,
    ListForgets,
    ListOpenForgets,
    ListTombstones,
    LookForForgotten,
    ProveForgotten,
    ScourKeywords,
)
from actors.messages.jobs import GetJob, ListJobs
from actors.messages.transcript_appender import SessionPage, SessionsSince
from actors.notices import BuilderNotice, ForgetNotice
from actors.truth_actor import TruthActor, is_order
from actors.worker import WorkerSpec

READS = (
    GetSession,
    ListSessions,
    GetUnit,
    UnitHistory,
    ListUnits,
    PageUnits,
    ListChangedUnits,
    ListUnitChanges,
    ListSources,
    CoreStatus,
    *claims.READS,
    *approvals.READS,
    *unit_refs.READS,
    GetJob,
    ListJobs,
    ExportUnits,
    CountForgettable,
    ListOpenForgets,
    ListTombstones,
    LookForForgotten,
    GetForget,
    ListForgets,
)
BACKUPS = (BeginBackup, BackUp, FinishBackup, DropBackup, ListBackups, VerifyBackup, StopBackUp)
FORGET_TRAY = "forget"  # it asks others, so that nothing waits behind it
SYNC_EVERY_S = 5.0
SYNC_PAGE = 500
SYNC_DEADLINE_S = 5.0


def tray_of(message: Message) -> str:
    """Sort reads from writes, so that a read never queues behind a commit; and commands from both."""
    if is_order(message):
        return CONTROL_TRAY
    if isinstance(message, ForgetMemory | ProveForgotten):
        return FORGET_TRAY
    if isinstance(message, SearchUnits | ScourKeywords):
        return SEARCH_TRAY
    if isinstance(message, BACKUPS):
        return BACKUP_TRAY
    return "read" if isinstance(message, READS) else "write"


class CoreWriter(TruthActor):
    """One incarnation of core_writer."""

    READ_TRAYS = ("read", SEARCH_TRAY, FORGET_TRAY, BACKUP_TRAY)

    def __init__(
        self, house: House, spec: WorkerSpec, *, forgetting: Board[ForgetNotice], index: Board[BuilderNotice]
    ) -> None:
        super().__init__(house, spec)
        self._cursor: int | None = None
        self._forgetter = Forgetter(house, self.work, forgetting, index)

    async def relay(self, envelope: Envelope) -> None:
        """Pass an envelope to the worker, and what takes more than one room to the forgetter."""
        match envelope.message:
            case ForgetMemory() as message:
                answer = await self._forgetter.forget(message, deadline_ns=envelope.deadline_ns)
            case ProveForgotten() as message:
                answer = await self._forgetter.prove(message, deadline_ns=envelope.deadline_ns)
            case _:
                await super().relay(envelope)
                return
        self.house.mailbox.finish(envelope, answer)

    async def beat(self) -> None:
        """Adopt new sessions from the transcript every few seconds, and carry out orders to forget."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_sessions)
            nursery.start_soon(self._forgetter.run)

    async def _keep_sessions(self) -> None:
        while True:
            try:
                if self.quarantined is None:
                    await self._adopt_sessions()
            except BulkheadError as error:
                # The transcript is away or busy; sessions are listed a beat later, nothing is lost.
                self.house.log.debug("sessions not adopted", extra={"error": error.message})
            await trio.sleep(SYNC_EVERY_S)

    async def _adopt_sessions(self) -> None:
        if self._cursor is None:
            status = await self.work(CoreStatus(), Statistics, deadline_ns=deadline_after(SYNC_DEADLINE_S))
            self._cursor = int(status.values.get("sessions_cursor") or 0)
        more = True
        while more:
            page = await self.house.ask(
                "transcript_appender",
                SessionsSince(cursor=self._cursor, limit=SYNC_PAGE),
                SessionPage,
                deadline_ns=deadline_after(SYNC_DEADLINE_S),
            )
            if page.sessions:
                message = AdoptSessions(sessions=page.sessions, cursor=page.cursor)
                await self.work(message, Done, deadline_ns=deadline_after(SYNC_DEADLINE_S))
            self._cursor, more = page.cursor, page.more
