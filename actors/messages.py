"""Every message in the house, grouped by recipient. Read this second, after docs/ARCHITECTURE.md.

A message is a frozen, keyword-only, tagged msgspec struct. The same struct travels from the route to the
mailbox, and, where the work is storage, on to the worker process; there is no second vocabulary for the pipe.
Deadlines travel beside the message (in the envelope and in the frame), never inside it.

Units: times called `ts` are int64 microseconds since the epoch, UTC; `*_ms` are milliseconds; `seq` counts
events of this data directory from 1 upwards, without gaps within a segment; `core_seq` counts changes of units from 1.

`answer` is the type that the recipient replies with. `may_repeat` says whether the message may be given to the next
incarnation when one died with it in hand: true for reads, and for writes that are idempotent by an id.
Fields called `rows` and `row` are JSON or msgpack text made by the worker: the daemon relays them undecoded.
"""

from typing import ClassVar, Literal

import msgspec

Corpus = Literal["events", "units", "documents"]
CORPORA: tuple[Corpus, ...] = ("events", "units", "documents")
EventKind = Literal["message", "tool_call", "tool_result", "document_fragment"]
EventActor = Literal["user", "assistant", "system", "tool"]
UnitType = Literal["profile", "summary", "skill", "plan"]
UnitScope = Literal["user", "session", "global"]
UnitStatus = Literal["active", "deprecated", "forgotten"]
SearchMode = Literal["hybrid", "keyword", "vector"]
WatchMode = Literal["events", "polling"]
JsonValue = object


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """Plain immutable data that travels inside a message or an answer."""


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True, tag_field="$"):
    """Something said to an actor."""

    answer: ClassVar[type[msgspec.Struct]]

    def may_repeat(self) -> bool:
        """Say whether doing it a second time is harmless, also when the first time took effect unseen."""
        return True


class Done(Struct, frozen=True, kw_only=True):
    """The answer of a command that has nothing to tell but that it is done."""


class Row(Struct, frozen=True, kw_only=True):
    """One row as JSON text."""

    row: bytes


class Rows(Struct, frozen=True, kw_only=True):
    """A page of rows: `rows` is a JSON array; `more` says whether the next page would hold any.

    `degraded` are (code, detail) pairs: why rows may be missing that ought to be in it.
    """

    rows: bytes
    count: int
    more: bool = False
    degraded: tuple[tuple[str, str], ...] = ()


class Statistics(Struct, frozen=True, kw_only=True):
    """Counters of a store, by name."""

    values: dict[str, int | float | str | bool | None]


# ---------------------------------------------------------------- shared by searcher, transcript, core


class Filters(Struct, frozen=True, kw_only=True):
    """What a search may be narrowed to. Every given member must hold; a list means any of its values.

    `tags` is the exception: all of them must be present. `since` is inclusive and `until` exclusive, in µs.
    `path` is a prefix of the document's path. A member that does not apply to a corpus excludes that corpus.
    """

    session_ids: tuple[str, ...] = ()
    actors: tuple[EventActor, ...] = ()
    kinds: tuple[EventKind, ...] = ()
    tags: tuple[str, ...] = ()
    since: int | None = None
    until: int | None = None
    path: str | None = None
    types: tuple[UnitType, ...] = ()
    scopes: tuple[UnitScope, ...] = ()


class Candidate(Struct, frozen=True, kw_only=True):
    """One row that a search found, before ranking.

    `text_score` is a BM25 score (larger is better, unbounded), `vector_score` a cosine in [-1, 1]; None means that
    the row was not in that list. `snippet` is at most `snippet_chars_max` characters around the best match.
    `part` numbers the pieces of one long event; ranking keeps the best piece of an id.
    """

    id: str
    corpus: Corpus
    version: int = 0
    part: int = 0
    text_score: float | None = None
    vector_score: float | None = None
    snippet: str = ""
    ts: int = 0
    seq: int = 0
    session_id: str | None = None
    actor: str | None = None
    kind: str | None = None
    path: str | None = None
    from_line: int | None = None
    to_line: int | None = None
    heading: str | None = None
    type: str | None = None
    scope: str | None = None
    tags: tuple[str, ...] = ()


class Candidates(Struct, frozen=True, kw_only=True):
    """What a keyword search of the truth found among the rows newer than the bound it was given.

    `behind` counts rows that the keyword index had not reached when time ran out (0: complete).
    `changed` are unit ids whose rows in an older generation are out of date and must be masked.
    `latest` is the highest seq (or core_seq) that exists, so that the caller can say how far behind it is; `newer` is
    how many rows lie between its bound and there, where that is not the difference of the two (events, whose seq has
    gaps between segments). `degraded` are (code, detail) pairs: why rows may be missing that ought to be in it.
    """

    found: list[Candidate]
    latest: int
    behind: int = 0
    changed: tuple[str, ...] = ()
    newer: int | None = None
    degraded: tuple[tuple[str, str], ...] = ()


