"""What is said to transcript_appender: events, in and out."""

from actors.messages.archives import FindArchived, ListSegments, PageWholeEvents, RetireSegment
from actors.messages.backup import BackUp, StopBackUp
from actors.messages.base import (
    Candidates,
    EventActor,
    EventKind,
    Filters,
    JsonValue,
    Message,
    Row,
    Rows,
    Statistics,
    Struct,
)
from actors.messages.core_writer import RestoreTruth, SessionActivity
from actors.messages.exporting import ExportEvents
from actors.messages.forgetting import TranscriptForgetMessage
from actors.messages.unit_refs import PlaceEvents


class EventDraft(Struct, frozen=True, kw_only=True):
    """An event as a client gives it. Absent members are filled in by the store: id, ts, content hash, seq."""

    session_id: str
    actor: EventActor
    content: str
    kind: EventKind = "message"
    event_id: str | None = None
    ts: int | None = None
    channel: str | None = None
    project: str | None = None
    tags: tuple[str, ...] = ()
    meta: dict[str, JsonValue] | None = None
    trace_id: str | None = None
    request_id: str | None = None
    scope: str = "session"


class Appended(Struct, frozen=True, kw_only=True):
    """The acknowledgement of one event. `deduplicated`: it was there already and this is the first result.

    `redacted` says how many secrets of which kind were taken out of what was sent this time.
    """

    event_id: str
    seq: int
    deduplicated: bool = False
    redacted: dict[str, int] = {}


class AppendResult(Struct, frozen=True, kw_only=True):
    """One acknowledgement per event, in order. Durable (fsync) when this is sent."""

    results: list[Appended]
    new_sessions: tuple[str, ...] = ()


class AppendEvents(Message, frozen=True, kw_only=True):
    """Append events in order, all or none. Each is idempotent by `event_id` and by `request_id`."""

    answer = AppendResult
    events: tuple[EventDraft, ...]
    tenant: str = "default"

    def may_repeat(self) -> bool:
        """Say whether every event has an id by which a repetition is recognised."""
        return all(each.event_id is not None or each.request_id is not None for each in self.events)


class AppendOutcome(Struct, frozen=True, kw_only=True):
    """What became of one message of a batch: exactly one member is set."""

    result: AppendResult | None = None
    error: bytes | None = None


class BatchResult(Struct, frozen=True, kw_only=True):
    """One outcome per message of the batch, in order; `error` is an encoded ErrorInfo."""

    outcomes: list[AppendOutcome]


class AppendBatch(Message, frozen=True, kw_only=True):
    """From the actor to its worker only: several clients' appends in one transaction, each on its own savepoint."""

    answer = BatchResult
    appends: tuple[AppendEvents, ...]


class GetEvent(Message, frozen=True, kw_only=True):
    """Return one event; NotFound when there is none. `shown`: for an agent, with hidden characters shown."""

    answer = Row
    event_id: str
    shown: bool = False
    tenant: str = "default"


class SessionHistory(Message, frozen=True, kw_only=True):
    """Return a page of a session's events in the order of seq.

    `after_seq` pages forward from there, `before_seq` pages backward from there (the rows are still ascending);
    neither means the last page. Never both.
    """

    answer = Rows
    session_id: str
    limit: int
    after_seq: int | None = None
    before_seq: int | None = None
    tenant: str = "default"


class SearchEvents(Message, frozen=True, kw_only=True):
    """Find events by keyword among those with seq > `newer_than` (0 means all)."""

    answer = Candidates
    query: str
    newer_than: int = 0
    limit: int = 100
    filters: Filters = Filters()
    tenant: str = "default"


class EventPage(Struct, frozen=True, kw_only=True):
    """A page of events for the builder: `rows` is msgpack, a list of maps; `last_seq` is where the next page begins."""

    rows: bytes
    count: int
    last_seq: int
    more: bool


class PageEvents(Message, frozen=True, kw_only=True):
    """Page events by seq: after < seq <= until, at most `limit` rows or about `bytes_max` of content."""

    answer = EventPage
    after: int
    until: int
    limit: int
    bytes_max: int


class SessionPage(Struct, frozen=True, kw_only=True):
    """Sessions whose activity changed after the cursor that was asked with."""

    sessions: list[SessionActivity]
    cursor: int
    more: bool


class SessionsSince(Message, frozen=True, kw_only=True):
    """Return sessions with events of seq > cursor, ascending by their last seq."""

    answer = SessionPage
    cursor: int
    limit: int


class TranscriptStatus(Message, frozen=True, kw_only=True):
    """Return counters of the transcript store, `seq` and `keyword_seq` among them."""

    answer = Statistics


TranscriptAppenderMessage = (
    AppendEvents
    | AppendBatch
    | GetEvent
    | SessionHistory
    | SearchEvents
    | PageEvents
    | SessionsSince
    | TranscriptStatus
    | RestoreTruth
    | ListSegments
    | PageWholeEvents
    | RetireSegment
    | FindArchived
    | PlaceEvents
    | BackUp
    | StopBackUp
    | ExportEvents
    | TranscriptForgetMessage
)
