"""The worker process of core_writer: which message is done on which lane, by whom."""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from sqlite3 import Connection

import msgspec

from actors.child import CallContext, serve
from actors.core_writer import (
    approvals,
    backing_up,
    claims,
    exporting,
    forgetting,
    jobs,
    requests,
    sessions,
    sources,
    store,
    summaries,
    unit_refs,
    units,
)
from actors.core_writer.continuity import require_changes
from actors.core_writer.restoring import CoreKeeper
from actors.core_writer.search import UnitSource, search_units
from actors.core_writer.subject import Repeatable, Subject, Writing
from actors.errors import Quarantined
from actors.frames import Setup
from actors.messages.backup import BackUp
from actors.messages.base import Done, Message, Row, Rows, Statistics
from actors.messages.core_writer import (
    AddSource,
    AdoptSessions,
    AllocateGeneration,
    ArchiveSession,
    CloseSession,
    CoreStatus,
    CoreWriterMessage,
    GenerationNumber,
    GetSession,
    GetUnit,
    ListChangedUnits,
    ListSessions,
    ListSources,
    ListUnitChanges,
    ListUnits,
    OpenSession,
    PageUnits,
    PutUnit,
    RemoveSource,
    RestoreTruth,
    SearchUnits,
    SourceRoots,
    UnitChanges,
    UnitHistory,
    UnitIds,
)
from actors.messages.exporting import ExportUnits
from actors.messages.forgetting import ForgetSlice, ScourKeywords, ScourWal
from actors.messages.unit_refs import DiffUnit, UnitsOfEvent
from actors.redaction import Counts, Redactor
from actors.settings import RoomSetup
from actors.sql import adopting, backup_room, meta
from actors.sql.database import Call, checkpoint, transaction
from actors.sql.keywords import KeywordSource
from actors.sql.limits import check_id, check_ids, check_json, check_text
from actors.sql.restore import RestoreRoom
from actors.sql.rows import page, page_msgpack, rows_limit, with_redacted
from actors.sql.truth_room import Facts, TruthRoom
from actors.sql.ulid import RANDOM_BYTES, UlidMaker

_ROOM = "core_writer"
_SLICE_ROWS = 64
_PRUNE_ROWS = 256
RowOf = Callable[[units.UnitRow], bytes]
SUBJECTS: tuple[Subject, ...] = (
    claims.SUBJECT,
    approvals.SUBJECT,
    jobs.SUBJECT,
    summaries.SUBJECT,
    exporting.SUBJECT,
    forgetting.SUBJECT,
)
_WRITERS = {kind: subject for subject in SUBJECTS for kind in subject.writes}
_READERS = {kind: subject for subject in SUBJECTS for kind in subject.reads}


