"""The worker process of transcript_appender: which message is done on which lane, by whom."""

import time
from collections.abc import Mapping
from pathlib import Path
from sqlite3 import Connection

import msgspec

from actors.child import CallContext, StoreLost, serve
from actors.errors import BulkheadError, StoreBroken, StoreBusy
from actors.frames import Setup
from actors.gaps import encode_gaps
from actors.messages.archives import FindArchived, ListSegments, PageWholeEvents, RetireSegment, SegmentList
from actors.messages.backup import BackUp, StopBackUp
from actors.messages.base import Done, Message, Statistics
from actors.messages.core_writer import RestoreTruth
from actors.messages.exporting import ExportEvents
from actors.messages.forgetting import (
    EraseEvents,
    FindForgettable,
    ForgetSlice,
    HideEvents,
    LookForForgotten,
    ScourKeywords,
    ScourWal,
    UnindexEvents,
)
from actors.messages.transcript_appender import (
    AppendBatch,
    AppendEvents,
    AppendOutcome,
    AppendResult,
    BatchResult,
    GetEvent,
    PageEvents,
    SearchEvents,
    SessionHistory,
    SessionsSince,
    TranscriptAppenderMessage,
    TranscriptStatus,
)
from actors.messages.unit_refs import PlaceEvents
from actors.redaction import Redactor
from actors.settings import RoomSetup
from actors.sql import backup_room, swap
from actors.sql.database import (
    Call,
    Database,
    Until,
    file_bytes,
    map_os_error,
    open_reader,
    prepare_directory,
    wal_bytes,
)
from actors.sql.keywords import KeywordSource
from actors.sql.truth_room import Facts, TruthRoom
from actors.transcript_appender import archiving, forgetting, rotation, store
from actors.transcript_appender.appending import Appender
from actors.transcript_appender.backing_up import back_up
from actors.transcript_appender.catalogue import Book, segment_name
from actors.transcript_appender.examine import is_damage, is_undecodable, suspicion_of
from actors.transcript_appender.hidden import Hidden
from actors.transcript_appender.reading import Reading
from actors.transcript_appender.restoring import restore
from actors.transcript_appender.salvage import Salvage
from actors.transcript_appender.search import EventSource, SegmentedIndex, search_events
from actors.transcript_appender.segments import Segments
from actors.transcript_appender.shelf import Shelf

_PRUNE_ROWS = 256
# How long the copying of what is left of a damaged segment may hold up the start.
_SALVAGE_START_S = 0.15
_REPAIR = "repair"
# How long sealing the full segment may take, and how long it is left alone when that failed.
_ROTATE_S = 5.0
_ROTATE_AGAIN_S = 10.0


