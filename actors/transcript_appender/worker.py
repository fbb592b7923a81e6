"""The worker process of transcript_appender: which message is done on which lane, by whom."""

import time
from collections.abc import Mapping
from sqlite3 import Connection

import msgspec

from actors.child import CallContext, serve
from actors.errors import BulkheadError, InvalidParams, NotFound, Quarantined
from actors.frames import Setup
from actors.messages import (
    AppendBatch,
    AppendEvents,
    AppendOutcome,
    AppendResult,
    BatchResult,
    EventPage,
    GetEvent,
    Message,
    PageEvents,
    Row,
    Rows,
    SearchEvents,
    SessionHistory,
    SessionPage,
    SessionsSince,
    Statistics,
    TranscriptAppenderMessage,
    TranscriptStatus,
)
from actors.settings import RoomSetup
from actors.sql.database import Call
from actors.sql.keywords import KeywordSource
from actors.sql.rows import page, rows_limit
from actors.sql.truth_room import TruthRoom
from actors.transcript_appender import sessions, store
from actors.transcript_appender.appending import Appender
from actors.transcript_appender.search import EventSource, search_events

_TAIL_ROWS = 1000
_PRUNE_ROWS = 256
_SEQ_MAX = 2**63 - 1


class TranscriptRoom(TruthRoom):
    """The store of the transcript, on its two lanes."""

    work: object = TranscriptAppenderMessage
    lanes: Mapping[type[Message], str] = {
        AppendEvents: "write",
        AppendBatch: "write",
        GetEvent: "read",
        SessionHistory: "read",
        SearchEvents: "read",
        PageEvents: "read",
        SessionsSince: "read",
        TranscriptStatus: "read",
    }

    def __init__(self, setup: RoomSetup) -> None:
        limits = setup.transcript_appender
        super().__init__(
            setup,
            file_name=store.FILE_NAME,
            kind=store.file_kind(limits),
            wal_bytes_max=limits.wal_bytes_max,
            slice_rows=limits.index_slice_rows,
        )
        self._appender = Appender(limits, lambda: time.time_ns() // 1000)

    def keyword_source(self) -> KeywordSource:
        """Return the events."""
        return EventSource(self.reader)

    def prepare(self, connection: Connection) -> int:
        """Check that the tail has no gap, and read the clock."""
        last = store.last_seq(connection)
        present = store.count_last(connection, _TAIL_ROWS)
        if present != min(last, _TAIL_ROWS):
            raise Quarantined(
                f"transcript {str(self.path)!r} has {present} of its last {min(last, _TAIL_ROWS)} events",
                hint="the file is kept as it is; restore it from a backup",
            )
        self._appender.load(connection)
        return last

    def write(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Append."""
        if isinstance(message, AppendBatch):
            return _batch_result(self._appender.append(connection, message.appends, call))
        assert isinstance(message, AppendEvents)
        (result,) = self._appender.append(connection, (message,), call)
        if isinstance(result, BulkheadError):
            raise result
        return result

    def read(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Look something up."""
        match message:
            case GetEvent():
                return _get_event(connection, message)
            case SessionHistory():
                return _history(connection, message)
            case SearchEvents():
                return search_events(
                    connection,
                    self.index,
                    message,
                    until=self.answer_by(call),
                    slice_rows=self.slice_rows,
                    snippet_chars_max=self.setup.searcher.snippet_chars_max,
                )
            case PageEvents():
                return _page(connection, message)
            case SessionsSince():
                return _sessions(connection, message)
            case TranscriptStatus():
                return self._status(connection)
        raise AssertionError(f"not a message of the read lane: {message!r}")

    def upkeep(self, connection: Connection, call: Call) -> bool:
        """Drop old notes about recent events."""
        return self._appender.prune(connection, call, _PRUNE_ROWS)

    def _status(self, connection: Connection) -> Statistics:
        seq = store.last_seq(connection)
        values = {
            "seq": seq,
            "events": seq,
            "sessions": sessions.count_sessions(connection),
            "keyword_seq": self.index.cursor,
            "keyword_behind": seq - self.index.cursor,
            **self.file_facts(),
        }
        return Statistics(values=values)


def _batch_result(results: list[AppendResult | BulkheadError]) -> BatchResult:
    return BatchResult(outcomes=[_outcome(result) for result in results])


def _outcome(result: AppendResult | BulkheadError) -> AppendOutcome:
    if isinstance(result, AppendResult):
        return AppendOutcome(result=result)
    encoded = msgspec.msgpack.encode(result.info())
    return AppendOutcome(error=msgspec.Raw(msgspec.msgpack.encode(encoded)))


def _get_event(connection: Connection, message: GetEvent) -> Row:
    event = store.get_event(connection, message.tenant, message.event_id)
    if event is None:
        raise NotFound(f"there is no event {message.event_id!r}")
    return Row(row=store.client_row(event))


def _history(connection: Connection, message: SessionHistory) -> Rows:
    if message.after_seq is not None and message.before_seq is not None:
        raise InvalidParams("session.history refused: after_seq and before_seq exclude each other")
    limit = rows_limit(message.limit)
    tenant, session_id = message.tenant, message.session_id
    if message.after_seq is not None:
        rows = store.session_after(connection, tenant, session_id, message.after_seq, limit + 1)
        return page(map(store.client_row, rows), limit)
    before = _SEQ_MAX if message.before_seq is None else message.before_seq
    rows = store.session_before(connection, tenant, session_id, before, limit + 1)
    return page(map(store.client_row, rows), limit, reverse=True)


def _page(connection: Connection, message: PageEvents) -> EventPage:
    rows: list[msgspec.Raw] = []
    size, last_seq = 0, message.after
    for event in store.events_between(connection, message.after, message.until, rows_limit(message.limit)):
        row = store.builder_row(event)
        if rows and size + len(row) > message.bytes_max:
            break
        rows.append(msgspec.Raw(row))
        size, last_seq = size + len(row), event.seq
    more = last_seq < min(message.until, store.last_seq(connection)) if rows else False
    return EventPage(rows=msgspec.msgpack.encode(rows), count=len(rows), last_seq=last_seq, more=more)


def _sessions(connection: Connection, message: SessionsSince) -> SessionPage:
    limit = rows_limit(message.limit)
    found = sessions.sessions_since(connection, message.cursor, limit + 1)
    shown = found[:limit]
    return SessionPage(sessions=shown, cursor=shown[-1].last_seq if shown else message.cursor, more=len(found) > limit)


def _room(setup: Setup) -> TranscriptRoom:
    return TranscriptRoom(msgspec.msgpack.decode(setup.settings, type=RoomSetup))


if __name__ == "__main__":
    serve(_room)
