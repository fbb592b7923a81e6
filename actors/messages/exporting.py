"""What is said to take a memory out and put one in: pages of all there is in the order of its making, rows as they are.

Whole rows, with the ids and times that they have: what was exported is the same thing when it is imported. What is
there already stays as it is, so an import may be done twice, or go on where one was cut short.
"""

from typing import Literal

from actors.messages.base import JsonValue, Message, Struct, UnitScope, UnitStatus, UnitType

Outcome = Literal["imported", "present", "conflict"]


class Exported(Struct, frozen=True, kw_only=True):
    """A page: `rows` is a JSON array, `last` where the next page begins."""

    rows: bytes
    count: int
    last: int
    more: bool


class ExportEvents(Message, frozen=True, kw_only=True):
    """Return events of a tenant with after < seq, ascending. To transcript_appender."""

    answer = Exported
    after: int
    limit: int
    tenant: str = "default"


class ExportUnits(Message, frozen=True, kw_only=True):
    """Return all versions of the units of a tenant with after < core_seq, ascending. To core_writer."""

    answer = Exported
    after: int
    limit: int
    tenant: str = "default"


class UnitVersion(Struct, frozen=True, kw_only=True):
    """A version of a unit as it was; times in µs."""

    unit_id: str
    version: int
    type: UnitType
    scope: UnitScope
    text: str
    created_at: int
    updated_at: int
    status: UnitStatus = "active"
    facts: dict[str, JsonValue] | None = None
    event_refs: tuple[str, ...] = ()
    confidence: float | None = None
    parent_unit_id: str | None = None
    tags: tuple[str, ...] = ()
    session_id: str | None = None


class SessionAsItWas(Struct, frozen=True, kw_only=True):
    """A session as it was; times in µs. How many events it has, the transcript tells."""

    session_id: str
    created_at: int
    updated_at: int
    last_active_at: int
    title: str | None = None
    agent: str | None = None
    meta: dict[str, JsonValue] | None = None
    closed_at: int | None = None  # None: open
    archived_at: int | None = None  # None: not put away


class Imported(Struct, frozen=True, kw_only=True):
    """What became of each, in order."""

    outcomes: tuple[Outcome, ...]


class ImportUnits(Message, frozen=True, kw_only=True):
    """Write versions of units as they were, each behind the one before it. To core_writer."""

    answer = Imported
    units: tuple[UnitVersion, ...]
    tenant: str = "default"


class ImportSessions(Message, frozen=True, kw_only=True):
    """Write sessions as they were. To core_writer."""

    answer = Imported
    sessions: tuple[SessionAsItWas, ...]
    tenant: str = "default"
