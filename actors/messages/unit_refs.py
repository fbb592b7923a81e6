"""What is said about units besides keeping them: which events they rest on, and how a version differs from another."""

from typing import Literal

from actors.messages.base import Message, Row, Rows


class UnitsOfEvent(Message, frozen=True, kw_only=True):
    """Return the latest versions of the units that rest on an event, by unit_id, after the id `after`."""

    answer = Rows
    event_id: str
    limit: int
    after: str | None = None
    status: Literal["active", "deprecated"] | None = None
    tenant: str = "default"


class DiffUnit(Message, frozen=True, kw_only=True):
    """Compare two versions of a unit; NotFound when one of them is missing. Without `to_version` with the latest."""

    answer = Row
    unit_id: str
    from_version: int
    to_version: int | None = None
    tenant: str = "default"


class PlaceEvents(Message, frozen=True, kw_only=True):
    """To transcript_appender: say of events where they are: JSON rows in the order of `event_ids`, without content.

    `state` is present, archived or missing.
    """

    answer = Rows
    event_ids: tuple[str, ...]
    tenant: str = "default"


UnitRefMessage = UnitsOfEvent | DiffUnit
READS = (UnitsOfEvent, DiffUnit)
