"""The parameters of every native method, as clients write them. Wire types: strings, ms from now, RFC 3339 times.

Unknown members are refused. `deadline_ms` may be given with every method: how long the client wants to wait.
docs/PROTOCOL.md describes each member; a test compares the two.
"""

from typing import Annotated, Literal

import msgspec

from actors.messages.base import Corpus, EventActor, EventKind, SearchMode, UnitScope, UnitStatus, UnitType
from actors.messages.jobs import JobKind, JobStatus
from supervisor.rpc import Id

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Text = Annotated[str, msgspec.Meta(min_length=1)]
Time = int | str
# An object of the client's own making: looked into only once its size is known to be within the limit.
FreeForm = msgspec.Raw
ABSENT = msgspec.Raw(b"null")
Deadline = Annotated[int, msgspec.Meta(ge=1)]
Limit = Annotated[int, msgspec.Meta(ge=1)]
TEN_YEARS_MS = 315_360_000_000


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every method takes."""

    deadline_ms: Deadline | None = None


class NoParams(Params, frozen=True, kw_only=True):
    """A method without parameters of its own."""


class Hello(Params, frozen=True, kw_only=True):
    """Introduce a client."""

    client: Name = "unnamed"
    principal: Name | None = None
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)] | None = None


class SessionOpen(Params, frozen=True, kw_only=True):
    """session.open"""

    session_id: Name | None = None
    title: str | None = None
    agent: str | None = None
    meta: FreeForm = ABSENT
    request_id: Name | None = None


class SessionRef(Params, frozen=True, kw_only=True):
    """session.get, session.close, session.archive"""

    session_id: Name
    request_id: Name | None = None


class SessionList(Params, frozen=True, kw_only=True):
    """session.list"""

    limit: Limit = 50
    before: str | None = None
    status: str | None = None
    agent: Name | None = None
    since: Time | None = None
    until: Time | None = None


class SessionHistory(Params, frozen=True, kw_only=True):
    """session.history"""

    session_id: Name
    limit: Limit = 50
    after_seq: Annotated[int, msgspec.Meta(ge=0)] | None = None
    before_seq: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ClaimAcquire(Params, frozen=True, kw_only=True):
    """claim.acquire"""

    session_id: Name
    holder: Name | None = None
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    request_id: Name | None = None


class ClaimRenew(Params, frozen=True, kw_only=True):
    """claim.renew"""

    session_id: Name
    claim_id: Name
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ClaimRelease(Params, frozen=True, kw_only=True):
    """claim.release"""

    session_id: Name
    claim_id: Name


class ClaimRef(Params, frozen=True, kw_only=True):
    """claim.get, claim.revoke"""

    session_id: Name


class ApprovalRequest(Params, frozen=True, kw_only=True):
    """approval.request"""

    action: Text
    detail: FreeForm = ABSENT
    session_id: Name | None = None
    expires_in_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    request_id: Name | None = None


class ApprovalDecide(Params, frozen=True, kw_only=True):
    """approval.decide"""

    approval_id: Name
    decision: Literal["approved", "denied"]
    by: Name | None = None
    reason: str | None = None


class ApprovalRef(Params, frozen=True, kw_only=True):
    """approval.get"""

    approval_id: Name


class ApprovalList(Params, frozen=True, kw_only=True):
    """approval.list"""

    limit: Limit = 50
    before: Name | None = None
    status: Literal["pending", "approved", "denied", "expired"] | None = None
    session_id: Name | None = None


class EventMembers(Params, frozen=True, kw_only=True):
    """The members of an event."""

    session_id: Name
    actor: EventActor
    content: Text
    kind: EventKind = "message"
    event_id: Name | None = None
    ts: Time | None = None
    channel: Name | None = None
    project: Name | None = None
    tags: list[Name] = []
    meta: FreeForm = ABSENT
    trace_id: Name | None = None
    request_id: Name | None = None


class EventAppend(EventMembers, frozen=True, kw_only=True):
    """event.append"""

    wait_for: str | None = None


class EventAppendMany(Params, frozen=True, kw_only=True):
    """event.append_many"""

    events: Annotated[list[EventMembers], msgspec.Meta(min_length=1)]
    wait_for: str | None = None


class EventGet(Params, frozen=True, kw_only=True):
    """event.get"""

    event_id: Name


class UnitPut(Params, frozen=True, kw_only=True):
    """unit.put"""

    type: UnitType
    scope: UnitScope
    text: Text
    unit_id: Name | None = None
    facts: FreeForm = ABSENT
    event_refs: list[Name] = []
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    parent_unit_id: Name | None = None
    status: str = "active"
    tags: list[Name] = []
    session_id: Name | None = None
    expected_version: Annotated[int, msgspec.Meta(ge=0)] | None = None
    request_id: Name | None = None


class UnitGet(Params, frozen=True, kw_only=True):
    """unit.get"""

    unit_id: Name
    version: Annotated[int, msgspec.Meta(ge=1)] | None = None


class UnitHistory(Params, frozen=True, kw_only=True):
    """unit.history"""

    unit_id: Name
    limit: Limit = 50
    before_version: Annotated[int, msgspec.Meta(ge=1)] | None = None


class UnitList(Params, frozen=True, kw_only=True):
    """unit.list"""

    limit: Limit = 50
    before_core_seq: Annotated[int, msgspec.Meta(ge=1)] | None = None
    type: UnitType | None = None
    scope: UnitScope | None = None
    status: UnitStatus | None = "active"
    session_id: Name | None = None
    since: Time | None = None
    until: Time | None = None


class UnitDiff(Params, frozen=True, kw_only=True):
    """unit.diff"""

    unit_id: Name
    from_version: Annotated[int, msgspec.Meta(ge=1)]
    to_version: Annotated[int, msgspec.Meta(ge=1)] | None = None


class UnitRefs(Params, frozen=True, kw_only=True):
    """unit.refs"""

    unit_id: Name
    version: Annotated[int, msgspec.Meta(ge=1)] | None = None


class EventUnits(Params, frozen=True, kw_only=True):
    """event.units"""

    event_id: Name
    limit: Limit = 50
    after: Name | None = None
    status: Literal["active", "deprecated"] | None = None


class JobAdd(Params, frozen=True, kw_only=True):
    """job.add"""

    kind: JobKind
    payload: FreeForm = ABSENT
    priority: int = 0
    not_before: Time | None = None
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=TEN_YEARS_MS)] | None = None
    key: Name | None = None
    session_id: Name | None = None
    request_id: Name | None = None


class JobLease(Params, frozen=True, kw_only=True):
    """job.lease"""

    kinds: Annotated[list[JobKind], msgspec.Meta(min_length=1)]
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None
    worker: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1)] = 1
    request_id: Name | None = None


class JobRenew(Params, frozen=True, kw_only=True):
    """job.renew"""

    job_id: Name
    token: Annotated[int, msgspec.Meta(ge=1)]
    lease_ms: Annotated[int, msgspec.Meta(ge=1)] | None = None


class JobComplete(Params, frozen=True, kw_only=True):
    """job.complete"""

    job_id: Name
    token: Annotated[int, msgspec.Meta(ge=1)]
    result: FreeForm = ABSENT
    request_id: Name | None = None


class JobFail(Params, frozen=True, kw_only=True):
    """job.fail"""

    job_id: Name
    token: Annotated[int, msgspec.Meta(ge=1)]
    error: Text
    retry_after_ms: Annotated[int, msgspec.Meta(ge=0)] | None = None
    permanent: bool = False
    request_id: Name | None = None


class JobRef(Params, frozen=True, kw_only=True):
    """job.get"""

    job_id: Name


class JobChange(JobRef, frozen=True, kw_only=True):
    """job.cancel, job.replay"""

    request_id: Name | None = None


class JobList(Params, frozen=True, kw_only=True):
    """job.list"""

    limit: Annotated[int, msgspec.Meta(ge=1)] = 50
    before: Annotated[int, msgspec.Meta(ge=1)] | None = None
    kind: JobKind | None = None
    status: JobStatus | None = None


class SearchFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`filters` of memory.search."""

    session_ids: list[Name] = []
    actors: list[EventActor] = []
    kinds: list[EventKind] = []
    tags: list[Name] = []
    since: Time | None = None
    until: Time | None = None
    path: Text | None = None
    types: list[UnitType] = []
    scopes: list[UnitScope] = []


