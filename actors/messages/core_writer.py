"""What is said to core_writer: sessions, units, sources, generation numbers, restoring."""

from typing import Literal

from actors.messages.approvals import ApprovalMessage
from actors.messages.backup import (
    BackUp,
    BeginBackup,
    DropBackup,
    FinishBackup,
    ListBackups,
    StopBackUp,
    VerifyBackup,
)
from actors.messages.base import (
    Candidates,
    Done,
    Filters,
    JsonValue,
    Message,
    Row,
    Rows,
    Statistics,
    Struct,
    UnitScope,
    UnitStatus,
    UnitType,
)
from actors.messages.claims import ClaimMessage
from actors.messages.exporting import ExportUnits, ImportSessions, ImportUnits
from actors.messages.forgetting import ForgetMessage
from actors.messages.jobs import JobMessage
from actors.messages.unit_refs import UnitRefMessage


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
    """Return sessions, the most recently active first. `before` is the `cursor` of the last row of the page before.

    `since` (inclusive) and `until` (exclusive) are about the last activity, in µs. Archived ones are listed only with
    the status `archived`.
    """

    answer = Rows
    limit: int
    before: str | None = None
    status: Literal["open", "closed", "archived"] | None = None
    agent: str | None = None
    since: int | None = None
    until: int | None = None
    tenant: str = "default"


class CloseSession(Message, frozen=True, kw_only=True):
    """Mark the session closed. Its events stay; appending to it opens it again."""

    answer = Row
    session_id: str
    tenant: str = "default"
    request_id: str | None = None


class ArchiveSession(Message, frozen=True, kw_only=True):
    """Close the session and put it away: it is listed on demand only. Appending to it brings it back."""

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
    """Return a unit at `version`, or its latest. `shown`: for an agent, with hidden characters shown."""

    answer = Row
    unit_id: str
    shown: bool = False
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
    """Return the latest versions of units by core_seq, the newest first, older than `before_core_seq` when given.

    `since` (inclusive) and `until` (exclusive) are about the last change, in µs.
    """

    answer = Rows
    limit: int
    before_core_seq: int | None = None
    type: UnitType | None = None
    scope: UnitScope | None = None
    status: UnitStatus | None = "active"
    session_id: str | None = None
    since: int | None = None
    until: int | None = None
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
    | ArchiveSession
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
    | ClaimMessage
    | ApprovalMessage
    | UnitRefMessage
    | JobMessage
    | BeginBackup
    | BackUp
    | StopBackUp
    | FinishBackup
    | DropBackup
    | ListBackups
    | VerifyBackup
    | ExportUnits
    | ImportUnits
    | ImportSessions
    | ForgetMessage
)