# ---------------------------------------------------------------- core_writer


class OpenSession(Message, frozen=True, kw_only=True):
    """Create the session, or return the one that exists; members that are given replace the stored ones."""

    answer = Row
    session_id: str
    title: str | None = None
    agent: str | None = None
    meta: dict[str, JsonValue] | None = None
    tenant: str = "default"
    request_id: str | None = None


class GetSession(Message, frozen=True, kw_only=True):
    """Return one session; NotFound when there is none."""

    answer = Row
    session_id: str
    tenant: str = "default"


class ListSessions(Message, frozen=True, kw_only=True):
    """Return sessions, the most recently active first. `before` is the `cursor` of the last row of the page before."""

    answer = Rows
    limit: int
    before: str | None = None
    status: Literal["open", "closed"] | None = None
    tenant: str = "default"


class CloseSession(Message, frozen=True, kw_only=True):
    """Mark the session closed. Its events stay; appending to it opens it again."""

    answer = Row
    session_id: str
    tenant: str = "default"
    request_id: str | None = None


class SessionActivity(Struct, frozen=True, kw_only=True):
    """What the transcript knows of one session."""

    session_id: str
    tenant: str
    first_ts: int
    last_ts: int
    last_seq: int
    events: int


class AdoptSessions(Message, frozen=True, kw_only=True):
    """Take over from the transcript which sessions exist and when they were last active. Idempotent."""

    answer = Done
    sessions: list[SessionActivity]
    cursor: int


class PutUnit(Message, frozen=True, kw_only=True):
    """Write a version of a unit: version 1 of a new one, or the next version of `unit_id`, which deprecates the last.

    `expected_version` refuses with Conflict unless the stored version is that one (0: must not exist yet).
    """

    answer = Row
    unit_id: str | None = None
    type: UnitType
    scope: UnitScope
    text: str
    facts: dict[str, JsonValue] | None = None
    event_refs: tuple[str, ...] = ()
    confidence: float | None = None
    parent_unit_id: str | None = None
    status: Literal["active", "deprecated"] = "active"
    tags: tuple[str, ...] = ()
    session_id: str | None = None
    expected_version: int | None = None
    tenant: str = "default"
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.request_id is not None


class GetUnit(Message, frozen=True, kw_only=True):
    """Return a unit at `version`, or its latest."""

    answer = Row
    unit_id: str
    version: int | None = None
    tenant: str = "default"


class UnitHistory(Message, frozen=True, kw_only=True):
    """Return the versions of a unit, the newest first, older than `before_version` when that is given."""

    answer = Rows
    unit_id: str
    limit: int
    before_version: int | None = None
    tenant: str = "default"


class ListUnits(Message, frozen=True, kw_only=True):
    """Return the latest versions of units by core_seq, the newest first, older than `before_core_seq` when given."""

    answer = Rows
    limit: int
    before_core_seq: int | None = None
    type: UnitType | None = None
    scope: UnitScope | None = None
    status: UnitStatus | None = "active"
    tenant: str = "default"


class SearchUnits(Message, frozen=True, kw_only=True):
    """Find active units by keyword among those changed after `newer_than` (a core_seq; 0 means all)."""

    answer = Candidates
    query: str
    newer_than: int = 0
    limit: int = 100
    filters: Filters = Filters()
    tenant: str = "default"


class UnitIds(Struct, frozen=True, kw_only=True):
    """Ids of units, in the order of their changes; those after `last_seq` are not in it when there are `more`."""

    ids: list[str]
    last_seq: int
    more: bool


class ListChangedUnits(Message, frozen=True, kw_only=True):
    """Name the units of all tenants that changed at after < core_seq <= until, whatever they are now: what a delta
    masks. At most `limit`.
    """

    answer = UnitIds
    after: int
    until: int
    limit: int


class UnitChanges(Struct, frozen=True, kw_only=True):
    """Units that changed, by what they are now: active, or not. When there are `more`, go on after `last_seq`."""

    active: list[str]
    gone: list[str]
    last_seq: int
    more: bool


class ListUnitChanges(Message, frozen=True, kw_only=True):
    """Name the units of all tenants whose last change came after a core_seq, at most `limit`, in that order.

    One that changes while it is paged through comes again, as what it is then.
    """

    answer = UnitChanges
    after: int
    limit: int


class PageUnits(Message, frozen=True, kw_only=True):
    """Page the latest active versions by core_seq, for the builder: after < core_seq <= until.

    `rows` is msgpack: a list of maps with the members of a unit row.
    """

    answer = Rows
    after: int
    until: int
    limit: int


class SourceRoot(Struct, frozen=True, kw_only=True):
    """A folder of markdown notes. `path` is absolute and resolved."""

    source_id: str
    path: str
    name: str
    added_at: int
    tenant: str = "default"


class AddSource(Message, frozen=True, kw_only=True):
    """Register a markdown root; adding the same path again returns the first registration."""

    answer = Row
    path: str
    name: str | None = None
    tenant: str = "default"
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.request_id is not None