class CoreRoom(TruthRoom):
    """The store of core_writer, on its lanes."""

    work: object = CoreWriterMessage
    serves_damaged = True
    # No generation is built from a truth in doubt: the one that is served was made when it was whole.
    refused_when_damaged = (PageUnits, ListChangedUnits, ListUnitChanges)
    lanes: Mapping[type[Message], str] = {
        OpenSession: "write",
        CloseSession: "write",
        ArchiveSession: "write",
        AdoptSessions: "write",
        PutUnit: "write",
        AddSource: "write",
        RemoveSource: "write",
        AllocateGeneration: "write",
        RestoreTruth: "write",  # by the maintenance mode alone, see `_room`
        GetSession: "read",
        ListSessions: "read",
        GetUnit: "read",
        UnitHistory: "read",
        ListUnits: "read",
        SearchUnits: "search",
        PageUnits: "read",
        ListChangedUnits: "read",
        ListUnitChanges: "read",
        ListSources: "read",
        CoreStatus: "read",
        UnitsOfEvent: "read",
        DiffUnit: "read",
        ExportUnits: "read",
        **backing_up.LANES,
        ScourKeywords: "search",
        ScourWal: "write",
        **dict.fromkeys(_WRITERS, "write"),
        **dict.fromkeys(_READERS, "read"),
    }

    def __init__(self, setup: RoomSetup) -> None:
        self._limits = setup.core_writer
        self._redactor = Redactor(setup.redaction)
        super().__init__(
            setup,
            file_name=store.FILE_NAME,
            kind=store.file_kind(self._limits),
            wal_bytes_max=self._limits.wal_bytes_max,
            slice_rows=_SLICE_ROWS,
        )
        self._ulids = UlidMaker()
        self._backup = backup_room.BackupRoom(setup)
        self._backups = backing_up.Backups(self._backup, self.path, self.kind, setup.identity)

    def open(self, lane: str) -> Facts:
        """Open the connections of a lane; a backup opens its own."""
        return {} if lane == backup_room.LANE else super().open(lane)

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call on its lane."""
        if type(message) not in backing_up.LANES:
            return super().handle(message, call)
        if self.is_damaged and isinstance(message, BackUp):
            raise Quarantined("backup refused: core is damaged", hint="earlier backups are kept; bulkhead restore")
        with self.reading_on(backup_room.LANE) if isinstance(message, BackUp) else nullcontext():
            return self._backups.do(message, call)

    def idle(self, lane: str) -> bool:
        """Do a slice of upkeep or of indexing, and remove once what a backup that was cut short has left."""
        return self._backups.tidy() if lane == backup_room.LANE else super().idle(lane)

    def interrupt(self, lane: str) -> None:
        """Stop the running statement of a lane; a backup looks at its deadline itself."""
        if lane != backup_room.LANE:
            super().interrupt(lane)

    def keyword_source(self) -> KeywordSource:
        """Return the changes of units."""
        return UnitSource(self.search_reader)

    def _prepare_files(self) -> bool:
        """Go on above the numbers that were given out after the backup that the file comes from, if it does."""
        adopting.adopt_counters(self.path, self.kind, CoreKeeper(self._limits))
        return super()._prepare_files()

    def verify(self, connection: Connection) -> int:
        """Check that no change was lost: the counter and the rows were written in the same transactions."""
        return require_changes(connection, str(self.path))

    def prepare(self, connection: Connection) -> int:
        """Check the same again, under the write lock."""
        return self.verify(connection)

    def write(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Change something, in one transaction. Whatever the message is, it is redacted first."""
        counts: Counts = Counts()
        answer = self._write(connection, self._redactor.message(message, counts), call)
        return with_redacted(answer, counts) if counts and isinstance(answer, Row) else answer

    def _write(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        self._check(message)
        if isinstance(message, ScourWal):
            left = not checkpoint(connection, "TRUNCATE")
            return ForgetSlice(rows=int(left), more=left, waits=left)
        if (subject := _WRITERS.get(type(message))) is not None:
            return self._write_subject(connection, subject, message, call)
        unit = units.prepare(message, self._limits) if isinstance(message, PutUnit) else None
        with transaction(connection, call):
            match message:
                case AdoptSessions():
                    return _adopt(self._writing(connection, _now()), message)
                case AllocateGeneration():
                    return GenerationNumber(generation=store.allocate_generation(connection, message.at_least))
                case OpenSession():
                    return self._once(connection, message, lambda now: _open_session(connection, message, now))
                case CloseSession():
                    return self._once(connection, message, lambda now: self._close_session(connection, message, now))
                case ArchiveSession():
                    return self._once(connection, message, lambda now: self._archive_session(connection, message, now))
                case PutUnit():
                    assert unit is not None
                    return self._once(connection, message, lambda now: self._put_unit(connection, unit, now))
                case AddSource():
                    return self._once(connection, message, lambda now: self._add_source(connection, message, now))
                case RemoveSource():
                    return self._once(connection, message, lambda _: _remove_source(connection, message))
        raise AssertionError(f"not a message of the write lane: {message!r}")

    def _write_subject(
        self, connection: Connection, subject: Subject, message: Message, call: CallContext
    ) -> msgspec.Struct:
        write = subject.writes[type(message)]
        subject.check(message, self._limits)
        with transaction(connection, call):
            if not isinstance(message, Repeatable):
                return write(self._writing(connection, _now()), message)
            return self._once(connection, message, lambda now: _row_of(write(self._writing(connection, now), message)))

    def _writing(self, connection: Connection, now: int) -> Writing:
        return Writing(connection=connection, now=now, new_id=lambda: self._new_id(now), limits=self._limits)

    def read(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Look something up."""
        if (subject := _READERS.get(type(message))) is not None:
            return subject.reads[type(message)](connection, message)
        match message:
            case GetSession():
                session = sessions.get_session(connection, message.tenant, message.session_id)
                return Row(row=sessions.client_row(session))
            case ListSessions():
                return _list_sessions(connection, message)
            case SearchUnits():
                return search_units(
                    connection,
                    self.index,
                    message,
                    until=self.answer_by(call),
                    slice_rows=self.slice_rows,
                    snippet_chars_max=self.setup.searcher.snippet_chars_max,
                    redactor=self._redactor,
                )
            case PageUnits() | ListChangedUnits() | ListUnitChanges():
                return _for_builder(connection, message)
            case ListSources():
                return SourceRoots(sources=sources.list_sources(connection, message.tenant))
            case CoreStatus():
                return self._status(connection)
            case ScourKeywords():
                return ForgetSlice(rows=0, more=self.index.scour(self.answer_by(call)))
        return self._read_units(connection, message)

    def _read_units(self, connection: Connection, message: Message) -> msgspec.Struct:
        """Give units to clients, redacted again."""
        match message:
            case GetUnit():
                unit = units.get_unit(connection, message.tenant, message.unit_id, message.version)
                return Row(row=units.client_row(unit, self._redactor, shown=message.shown))
            case UnitHistory():
                return _unit_history(connection, message, self._unit_row)
            case ListUnits():
                return _list_units(connection, message, self._unit_row)
            case UnitsOfEvent():
                return unit_refs.units_of_event(connection, message, self._unit_row)
            case DiffUnit():
                return unit_refs.diff(connection, message, self._redactor)
            case ExportUnits():
                return exporting.export_units(connection, message, self._unit_row)
        raise AssertionError(f"not a message of a reading lane: {message!r}")

    def upkeep(self, connection: Connection, call: Call) -> bool:
        """Drop the oldest results of requests beyond the number that is kept, and let each subject do its slice."""
        with transaction(connection, call):
            more = requests.prune(connection, self._limits.request_ids_kept, _PRUNE_ROWS) == _PRUNE_ROWS
        for subject in SUBJECTS:
            with transaction(connection, call):
                more |= subject.upkeep(self._writing(connection, _now()))
        return more

    def _once(
        self,
        connection: Connection,
        message: Repeatable,
        effect: Callable[[int], bytes],
    ) -> Row:
        now = _now()
        row = requests.once(
            connection,
            tenant=message.tenant,
            request_id=message.request_id,
            method=type(message).__name__,
            now=now,
            effect=lambda: effect(now),
        )
        return Row(row=row)

    def _close_session(self, connection: Connection, message: CloseSession, now: int) -> bytes:
        tenant, session_id = message.tenant, message.session_id
        session = sessions.close_session(connection, tenant=tenant, session_id=session_id, now=now)
        summaries.note_activity(self._writing(connection, now), tenant, session_id)
        return sessions.client_row(session)

    def _archive_session(self, connection: Connection, message: ArchiveSession, now: int) -> bytes:
        tenant, session_id = message.tenant, message.session_id
        session = sessions.archive_session(connection, tenant=tenant, session_id=session_id, now=now)
        summaries.note_activity(self._writing(connection, now), tenant, session_id)
        return sessions.client_row(session)

    def _unit_row(self, unit: units.UnitRow) -> bytes:
        return units.client_row(unit, self._redactor)

    def _put_unit(self, connection: Connection, unit: units.Prepared, now: int) -> bytes:
        written = units.put_unit(connection, unit, new_id=self._new_id(now), now=now)
        unit_refs.replace(connection, written)
        return self._unit_row(written)

    def _add_source(self, connection: Connection, message: AddSource, now: int) -> bytes:
        root = sources.add_source(
            connection,
            tenant=message.tenant,
            source_id=self._new_id(now),
            path=sources.clean_path(message.path),
            name=message.name,
            now=now,
        )
        return sources.client_row(root)

    def _new_id(self, now: int) -> str:
        return self._ulids.make(now, os.urandom(RANDOM_BYTES))

    def _check(self, message: Message) -> None:
        """Check the members that are not a unit's against the limits."""
        chars_max, chars_key = self._limits.id_chars_max, f"{_ROOM}.id_chars_max"
        bytes_max, bytes_key = self._limits.meta_bytes_max, f"{_ROOM}.meta_bytes_max"
        match message:
            case OpenSession():
                ids = {"tenant": message.tenant, "session_id": message.session_id, "request_id": message.request_id}
                check_ids("session.open", ids, chars_max, chars_key)
                for field, text in (("title", message.title), ("agent", message.agent)):
                    check_text("session.open", field, text or "", bytes_max, bytes_key)
                check_json("session.open", "meta", message.meta, bytes_max, bytes_key)
            case ArchiveSession():
                check_id("session.archive", "request_id", message.request_id, chars_max, chars_key)
            case CloseSession():
                check_id("session.close", "request_id", message.request_id, chars_max, chars_key)
            case AddSource():
                check_ids(
                    "source.add", {"tenant": message.tenant, "request_id": message.request_id}, chars_max, chars_key
                )
                check_id("source.add", "path", message.path, bytes_max, bytes_key)
                sources.clean_path(message.path)
            case RemoveSource():
                check_id("source.remove", "request_id", message.request_id, chars_max, chars_key)

    def _status(self, connection: Connection) -> Statistics:
        if self.is_damaged:
            return Statistics(values={**store.counters(connection), **self.file_facts()})
        core_seq = units.last_core_seq(connection)
        return Statistics(
            values={
                **store.counters(connection),
                **store.count_rows(connection),
                "keyword_behind": core_seq - self.index.cursor,
                **self.file_facts(),
            }
        )


def _now() -> int:
    return time.time_ns() // 1000


def _row_of(answer: msgspec.Struct) -> bytes:
    assert isinstance(answer, Row), "what is kept for a repetition is a row"
    return answer.row


def _open_session(connection: Connection, message: OpenSession, now: int) -> bytes:
    session = sessions.open_session(
        connection,
        tenant=message.tenant,
        session_id=message.session_id,
        title=message.title,
        agent=message.agent,
        meta=None if message.meta is None else msgspec.json.encode(message.meta).decode(),
        now=now,
    )
    return sessions.client_row(session)


def _remove_source(connection: Connection, message: RemoveSource) -> bytes:
    return sources.client_row(sources.remove_source(connection, tenant=message.tenant, source_id=message.source_id))


def _adopt(writing: Writing, message: AdoptSessions) -> Done:
    for activity in message.sessions:
        sessions.adopt_session(writing.connection, activity, writing.now)
        summaries.note_activity(writing, activity.tenant, activity.session_id)
    if message.cursor > meta.read_counter(writing.connection, store.SESSIONS_CURSOR):
        meta.write(writing.connection, store.SESSIONS_CURSOR, message.cursor)
    return Done()


def _list_sessions(connection: Connection, message: ListSessions) -> Rows:
    limit = rows_limit(message.limit)
    return page(map(sessions.client_row, sessions.list_sessions(connection, message, limit + 1)), limit)


def _unit_history(connection: Connection, message: UnitHistory, row_of: RowOf) -> Rows:
    limit = rows_limit(message.limit)
    rows = units.unit_history(
        connection,
        tenant=message.tenant,
        unit_id=message.unit_id,
        before_version=message.before_version,
        limit=limit + 1,
    )
    return page(map(row_of, rows), limit)


def _list_units(connection: Connection, message: ListUnits, row_of: RowOf) -> Rows:
    limit = rows_limit(message.limit)
    rows = units.list_units(
        connection,
        tenant=message.tenant,
        before_core_seq=message.before_core_seq,
        type=message.type,
        scope=message.scope,
        status=message.status,
        session_id=message.session_id,
        since=message.since,
        until=message.until,
        limit=limit + 1,
    )
    return page(map(row_of, rows), limit)


def _for_builder(
    connection: Connection, message: PageUnits | ListChangedUnits | ListUnitChanges
) -> Rows | UnitIds | UnitChanges:
    match message:
        case PageUnits():
            return _page_units(connection, message)
        case ListChangedUnits():
            return _changed_units(connection, message)
        case ListUnitChanges():
            return _unit_changes(connection, message)


def _page_units(connection: Connection, message: PageUnits) -> Rows:
    limit = rows_limit(message.limit)
    rows = units.active_between(connection, message.after, message.until, limit + 1)
    return page_msgpack(map(units.builder_row, rows), limit)


def _changed_units(connection: Connection, message: ListChangedUnits) -> UnitIds:
    limit = rows_limit(message.limit)
    changed = units.changed_between(connection, message.after, message.until, limit + 1)
    kept = changed[:limit]
    return UnitIds(
        ids=[unit_id for unit_id, _ in kept],
        last_seq=kept[-1][1] if kept else message.until,
        more=len(changed) > limit,
    )


def _unit_changes(connection: Connection, message: ListUnitChanges) -> UnitChanges:
    limit = rows_limit(message.limit)
    changed = units.changed_after(connection, message.after, limit + 1)  # one statement: all of the same moment
    kept = changed[:limit]
    return UnitChanges(
        active=[unit_id for unit_id, _, status in kept if status == "active"],
        gone=[unit_id for unit_id, _, status in kept if status != "active"],
        last_seq=kept[-1][1] if kept else message.after,
        more=len(changed) > limit,
    )


def _room(setup: Setup) -> CoreRoom | RestoreRoom:
    settings = msgspec.msgpack.decode(setup.settings, type=RoomSetup)
    if settings.restoring:
        return RestoreRoom(Path(settings.directory), settings.identity, CoreKeeper(settings.core_writer))
    return CoreRoom(settings)


if __name__ == "__main__":
    serve(_room)