class TranscriptRoom(TruthRoom):
    """The store of the transcript. The lane `repair` copies damaged segments, and puts good ones in their place."""

    work: object = TranscriptAppenderMessage
    lanes: Mapping[type[Message], str] = {
        AppendEvents: "write",
        AppendBatch: "write",
        GetEvent: "read",
        SessionHistory: "read",
        SearchEvents: "search",
        PageEvents: "read",
        SessionsSince: "read",
        TranscriptStatus: "read",
        RestoreTruth: _REPAIR,
        ListSegments: "read",
        PageWholeEvents: "read",
        FindArchived: "read",
        PlaceEvents: "read",
        RetireSegment: _REPAIR,
        ExportEvents: "read",
        BackUp: backup_room.LANE,
        StopBackUp: "read",
        FindForgettable: "read",
        HideEvents: "write",
        UnindexEvents: "search",
        EraseEvents: "write",
        ScourKeywords: "search",
        ScourWal: "write",
        LookForForgotten: "search",
    }

    def __init__(self, setup: RoomSetup) -> None:
        limits = setup.transcript_appender
        redactor = self._redactor = Redactor(setup.redaction)
        kind = store.file_kind(limits)
        self._book = Book(Path(setup.directory))
        self._salvage = Salvage(self._book, kind)
        self._written = Shelf(self._book, self._salvage, kind, raw=True)
        self._read = Shelf(self._book, self._salvage, kind)
        self._searched = Shelf(self._book, self._salvage, kind)
        self._hidden = Hidden(Path(setup.directory))
        self.segments = Reading(
            self._book, self._salvage, self._read, self.reader, redactor=redactor, hidden=self._hidden
        )
        self._search = Reading(
            self._book, self._salvage, self._searched, self.search_reader, redactor=redactor, hidden=self._hidden
        )
        self._appender = Appender(limits, _now_us, self._written, redactor)
        self._backup = backup_room.BackupRoom(setup)
        self._shelves = {"write": self._written, "read": self._read, "search": self._searched}
        self._rotate_at = 0.0
        super().__init__(
            setup,
            file_name=segment_name(1),
            kind=kind,
            wal_bytes_max=limits.wal_bytes_max,
            slice_rows=limits.index_slice_rows,
        )

    def keyword_source(self) -> KeywordSource:
        """Return the events."""
        return EventSource(self._search)

    # ------------------------------------------------------------ opening

    def open(self, lane: str) -> Facts:
        """Open the connections of a lane; `write` comes first and decides which segment is written to."""
        if lane == backup_room.LANE:
            return {}
        if lane != _REPAIR:
            return super().open(lane)
        self._salvage.begin(_SALVAGE_START_S)
        return {"degraded": self._limitation()}

    def _prepare_files(self) -> bool:
        """Find or make the segment to write to. It has been looked at then."""
        folder = self.path.parent
        try:
            prepare_directory(folder)
            swap.finish(folder)
            swap.clean(folder)
            segments = Segments(
                self._book,
                self.kind,
                identity=self.setup.identity,
                acknowledged=self.setup.acknowledged,
                now_us=_now_us,
            )
            self.path = self._book.path_of(segments.open())
            self._hidden.load()
        except OSError as error:
            raise map_os_error(error, "opening the transcript failed") from error
        self.index = SegmentedIndex(folder, self.path, self._search, self._book)
        return True

    def prepare(self, connection: Connection) -> int:
        """Read the clock, and return the last seq that was given out."""
        if not self._book.is_current():
            raise StoreBusy("opening the transcript refused: the process before this one has changed its catalogue")
        self._appender.load(connection)
        last = store.last_seq(connection) or self._book.catalogue.active.first_seq - 1
        return max(last, self._book.catalogue.floor)

    def _limitation(self) -> str | None:
        """Return in one line what is damaged, None when nothing is."""
        damaged = self._book.catalogue.damaged()
        return "; ".join(f"segment {each.name} is sealed as damaged: {each.reason}" for each in damaged) or None

    # ------------------------------------------------------------ calls

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do a call on its lane; damage that it meets is looked into by the next process."""
        if isinstance(message, RestoreTruth):
            return restore(self._book, self._salvage, message, call)
        if isinstance(message, RetireSegment):
            return self._retire(message, call)
        if isinstance(message, StopBackUp):
            self._backup.stop()
            return Done()
        if isinstance(message, BackUp):
            with self.reading_on(backup_room.LANE):
                return back_up(self._backup, self._book, self.kind, message, call)
        lane = self.lanes[type(message)]
        try:
            if lane == "write":
                self._rotate()
            with self._shelves[lane].during(call, f"{type(message).__name__} failed"):
                self._follow(lane)
                return super().handle(message, call)
        except (StoreLost, StoreBroken, UnicodeDecodeError) as error:
            if (undecodable := self._suspect(error, type(message).__name__)) is not None:
                raise undecodable from error
            raise

    def idle(self, lane: str) -> bool:
        """Do a slice of upkeep, of indexing, or of copying what is left of a damaged segment."""
        if lane == _REPAIR:
            return self._salvage.tend()
        if lane == backup_room.LANE:
            return False
        try:
            if lane == "write":
                self._rotate()
            with self._shelves[lane].during(Until.after(_ROTATE_S), "upkeep failed"):
                self._follow(lane)
                return super().idle(lane)
        except StoreLost as lost:
            self._suspect(lost, "upkeep")
            raise

    def _retire(self, message: RetireSegment, call: CallContext) -> Done:
        """Let an archive take the place of a segment, on the lane of what takes long."""
        try:
            archiving.retire(self._book, self.kind, message, call, _now_us())
        except OSError as error:
            raise map_os_error(error, "archiving failed") from error
        return Done()

    def interrupt(self, lane: str) -> None:
        """Stop the running statement of a lane; a restore and a backup look at their deadline themselves."""
        if lane not in (_REPAIR, backup_room.LANE):
            super().interrupt(lane)

    # ------------------------------------------------------------ the next segment

    def _rotate(self) -> None:
        """Seal the active segment when it is full. A disk that does not take the next one leaves it the active one."""
        size, now = file_bytes(self.path) + wal_bytes(self.path), time.monotonic()
        if now < self._rotate_at or self._no_room is not None or not self._is_full(size):
            return
        full, call = self._databases["write"], Until.after(_ROTATE_S)
        self._rotate_at = now + _ROTATE_AGAIN_S
        try:
            with full.during(call, "sealing the segment failed"):
                fresh = rotation.begin_next(
                    self._book,
                    self.kind,
                    full,
                    call,
                    clock=self._appender.clock,
                    now_us=_now_us(),
                    take_over=lambda database: self._take_over(database, call),
                )
        except (BulkheadError, OSError):
            return  # appends go on where they are, and find out for themselves what the disk is up to
        if fresh is not None:
            self._rotate_at = 0.0
            self._write_to(fresh)
            full.close()

    def _is_full(self, size: int) -> bool:
        active, bytes_max = self._book.catalogue.active, self.setup.transcript_appender.segment_bytes_max
        return rotation.is_due(active, size=size, bytes_max=bytes_max, now_us=_now_us())

    def _follow(self, lane: str) -> None:
        """Let a reading lane look at the segment that is the active one for the call."""
        path = self._book.path_of(self._shelves[lane].active)
        database = self._databases.get(lane)
        if lane == "write" or database is None or database.path == path:
            return
        self._databases[lane] = Database(open_reader(path, self.kind), path)
        database.close()
        if lane == "search":
            assert isinstance(self.index, SegmentedIndex)
            self.index.follow(path)

    def _suspect(self, error: Exception, what: str) -> StoreLost | None:
        """Leave word about damage that was met; who met it in an earlier segment has done so already.

        A cell that is no text would fail every time: for that one the StoreLost is returned with which the process
        leaves, so that the next one finds it and seals the segment.
        """
        cause = error if isinstance(error, UnicodeDecodeError) else error.__cause__
        if cause is None or not is_damage(cause):
            return None
        if self._book.catalogue.suspicion is None:
            self._book.suspect(suspicion_of(self._book.catalogue.active.number, cause))
        if is_undecodable(cause):
            return StoreLost(StoreBroken(f"{what} failed: a cell holds no text", outcome="not_executed"))
        return None

    def write(self, connection: Connection, message: Message, call: CallContext) -> msgspec.Struct:
        """Append."""
        if isinstance(message, HideEvents):
            self._hidden.add(message.seqs, call)
            return ForgetSlice(rows=len(self._hidden), more=False)
        if isinstance(message, EraseEvents):
            return forgetting.erase(self._book, self.kind, connection, message, call)
        if isinstance(message, ScourWal):
            return forgetting.scour_wals(self._book, self.kind, connection)
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
                return self.segments.get_event(message)
            case SessionHistory():
                return self.segments.history(message)
            case SearchEvents():
                return search_events(
                    self._search,
                    self.index,
                    message,
                    until=self.answer_by(call),
                    slice_rows=self.slice_rows,
                    snippet_chars_max=self.setup.searcher.snippet_chars_max,
                    redactor=self._redactor,
                )
            case PageEvents():
                return self.segments.page_events(message)
            case ExportEvents():
                return self.segments.export_events(message)
            case SessionsSince():
                return self.segments.sessions_since(message)
            case TranscriptStatus():
                return self._status()
        return self._look_up(message, call)

    def _look_up(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Look up what is seldom asked for: by archives, references and orders to forget."""
        match message:
            case ListSegments():
                return self._list_segments()
            case PageWholeEvents():
                return self.segments.page_whole(message)
            case PlaceEvents():
                return self.segments.place_events(message)
            case FindArchived():
                return self.segments.find_archived(message)
            case FindForgettable():
                return forgetting.find(self.segments, message)
            case UnindexEvents():
                return forgetting.unindex(self._search, self.index, message, self.answer_by(call))
            case ScourKeywords():
                return ForgetSlice(rows=0, more=self.index.scour(self.answer_by(call)))
            case LookForForgotten():
                return forgetting.look(self._search, self.index, message)
        raise AssertionError(f"not a message of a reading lane: {message!r}")

    def upkeep(self, connection: Connection, call: Call) -> bool:
        """Drop old notes about recent events, keep in the catalogue how far the transcript goes, and have each sealed
        segment in one file."""
        self._book.raise_floor(store.last_seq(connection), self._appender.clock)
        if (segment := rotation.unsettled(self._book)) is not None and rotation.settle(self._book, self.kind, segment):
            return True
        return self._appender.prune(connection, call, _PRUNE_ROWS)

    def _list_segments(self) -> SegmentList:
        last_seq = self.segments.last_seq()
        return SegmentList(
            segments=[archiving.info(self._book, each, last_seq) for each in self._book.catalogue.segments]
        )

    def _status(self) -> Statistics:
        seq, catalogue = self.segments.last_seq(), self._book.catalogue
        values = {
            "seq": seq,
            "events": self.segments.count_between(0, seq),
            "sessions": self.segments.count_sessions(),
            "keyword_seq": self.index.cursor,
            "keyword_behind": self.segments.count_between(self.index.cursor, seq),
            "segment": catalogue.active.number,
            "segments_archived": sum(each.state == "archived" for each in catalogue.segments),
            "sealed_bytes": sum(file_bytes(self._book.path_of(each)) for each in catalogue.segments[:-1]),
            "segments_damaged": len(catalogue.damaged()),
            "degraded": self._limitation(),
            "gaps": encode_gaps(self.segments.gaps()),
            **self.file_facts(),
        }
        return Statistics(values=values)


def _now_us() -> int:
    return time.time_ns() // 1000


def _batch_result(results: list[AppendResult | BulkheadError]) -> BatchResult:
    return BatchResult(outcomes=[_outcome(result) for result in results])


def _outcome(result: AppendResult | BulkheadError) -> AppendOutcome:
    if isinstance(result, AppendResult):
        return AppendOutcome(result=result)
    encoded = msgspec.msgpack.encode(result.info())
    return AppendOutcome(error=msgspec.Raw(msgspec.msgpack.encode(encoded)))


def _room(setup: Setup) -> TranscriptRoom:
    return TranscriptRoom(msgspec.msgpack.decode(setup.settings, type=RoomSetup))


if __name__ == "__main__":
    serve(_room)