class SourceRoots(Struct, frozen=True, kw_only=True):
    """All registered roots, in the order in which they were added."""

    sources: list[SourceRoot]


class ListSources(Message, frozen=True, kw_only=True):
    """Return the registered roots of a tenant, or of all of them when `tenant` is None (the builder)."""

    answer = SourceRoots
    tenant: str | None = "default"


class RemoveSource(Message, frozen=True, kw_only=True):
    """Forget a root by id or path. The files are not touched; their rows leave with the next generation."""

    answer = Row
    source_id: str
    tenant: str = "default"
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.request_id is not None


class GenerationNumber(Struct, frozen=True, kw_only=True):
    """A number that no generation of this data directory has had."""

    generation: int


class AllocateGeneration(Message, frozen=True, kw_only=True):
    """Reserve the next generation number, above every earlier one and above `at_least`. Durable on answer."""

    answer = GenerationNumber
    at_least: int = 0


class RestoreTruth(Message, frozen=True, kw_only=True):
    """Replace a truth: by the database at `path` (absolute), or by what can still be read of it (None).

    Done by the room's worker in its maintenance mode; the old files are kept. `row`: what was kept and lost per table.
    """

    answer = Row
    path: str | None = None

    def may_repeat(self) -> bool:
        """Say no: it replaces files, and whoever asked for it must know how often."""
        return False


class CoreStatus(Message, frozen=True, kw_only=True):
    """Return counters of the core store, `core_seq` and `sources_seq` among them."""

    answer = Statistics


CoreWriterMessage = (
    OpenSession
    | GetSession
    | ListSessions
    | CloseSession
    | AdoptSessions
    | PutUnit
    | GetUnit
    | UnitHistory
    | ListUnits
    | SearchUnits
    | PageUnits
    | ListChangedUnits
    | ListUnitChanges
    | AddSource
    | ListSources
    | RemoveSource
    | AllocateGeneration
    | RestoreTruth
    | CoreStatus
)

# ---------------------------------------------------------------- transcript_appender


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
    """The acknowledgement of one event. `deduplicated`: it was there already and this is the first result."""

    event_id: str
    seq: int
    deduplicated: bool = False


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
    """Return one event; NotFound when there is none."""

    answer = Row
    event_id: str
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
)

# ---------------------------------------------------------------- cache_manager


class Vectors(Struct, frozen=True, kw_only=True):
    """Vectors for the keys that were asked for: `found[i]` indexes the keys, row i of `blob` is its vector.

    `blob` is `len(found)` × `dimensions` little-endian float32, row after row.
    """

    found: list[int]
    dimensions: int
    blob: bytes


class GetVectors(Message, frozen=True, kw_only=True):
    """Look up vectors by (embedding identity, content hash). Keys are 32-byte hashes."""

    answer = Vectors
    identity: str
    keys: list[bytes]


class PutVectors(Message, frozen=True, kw_only=True):
    """Keep vectors; the least recently used ones give way when the cap is reached."""

    answer = Done
    identity: str
    keys: list[bytes]
    dimensions: int
    blob: bytes


class CacheStats(Message, frozen=True, kw_only=True):
    """Return counters: entries, bytes, bytes_max, hits, misses, evicted, recreated."""

    answer = Statistics


class TrimCache(Message, frozen=True, kw_only=True):
    """Evict the least recently used vectors until at most `bytes_max` remain."""

    answer = Statistics
    bytes_max: int


class ClearCache(Message, frozen=True, kw_only=True):
    """Drop every vector."""

    answer = Statistics


CacheManagerMessage = GetVectors | PutVectors | CacheStats | TrimCache | ClearCache

# ---------------------------------------------------------------- generation_builder


class EmbeddingIdentity(Struct, frozen=True, kw_only=True):
    """What makes two vectors comparable. A change of any member is another space and needs a generation of its own."""

    provider: str
    model: str
    dimensions: int
    normalised: bool
    prefix: str
    chunking: str

    @property
    def key(self) -> str:
        """Return the identity as one line, used as the key of caches and manifests."""
        return "|".join(
            (
                self.provider,
                self.model,
                str(self.dimensions),
                "unit" if self.normalised else "raw",
                self.prefix,
                self.chunking,
            )
        )


class Covers(Struct, frozen=True, kw_only=True):
    """How much of the truth a generation holds."""

    event_seq: int = 0
    core_seq: int = 0
    sources_digest: str = ""


def view_number(generation: int, delta: int | None) -> int:
    """Return the number under which a generation with a delta over it is known; without one it is the generation's."""
    return generation | (delta or 0) << _DELTA_SHIFT


def split_view(view: int) -> tuple[int, int | None]:
    """Return the generation and the delta that a view number stands for."""
    return view & (1 << _DELTA_SHIFT) - 1, view >> _DELTA_SHIFT or None


