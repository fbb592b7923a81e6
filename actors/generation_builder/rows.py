"""From the truth to the rows of a generation: events, units and chunks of notes. Pure.

The same truth gives the same rows, byte for byte: no clock, no randomness, and the id of a chunk is made of where
it stands and what it says. A text that is longer than a chunk may be becomes several rows with the same id and
different `part`, so that what stands at its end is found and embedded like what stands at its beginning.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec

from actors.errors import BuildFailed
from actors.generation import document_path, embedded_text
from actors.generation_builder.chunk import Chunk, ChunkLimits, cut_text, heading_path
from actors.messages.core_writer import SourceRoot
from actors.terms import event_terms, unit_terms
from actors.text import analyse, clean, index_text

ID_HEX_CHARS = 32


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of an EventPage: the members that are indexed."""

    event_id: str
    seq: int
    ts: int
    content: str
    session_id: str
    actor: str
    kind: str = "message"
    tags: list[str] | None = None
    tenant: str = "default"
    scope: str | None = None


class UnitRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a PageUnits answer: the members that are indexed."""

    unit_id: str
    version: int
    core_seq: int
    updated_at: int
    type: str
    scope: str
    text: str
    session_id: str | None = None
    tags: list[str] | None = None
    facts: dict[str, object] | None = None
    tenant: str = "default"


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a table, without its vector. The members are the columns of `actors/generation.py`."""

    id: str
    part: int = 0
    version: int = 0
    seq: int = 0
    ts: int
    tenant: str
    scope: str | None = None
    session_id: str | None = None
    actor: str | None = None
    kind: str | None = None
    type: str | None = None
    path: str | None = None
    heading: str | None = None
    from_line: int | None = None
    to_line: int | None = None
    tags: list[str]
    text: str
    terms: str
    hash: bytes


_events = msgspec.msgpack.Decoder(list[EventRow])
_units = msgspec.msgpack.Decoder(list[UnitRow])


def decode_events(page: bytes) -> list[EventRow]:
    """Return the events of a page, or raise BuildFailed."""
    try:
        return _events.decode(page)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BuildFailed(f"page of events not understood: {error}") from error


def decode_units(page: bytes) -> list[UnitRow]:
    """Return the units of a page, or raise BuildFailed."""
    try:
        return _units.decode(page)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BuildFailed(f"page of units not understood: {error}") from error


def event_rows(event: EventRow, limits: ChunkLimits) -> Iterator[TableRow]:
    """Yield the rows of an event; its date is among the terms of each, so that it is found by the day."""
    for part, text in enumerate(cut_text(clean(event.content), limits)):
        yield TableRow(
            id=event.event_id,
            part=part,
            seq=event.seq,
            ts=event.ts,
            tenant=event.tenant,
            scope=event.scope,
            session_id=event.session_id,
            actor=event.actor,
            kind=event.kind,
            tags=event.tags or [],
            text=text,
            terms=index_text(event_terms(text, event.ts)),
            hash=text_hash(text),
        )


def unit_rows(unit: UnitRow, limits: ChunkLimits) -> Iterator[TableRow]:
    """Yield the rows of a unit; the words of its facts and tags are among the terms of each."""
    for part, text in enumerate(cut_text(clean(unit.text), limits)):
        yield TableRow(
            id=unit.unit_id,
            part=part,
            version=unit.version,
            seq=unit.core_seq,
            ts=unit.updated_at,
            tenant=unit.tenant,
            scope=unit.scope,
            session_id=unit.session_id,
            type=unit.type,
            tags=unit.tags or [],
            text=text,
            terms=index_text(unit_terms(text, unit.facts, unit.tags or [])),
            hash=text_hash(text),
        )


def document_rows(source: SourceRoot, relative: str, mtime_us: int, chunks: Iterable[Chunk]) -> Iterator[TableRow]:
    """Yield the rows of a note. The words of its path and of the headings above a chunk are terms of the chunk.

    The id of a chunk stays the same when text is added elsewhere in the note, and when the source is added anew.
    """
    path = document_path(source.name, relative)
    place = hashlib.sha256(msgspec.json.encode((source.tenant, source.path, relative)))
    words = relative.rpartition(".")[0].replace("/", " ")
    seen: Counter[bytes] = Counter()
    for chunk in chunks:
        text, headings = clean(chunk.text), tuple(map(clean, chunk.headings))
        heading = heading_path(headings)
        hashed = text_hash(text)
        identity = place.copy()
        identity.update(hashed + seen[hashed].to_bytes(4, "big"))
        seen[hashed] += 1
        embedded = embedded_text(heading, text)
        yield TableRow(
            id=identity.hexdigest()[:ID_HEX_CHARS],
            ts=mtime_us,
            tenant=source.tenant,
            path=path,
            heading=heading,
            from_line=chunk.from_line,
            to_line=chunk.to_line,
            tags=[],
            text=text,
            terms=index_text(analyse("\n".join((words, *headings, text)))),
            hash=text_hash(embedded),
        )


def texts_of_events(page: bytes, limits: ChunkLimits) -> Iterator[tuple[str, str]]:
    """Yield the embeddable texts of a page of events, each with the id of its event; as they are in the rows."""
    for event in decode_events(page):
        yield from ((event.event_id, text) for text in cut_text(clean(event.content), limits) if is_embeddable(text))


def texts_of_units(page: bytes, limits: ChunkLimits) -> Iterator[tuple[str, str]]:
    """Yield the embeddable texts of a page of units, each with the id of its unit; as they are in the rows."""
    for unit in decode_units(page):
        yield from ((unit.unit_id, text) for text in cut_text(clean(unit.text), limits) if is_embeddable(text))


def is_embeddable(text: str) -> bool:
    """Say whether there is anything in the text that a vector could stand for."""
    return bool(text.strip())


def text_hash(text: str) -> bytes:
    """Return the sha256 of a text, the key under which its vector is kept."""
    return hashlib.sha256(text.encode()).digest()
