"""What is said about archives: to the builder, which writes them, and to the transcript, whose segments they replace.

An archive is a Parquet file with the events of one sealed segment.
"""

from typing import ClassVar

import msgspec

from actors.messages.base import Done, EventActor, EventKind, Message, Rows, Struct


class ArchiveFile(Struct, frozen=True, kw_only=True):
    """An archive as it was sealed: its name, size and sha256; which events it holds, how many, of which times (µs).

    `digest` is a sha256 over seq, id and content hash of each event, in order.
    """

    name: str
    bytes: int
    sha256: str
    digest: str
    rows: int
    first_seq: int
    last_seq: int
    first_ts: int
    last_ts: int


# ---------------------------------------------------------------- to transcript_appender


class SegmentInfo(Struct, frozen=True, kw_only=True):
    """A segment of the transcript. `at`: since when it is in its state (µs); `archive`: what took its place."""

    number: int
    state: str
    first_seq: int
    last_seq: int | None
    at: int
    bytes: int
    archive: ArchiveFile | None = None


class SegmentList(Struct, frozen=True, kw_only=True):
    """All segments, in order."""

    segments: list[SegmentInfo]


class ListSegments(Message, frozen=True, kw_only=True):
    """Return the segments of the transcript."""

    answer = SegmentList


class WholeEvents(Struct, frozen=True, kw_only=True):
    """A page of events with every member: `rows` is msgpack, a list of maps; the next page begins after `last_seq`."""

    rows: bytes
    count: int
    last_seq: int
    more: bool


class PageWholeEvents(Message, frozen=True, kw_only=True):
    """Page the events of one sealed segment: after < seq, at most `limit` rows or about `bytes_max` of content."""

    answer = WholeEvents
    number: int
    after: int
    limit: int
    bytes_max: int


class RetireSegment(Message, frozen=True, kw_only=True):
    """Let an archive take the place of a sealed segment. Only what recognises its events stays: their ids and times.

    Conflict when the archive is not of exactly the events of the segment. Doing it again changes nothing.
    """

    answer = Done
    number: int
    archive: ArchiveFile


class FindArchived(Message, frozen=True, kw_only=True):
    """Return what is known of archived events, ascending by seq after `after_seq`: everything but their content."""

    answer = Rows
    limit: int
    after_seq: int = 0
    session_id: str | None = None
    event_id: str | None = None
    kind: EventKind | None = None
    actor: EventActor | None = None
    since: int | None = None
    until: int | None = None
    tenant: str = "default"


# ---------------------------------------------------------------- to generation_builder


class ArchiveQueued(Struct, frozen=True, kw_only=True):
    """Which segments will be archived, in this order; `running` is the one under way."""

    segments: list[int]
    running: int | None = None


class ArchiveEvents(Message, frozen=True, kw_only=True):
    """Archive every segment that was sealed before a time (µs). Answers once they are queued."""

    answer = ArchiveQueued
    before: int


class VerifyArchive(Message, frozen=True, kw_only=True):
    """Read an archive and compare it with what was sealed. NotFound when there is no such file, Quarantined when it is
    not what was sealed."""

    answer = Done
    archive: ArchiveFile


# ---------------------------------------------------------------- from the builder to its worker


class BeginArchive(Message, frozen=True, kw_only=True):
    """Begin the file of a segment, anew when there is one that nobody sealed."""

    answer = Done
    number: int


class AddToArchive(Message, frozen=True, kw_only=True):
    """Add the rows of a page."""

    answer = Done
    rows: bytes


class SealArchive(Message, frozen=True, kw_only=True):
    """End the file, read it back, compare it with the rows that were given, make it durable under its name."""

    answer: ClassVar[type[msgspec.Struct]] = ArchiveFile


ArchiveWork = BeginArchive | AddToArchive | SealArchive | VerifyArchive