def view_name(view: int) -> str:
    """Return what a view is called in logs and errors: `42`, or `42-d0007` with a delta."""
    generation, delta = split_view(view)
    return str(generation) if delta is None else f"{generation}-d{delta:04d}"


_DELTA_SHIFT = 32


class Items(Struct, frozen=True, kw_only=True):
    """How many items (events, units, notes) something holds, whatever number of rows each of them has.

    Those in between, neither complete nor bare, still miss a vector.
    """

    items: int = 0
    complete: int = 0  # all of its text that can have a vector has one
    bare: int = 0  # there is nothing in it that a vector could stand for

    def plus(self, other: "Items") -> "Items":
        """Return both together."""
        return Items(
            items=self.items + other.items, complete=self.complete + other.complete, bare=self.bare + other.bare
        )

    def minus(self, other: "Items") -> "Items":
        """Return these without the other ones, which are among them."""
        return Items(
            items=self.items - other.items, complete=self.complete - other.complete, bare=self.bare - other.bare
        )


class GenerationRef(Struct, frozen=True, kw_only=True):
    """A generation that passed verification, with or without a delta over it: what the searcher needs to open it.

    `covers`, `rows`, `items` and the vectors are those of both together: what the delta masks does not count.
    """

    generation: int
    delta: int | None = None
    path: str
    delta_path: str | None = None
    covers: Covers
    rows: dict[str, int]
    vectors_have: int
    vectors_want: int
    identity: EmbeddingIdentity | None
    built_at: int
    bytes: int = 0  # of all its files
    delta_rows: int = 0  # how many rows the delta holds
    vector_index: dict[str, str] = {}  # the kind by table; one that is not there is searched exactly
    items: dict[str, Items] = {}  # by corpus
    deferred: int = 0  # notes that were left to the next generation

    @property
    def view(self) -> int:
        """Return the number by which readers know it."""
        return view_number(self.generation, self.delta)


class Skip(Struct, frozen=True, kw_only=True):
    """A file or folder that the scan left out, and why. `detail` is for people."""

    path: str
    reason: str
    detail: str = ""


class Progress(Struct, frozen=True, kw_only=True):
    """How far a build is: `done` of `total` rows in `stage` (files while notes are read), and estimates of the whole.

    `percent` is of the time that the build takes and never falls; `rows_per_s` is of the stage, None where it counts no
    rows; `eta_s` are seconds until it is published. `build` numbers the full builds of this daemon, 0 for a delta.
    """

    stage: str
    done: int = 0
    total: int = 0
    generation: int = 0
    build: int = 0
    reason: str = ""
    percent: float = 0.0
    rows_per_s: float | None = None
    eta_s: int | None = None


class BuildEnd(Struct, frozen=True, kw_only=True):
    """What became of a full build: published, kept as the successor of another embedding model, failed, cancelled."""

    build: int
    state: Literal["published", "successor", "failed", "cancelled"]
    generation: int | None = None
    error: str | None = None


class RecoverIndex(Message, frozen=True, kw_only=True):
    """Remove the remains of a crash, find and verify the generation to serve. Answers what there is.

    `building` is the generation that another process is building; its folder is left alone. `distrusted` are those that
    are what was sealed and do not answer as they should: they are put aside like damaged ones.
    """

    answer: ClassVar[type[msgspec.Struct]]
    building: int | None = None
    distrusted: dict[int, str] = {}  # number of the generation, and why


class IndexState(Struct, frozen=True, kw_only=True):
    """What lies on disk: the view to serve (None: no usable one) and its generation, the generations kept behind it,
    what was put aside. `deltas_highest` is the highest number of a delta.
    """

    current: GenerationRef | None
    base: GenerationRef | None = None
    deltas_highest: int = 0
    previous: list[GenerationRef]
    highest: int
    suspects: list[Skip]


RecoverIndex.answer = IndexState


class ScanResult(Struct, frozen=True, kw_only=True):
    """Which files the roots hold: `digest` changes when any of them does. `held` explains roots kept as they were.

    By source_id: `files_of` counts the notes, `held_roots` says which roots are held as a whole, `walk_ms_of` how long
    the last walk took, `unfinished` whose walk goes on: ask again.
    """

    digest: str
    files: int
    bytes: int
    skipped: list[Skip]
    held: list[Skip]
    files_of: dict[str, int] = {}
    held_roots: dict[str, Skip] = {}
    walk_ms_of: dict[str, float] = {}
    unfinished: list[str] = []


class ScanSources(Message, frozen=True, kw_only=True):
    """Walk the roots (names, sizes, times; contents are not read) and compute their digest.

    `only` those by source_id, and those that were never walked; of the others the last walk counts.
    """

    answer = ScanResult
    sources: list[SourceRoot]
    only: list[str] | None = None


class RootWatch(Struct, frozen=True, kw_only=True):
    """How the changes of a root are noticed, and why so when it is polled. `changes` grows with each that is."""

    source_id: str
    mode: WatchMode = "polling"
    reason: str | None = None
    changes: int = 0