class MemorySearch(Params, frozen=True, kw_only=True):
    """memory.search"""

    query: str
    limit: Limit = 10
    corpora: list[Corpus] | None = None
    filters: SearchFilters = SearchFilters()
    mode: SearchMode = "hybrid"
    min_score: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    explain: bool = False


class MemoryGet(Params, frozen=True, kw_only=True):
    """memory.get"""

    id: Text | None = None
    path: Text | None = None
    from_line: Annotated[int, msgspec.Meta(ge=1)] | None = None
    lines: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ForgetFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`filter` of memory.forget."""

    session_id: Name | None = None
    source: Name | None = None
    before: Time | None = None
    kinds: list[EventKind] = []
    tags: list[Name] = []


class MemoryForget(Params, frozen=True, kw_only=True):
    """memory.forget"""

    ids: list[Name] | None = None
    filter: ForgetFilter | None = None
    everything_of_tenant: bool = False
    reason: Text
    dry_run: bool = False
    request_id: Name | None = None


class MemoryForgetStatus(Params, frozen=True, kw_only=True):
    """memory.forget_status"""

    forget_id: Name


class MemoryForgetList(Params, frozen=True, kw_only=True):
    """memory.forget_list"""

    limit: Limit = 50
    before: Annotated[int, msgspec.Meta(ge=1)] | None = None


class SourceAdd(Params, frozen=True, kw_only=True):
    """source.add"""

    path: Text
    name: Name | None = None
    request_id: Name | None = None


class SourceRemove(Params, frozen=True, kw_only=True):
    """source.remove"""

    source_id: Text
    request_id: Name | None = None


class IndexItem(Params, frozen=True, kw_only=True):
    """index.item"""

    id: Text


class IndexRebuild(Params, frozen=True, kw_only=True):
    """index.rebuild"""

    reason: Name = "asked for"
    wait: bool = False
    progress_token: Id | None = None


class IndexCancel(Params, frozen=True, kw_only=True):
    """index.cancel"""

    build: Annotated[int, msgspec.Meta(ge=1)] | None = None


class IndexRollback(Params, frozen=True, kw_only=True):
    """index.rollback"""

    generation: Annotated[int, msgspec.Meta(ge=1)] | None = None


class ArchiveCreate(Params, frozen=True, kw_only=True):
    """archive.create"""

    before: Time | None = None
    older_than_days: Annotated[int, msgspec.Meta(ge=0, le=36500)] | None = None


class ArchiveSearch(Params, frozen=True, kw_only=True):
    """archive.search"""

    limit: Limit = 50
    after_seq: Annotated[int, msgspec.Meta(ge=0)] = 0
    session_id: Name | None = None
    event_id: Name | None = None
    kind: EventKind | None = None
    actor: EventActor | None = None
    since: Time | None = None
    until: Time | None = None


class ArchiveVerify(Params, frozen=True, kw_only=True):
    """archive.verify"""

    name: Name | None = None


class CacheTrim(Params, frozen=True, kw_only=True):
    """cache.trim"""

    bytes_max: Annotated[int, msgspec.Meta(ge=0)]


class PoisonClear(Params, frozen=True, kw_only=True):
    """poison.clear"""

    key: str | None = None


class TruthRestore(Params, frozen=True, kw_only=True, rename={"source": "from"}):
    """truth.restore"""

    actor: str
    source: Text | None = None
    salvage: bool = False


class MemoryExport(Params, frozen=True, kw_only=True):
    """memory.export"""

    what: Literal["events", "units"]
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Limit = 200


class ImportedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session as `session.list` shows it; what follows from its events is passed over."""

    session_id: Name
    created_at: Time
    updated_at: Time
    last_active_at: Time
    title: str | None = None
    agent: str | None = None
    meta: FreeForm = ABSENT
    closed_at: Time | None = None
    archived_at: Time | None = None


class ImportedUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a unit as `unit.get` shows it."""

    unit_id: Name
    version: Annotated[int, msgspec.Meta(ge=1)]
    type: UnitType
    scope: UnitScope
    text: Text
    created_at: Time
    updated_at: Time
    status: UnitStatus = "active"
    facts: FreeForm = ABSENT
    event_refs: list[Name] = []
    confidence: float | None = None
    parent_unit_id: Name | None = None
    tags: list[Name] = []
    session_id: Name | None = None


class MemoryImport(Params, frozen=True, kw_only=True):
    """memory.import"""

    sessions: list[ImportedSession] = []
    units: list[ImportedUnit] = []


class BackupCreate(Params, frozen=True, kw_only=True):
    """backup.create"""

    wait: bool = False
    request_id: Name | None = None


class BackupList(Params, frozen=True, kw_only=True):
    """backup.list"""

    limit: Limit = 50
    before: Name | None = None


class BackupVerify(Params, frozen=True, kw_only=True):
    """backup.verify"""

    backup: Name


class DebugHold(Params, frozen=True, kw_only=True):
    """debug.hold_build"""

    stage: str | None = None


class DebugFailActor(Params, frozen=True, kw_only=True):
    """debug.fail_actor"""

    actor: str
    how: Literal["raise", "cancel"] = "raise"


class DebugStallLoop(Params, frozen=True, kw_only=True):
    """debug.stall_loop"""

    seconds: float
    hold_gil: bool = False


class DebugWriteStdout(Params, frozen=True, kw_only=True):
    """debug.write_stdout"""

    text: str