class RootWatches(Struct, frozen=True, kw_only=True):
    """The watches of all roots."""

    watches: list[RootWatch]


class WatchSources(Message, frozen=True, kw_only=True):
    """Watch these roots and no others; answer when what is known of them is not `seen`, at the latest after `wait_ms`.

    An answer that is lost costs nothing: the next call with the same `seen` is given the same.
    """

    answer = RootWatches
    sources: list[SourceRoot]
    seen: list[RootWatch]
    wait_ms: int


class BeginBuild(Message, frozen=True, kw_only=True):
    """Start a generation in a temporary folder. `previous` lends its vectors where identity and hash agree.

    `lender` does so besides it: the successor, while the embedding model is being changed. Notes of more than
    `note_bytes_max` bytes are left to the next generation.
    """

    answer = Done
    generation: int
    covers: Covers
    identity: EmbeddingIdentity | None
    previous: GenerationRef | None
    lender: GenerationRef | None = None
    sources: list[SourceRoot]
    note_bytes_max: int | None = None


class Staged(Struct, frozen=True, kw_only=True):
    """Rows are staged. `wanted` are the content hashes whose vector the previous generation did not have."""

    rows: int
    wanted: list[bytes]
    more: bool = False


class BeginDelta(Message, frozen=True, kw_only=True):
    """Start a delta over a generation, in a temporary folder.

    `base` is the generation (without a delta), `before` the view whose delta hands on its rows: they need not be paged
    and read again. `changed_units` are those that changed since `before` (without: since the base). Of the notes to be
    read, larger ones than `note_bytes_max` and those beyond `notes_bytes_max` together are left to a generation.
    Answers what was handed on. GenerationSuspect when base or delta is not whole.
    """

    answer = Staged
    base: GenerationRef
    before: GenerationRef | None
    delta: int
    covers: Covers
    sources: list[SourceRoot]
    changed_units: list[str]
    note_bytes_max: int = 2 << 20
    notes_bytes_max: int = 4 << 20


class StageEvents(Message, frozen=True, kw_only=True):
    """Stage a page of events (the msgpack `rows` of an EventPage)."""

    answer = Staged
    rows: bytes


class StageUnits(Message, frozen=True, kw_only=True):
    """Stage a page of units (the msgpack `rows` of a PageUnits answer)."""

    answer = Staged
    rows: bytes


class StageDocuments(Message, frozen=True, kw_only=True):
    """Read, cut and stage the next `files_max` files of the scan; `more` until all of them are."""

    answer = Staged
    files_max: int


class StageVectors(Message, frozen=True, kw_only=True):
    """Give vectors for hashes that were `wanted`; rows that stay without are listed as pending."""

    answer = Done
    keys: list[bytes]
    dimensions: int
    blob: bytes


class WriteTable(Message, frozen=True, kw_only=True):
    """Write one corpus as a Lance table, in one commit, from what was staged."""

    answer = Done
    corpus: Corpus


class IndexTable(Message, frozen=True, kw_only=True):
    """Build the full-text index (and, above a size, the vector index) of one table."""

    answer = Done
    corpus: Corpus


class TestGeneration(Message, frozen=True, kw_only=True):
    """Self-test: counts, index coverage, finite unit vectors, CJK and Latin probes, recall of an ANN index."""

    answer = Done


class SealGeneration(Message, frozen=True, kw_only=True):
    """fsync every file and folder, write the manifest, rename into place. After this it is immutable."""

    answer = GenerationRef


class FlipGeneration(Message, frozen=True, kw_only=True):
    """Point CURRENT at a sealed generation, or at a sealed delta over it, atomically and durably."""

    answer = Done
    generation: int
    delta: int | None = None


class RetireGenerations(Message, frozen=True, kw_only=True):
    """Delete sealed generations and deltas except those of the views `keep`; also temporary folders and orphans.

    `building` as in RecoverIndex.
    """

    answer = Done
    keep: list[int]
    building: int | None = None


class ProbeIndex(Message, frozen=True, kw_only=True):
    """Check cheaply (names and sizes, no contents) that CURRENT names `generation` and that its files are there.

    GenerationSuspect when they are not: somebody deleted the index, which is allowed at any time.
    """

    answer = Done
    generation: int
    delta: int | None = None


class AbandonBuild(Message, frozen=True, kw_only=True):
    """Drop the build under way in this process and its temporary folder.

    `remains`: also every other temporary folder, because the process that built there has ended.
    """

    answer = Done
    remains: bool = False


class VerifyGeneration(Message, frozen=True, kw_only=True):
    """Compare every file with the manifest (size, sha256) and open the tables; of a delta too, if one is named."""

    answer = GenerationRef
    generation: int
    delta: int | None = None


class WordProbe(Struct, frozen=True, kw_only=True):
    """A question that must find a row of a view: a word of its text that few rows have."""

    corpus: Corpus
    id: str
    part: int
    tenant: str
    query: str


class VectorProbe(Struct, frozen=True, kw_only=True):
    """A question by vector (float32, little-endian), and the distances of the rows nearest to it, found exactly."""

    tenant: str
    vector: bytes
    distances: list[float]


class ViewSample(Struct, frozen=True, kw_only=True):
    """Questions about a view whose answers are known, taken from its own rows: the same ones for the same view."""

    words: list[WordProbe]
    vectors: list[VectorProbe]


class SampleView(Message, frozen=True, kw_only=True):
    """Take questions from the rows of a view and answer them exactly, without any index. GenerationSuspect as ever."""

    answer = ViewSample
    view: GenerationRef


class Scrubbed(Struct, frozen=True, kw_only=True):
    """So many bytes of a folder were read; where to go on, None after the last file."""

    bytes: int
    next: tuple[int, int] | None  # number of the file in the manifest, offset in it


class ScrubSlice(Message, frozen=True, kw_only=True):
    """Read a piece of the files of a sealed folder and compare each file with its manifest once it is through.

    `place` is where to go on (None: at the beginning). GenerationSuspect at the first file that differs.
    """

    answer = Scrubbed
    generation: int
    delta: int | None
    place: tuple[int, int] | None
    bytes_max: int


class CountedItems(Struct, frozen=True, kw_only=True):
    """Of one corpus: the items of a view that still are what the truth holds, and of notes those that are not in it.

    `refused` are incomplete items with a text that the model does not take. Of notes, `changed` are waiting to be
    read, and `failed` (by reason) are left out.
    """

    current: Items = Items()
    refused: int = 0
    changed: int = 0
    failed: dict[str, int] = {}


class CountInView(Message, frozen=True, kw_only=True):
    """Count the items of a view (None: of none). `changed_units` changed since; `refused` are hashes of texts."""

    answer: ClassVar[type[msgspec.Struct]]
    view: GenerationRef | None
    sources: list[SourceRoot]
    refused: list[bytes]
    changed_units: list[str]


class CountedView(Struct, frozen=True, kw_only=True):
    """What `CountInView` found, by corpus."""

    corpora: dict[str, CountedItems]


CountInView.answer = CountedView

State = Literal["searchable", "pending", "failed"]


class ItemState(Struct, frozen=True, kw_only=True):
    """Whether an item is found by its words, and by its meaning; `reason` says why it is not."""

    words: State
    meaning: State
    reason: str | None = None


class FindInView(Message, frozen=True, kw_only=True):
    """Look one item of a view up, which is not newer than the view: an event or unit by id, a note by its path."""

    answer = ItemState
    view: GenerationRef | None
    sources: list[SourceRoot]
    refused: list[bytes]
    corpus: Corpus
    key: str
    tenant: str


class EmbeddedBatch(Struct, frozen=True, kw_only=True):
    """Vectors for the next texts that had none. `next` is the offset to go on from, None at the end.

    `foreign` says why there are none: the endpoint answers as another model, whose vectors must not be used.
    """

    keys: list[bytes]
    dimensions: int
    blob: bytes
    next: int | None
    failed: list[Skip]
    foreign: str | None = None


class EmbedPending(Message, frozen=True, kw_only=True):
    """To the embedding worker: embed at most `texts_max` pending texts of a generation from `offset` on.

    Texts whose hash is in `skip` count but are not embedded: their vectors are in the cache already. `anew` makes sure
    once more that an endpoint still is the model that it was.
    """

    answer = EmbeddedBatch
    path: str
    offset: int
    texts_max: int
    skip: list[bytes] = []
    anew: bool = False


class PendingKeys(Struct, frozen=True, kw_only=True):
    """The hashes of the next pending texts, the offset after them (None at the end), how many the list holds in all."""

    keys: list[bytes]
    next: int | None
    total: int = 0


class PeekPending(Message, frozen=True, kw_only=True):
    """To the embedding worker: which texts would `EmbedPending` embed?"""

    answer = PendingKeys
    path: str
    offset: int
    texts_max: int


class PeekRows(Message, frozen=True, kw_only=True):
    """To the embedding worker: which texts do these events or units (the `rows` of a page) hold? `next` is None."""

    answer = PendingKeys
    corpus: Corpus
    rows: bytes


class EmbedRows(Message, frozen=True, kw_only=True):
    """To the embedding worker: embed these texts (by hash) of events or units, with the model of a generation.

    `anew` as in EmbedPending.
    """

    answer = EmbeddedBatch
    path: str
    corpus: Corpus
    rows: bytes
    keys: list[bytes]
    anew: bool = False


# The mailbox of the actor takes these; the ones above go from the actor to its workers.


class TruthAdvanced(Message, frozen=True, kw_only=True):
    """A hint that events, units or sources changed. May be lost: the builder also looks for itself."""

    answer = Done


class Rebuild(Message, frozen=True, kw_only=True):
    """Build a full generation from the truth. Answers once it is queued; two requests coalesce."""

    answer: ClassVar[type[msgspec.Struct]]
    reason: str
    force: bool = True


class RebuildQueued(Struct, frozen=True, kw_only=True):
    """`build` numbers the build that will cover this request: `index.status` shows when it is published."""

    build: int
    already_running: bool


Rebuild.answer = RebuildQueued


class VerifyIndex(Message, frozen=True, kw_only=True):
    """Verify what serves, now: every file, and that searches find what they should."""

    answer = Row


class CancelBuild(Message, frozen=True, kw_only=True):
    """End the full build under way and withdraw the one that is asked for; with `build` only that one.

    Answers which were cancelled, once process and folder are gone, and which is past being cancelled.
    """

    answer = Row
    build: int | None = None


class RollbackIndex(Message, frozen=True, kw_only=True):
    """Serve the previous generation again; automatic builds pause until the truth moves or one is asked for.

    `generation` names another one of those that are kept: after a change of the model the last one of the old model.
    """

    answer = Row
    generation: int | None = None

    def may_repeat(self) -> bool:
        """Say no: a second time would roll back one generation further."""
        return False


class ReportSuspect(Message, frozen=True, kw_only=True):
    """The searcher could not read a view; the builder verifies what it is made of and rebuilds what is damaged."""

    answer = Done
    view: int
    detail: str


class StateCounts(Struct, frozen=True, kw_only=True):
    """How many items can be found in one way; `reasons` say of how many why they failed."""

    searchable: int = 0
    pending: int = 0
    failed: int = 0
    reasons: dict[str, int] = {}

    @property
    def total(self) -> int:
        """Return how many there are in all."""
        return self.searchable + self.pending + self.failed


class CorpusItems(Struct, frozen=True, kw_only=True):
    """The items of a corpus. Invariant: `accepted` is the total of `words`, and of `meaning`."""

    accepted: int
    words: StateCounts
    meaning: StateCounts


class ItemCounts(Struct, frozen=True, kw_only=True):
    """The items by corpus, of one moment: the view that served (by number), and the truth as it was read after that."""

    at: int  # µs UTC
    view: int | None
    corpora: dict[str, CorpusItems]


class CountItems(Message, frozen=True, kw_only=True):
    """Count what was accepted and what can be found, now."""

    answer = ItemCounts


class GetItemState(Message, frozen=True, kw_only=True):
    """Say whether one item can be found. `seq` is that of the event, or the core_seq of the unit."""

    answer = ItemState
    corpus: Corpus
    key: str
    seq: int = 0
    tenant: str = "default"


class HoldBuild(Message, frozen=True, kw_only=True):
    """Chaos only: pause the build when it reaches `stage`, until it is killed or `stage` is None."""

    answer = Done
    stage: str | None


class ModelChange(Struct, frozen=True, kw_only=True):
    """What is known of a change of the embedding model. `successor` is sealed and does not serve yet, `declined` is
    the key of the identity that was rolled back from, `comparison` is of the last change that came to its end.
    """

    successor: GenerationRef | None = None
    declined: str | None = None
    comparison: "Comparison | None" = None


class KeepModelChange(Message, frozen=True, kw_only=True):
    """Keep this beside the generations, so that it survives a restart. Durable when it is answered."""

    answer = Done
    change: ModelChange


class RecallModelChange(Message, frozen=True, kw_only=True):
    """Answer what was kept last, without a successor that is not whole any more; nothing when there is nothing."""

    answer = ModelChange


GenerationBuilderMessage = (
    TruthAdvanced
    | Rebuild
    | CancelBuild
    | VerifyIndex
    | RollbackIndex
    | ReportSuspect
    | CountItems
    | GetItemState
    | HoldBuild
)
GenerationBuilderWork = (
    RecoverIndex
    | ScanSources
    | BeginBuild
    | BeginDelta
    | StageEvents
    | StageUnits
    | StageDocuments
    | StageVectors
    | WriteTable
    | IndexTable
    | TestGeneration
    | SealGeneration
    | FlipGeneration
    | RetireGenerations
    | AbandonBuild
    | ProbeIndex
    | VerifyGeneration
    | SampleView
    | ScrubSlice
    | KeepModelChange
    | RecallModelChange
    | CountInView
    | FindInView
)
EmbedderWork = EmbedPending | PeekPending | EmbedRows | PeekRows
SourceWatcherWork = WatchSources

# ---------------------------------------------------------------- searcher


class SearchAnswer(Struct, frozen=True, kw_only=True):
    """The result of a search as JSON text, ready for the client."""

    body: bytes


class Search(Message, frozen=True, kw_only=True):
    """Search the memory. `mode` hybrid falls back to keyword when there are no vectors to compare with."""

    answer = SearchAnswer
    query: str
    limit: int = 10
    corpora: tuple[Corpus, ...] = CORPORA
    filters: Filters = Filters()
    mode: SearchMode = "hybrid"
    min_score: float | None = None
    explain: bool = False
    tenant: str = "default"


class ReadDocument(Message, frozen=True, kw_only=True):
    """Read lines of a note under a registered root. `path` as it appears in a hit, or absolute."""

    answer = Row
    path: str
    from_line: int = 1
    lines: int | None = None
    tenant: str = "default"


class Folder(Struct, frozen=True, kw_only=True):
    """A folder that exists and may be read: absolute, links followed."""

    path: str


class ResolveFolder(Message, frozen=True, kw_only=True):
    """Find out whether a path leads to a readable folder, and to which; InvalidParams when it does not.

    Done by a search worker: looking at a dead network mount may hang, and must not hang the truth.
    """

    answer = Folder
    path: str


class PrepareGeneration(Message, frozen=True, kw_only=True):
    """From the builder: the spare opens and probes this view, so that it can take over at once."""

    answer = Done
    generation: GenerationRef


class ServeGeneration(Message, frozen=True, kw_only=True):
    """From the builder, after the pointer was flipped: new queries go to this view (None: to none)."""

    answer = Done
    generation: GenerationRef | None


class Comparison(Struct, frozen=True, kw_only=True):
    """How two generations answered what was asked lately: means over `queries`, medians of the times.

    `overlap` is the share of the first `top` hits that both have, `rank_correlation` Spearman's coefficient over the
    hits that both have; None where nothing could be compared.
    """

    earlier: int
    later: int
    queries: int
    with_vectors: int
    top: int
    overlap: float | None
    rank_correlation: float | None
    earlier_ms: float | None
    later_ms: float | None


class CompareGenerations(Message, frozen=True, kw_only=True):
    """Ask both generations what was asked lately. A worker must have both open: see PrepareGeneration."""

    answer = Comparison
    earlier: GenerationRef
    later: GenerationRef


class FoundRow(Struct, frozen=True, kw_only=True):
    """A row that a search found, with its score in that list."""

    corpus: Corpus
    id: str
    part: int
    score: float


class Tried(Struct, frozen=True, kw_only=True):
    """What the questions of a sample found, in their order, and of the questions asked lately how many found anything.

    Found by vector where a question has one, else by words.
    """

    words: list[list[FoundRow]]
    vectors: list[list[FoundRow]]
    recent: int
    recent_answered: int


class TryView(Message, frozen=True, kw_only=True):
    """Ask a view the questions of a sample, in a worker that has it open, as real searches are asked.

    `limit` rows by words, `nearest` rows by vector. GenerationSuspect when it cannot be read.
    """

    answer = Tried
    view: GenerationRef
    sample: ViewSample
    limit: int
    nearest: int


class IndexView(Struct, frozen=True, kw_only=True):
    """The view that the searcher serves, and those that are still read by somebody, by number (see `split_view`)."""

    serving: int | None
    leased: list[int]


class GetIndexView(Message, frozen=True, kw_only=True):
    """Return which views are still in use, so that the other generations and deltas can be retired."""

    answer = IndexView


SearcherMessage = (
    Search
    | ReadDocument
    | ResolveFolder
    | PrepareGeneration
    | ServeGeneration
    | CompareGenerations
    | TryView
    | GetIndexView
)


class Query(Message, frozen=True, kw_only=True):
    """To a search worker: find candidates in a view.

    `vector` is given when the actor embedded the query itself (a remote provider); else the worker's own model
    embeds it, within `searcher.embed_deadline_ms`: a late vector degrades the answer to keywords.
    """

    answer: ClassVar[type[msgspec.Struct]]
    view: int
    query: str
    limit: int = 100
    corpora: tuple[Corpus, ...] = CORPORA
    filters: Filters = Filters()
    mode: SearchMode = "hybrid"
    tenant: str = "default"
    vector: bytes | None = None


class QueryResult(Struct, frozen=True, kw_only=True):
    """The two lists of a search, each best first. `degraded` are (code, detail) pairs."""

    text: list[Candidate]
    vector: list[Candidate]
    degraded: list[tuple[str, str]]
    mode: SearchMode
    timings_ms: dict[str, float]


Query.answer = QueryResult


class LoadGeneration(Message, frozen=True, kw_only=True):
    """To a search worker: verify, open and probe a view, and keep it open beside the ones it has."""

    answer = Done
    generation: GenerationRef


class DropGeneration(Message, frozen=True, kw_only=True):
    """To a search worker: close a view; files that only it needs may be deleted after this."""

    answer = Done
    view: int


class ReadLines(Message, frozen=True, kw_only=True):
    """To a search worker: read lines of a file that must lie under one of `sources`."""

    answer = Row
    path: str
    from_line: int
    lines: int | None
    sources: list[SourceRoot]


class WarmUp(Message, frozen=True, kw_only=True):
    """To a search worker: load LanceDB and the embedding model before anybody waits for them.

    `gently` when another worker serves meanwhile: the loading gives way to it.
    """

    answer = Done
    gently: bool = False


SearcherWork = Query | LoadGeneration | DropGeneration | ReadLines | ResolveFolder | WarmUp
