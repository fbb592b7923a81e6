"""Keyword search in units: which rows the index gets, what becomes of its hits, and what a generation must mask."""

import sqlite3
from collections.abc import Callable, Sequence

import msgspec

from actors.core_writer import units
from actors.messages.base import Candidate, Candidates
from actors.messages.core_writer import SearchUnits
from actors.redaction import Redactor, recall_text
from actors.sql.database import Until
from actors.sql.filters import where
from actors.sql.keywords import Document, Hit, KeywordIndex, Question, Slice
from actors.sql.rows import rows_limit
from actors.terms import unit_terms
from actors.text import analyse_query, snippet

CHANGED_MAX = 10_000
_SLICE_CHARS_MAX = 256 * 1024
_ROWS = "truth.units AS t ON t.core_seq = h.rowid AND t.latest = 1 AND t.status = 'active'"


class UnitSource:
    """What the keyword index follows: the changes of units, by core_seq. Only latest, active versions are in it."""

    def __init__(self, connection: Callable[[], sqlite3.Connection]) -> None:
        self._connection = connection

    def latest(self) -> int:
        """Return the core_seq of the last change."""
        return units.last_core_seq(self._connection())

    def slice(self, after: int, rows_max: int) -> Slice | None:
        """Return the terms of the next changes, and of the versions that they replaced."""
        added: list[Document] = []
        removed: list[Document] = []
        cursor, mark, size = after, "", 0
        for unit in units.versions_after(self._connection(), after, rows_max):
            if unit.version > 1 and (replaced := self._version(unit.unit_id, unit.version - 1)) is not None:
                removed.append(_document(replaced))
            if unit.latest and unit.status == "active":
                added.append(_document(unit))
            cursor, mark, size = unit.core_seq, _mark(unit), size + len(unit.text)
            if size >= _SLICE_CHARS_MAX:
                break
        return None if cursor == after else Slice(added=added, removed=removed, cursor=cursor, mark=mark)

    def mark(self, rowid: int) -> str | None:
        """Return the unit and version of the change with this core_seq."""
        unit = units.version_at(self._connection(), rowid)
        return None if unit is None else _mark(unit)

    def _version(self, unit_id: str, version: int) -> units.UnitRow | None:
        return units.version_of(self._connection(), unit_id, version)


def search_units(
    connection: sqlite3.Connection,
    index: KeywordIndex,
    message: SearchUnits,
    *,
    until: Until,
    slice_rows: int,
    snippet_chars_max: int,
    redactor: Redactor,
) -> Candidates:
    """Answer a search, and name the units whose rows in a generation of `newer_than` are out of date."""
    latest = units.last_core_seq(connection)
    changed = units.changed_units(connection, message.tenant, message.newer_than, CHANGED_MAX + 1)
    # What can't be named can't be masked: the caller must know that its generation is that far behind.
    behind = latest - message.newer_than if len(changed) > CHANGED_MAX and message.newer_than > 0 else 0
    condition = where(message.filters, message.tenant, "units")
    terms = analyse_query(message.query)
    found: list[Candidate] = []
    if condition is not None and terms and latest > message.newer_than:
        question = Question(terms, message.newer_than, _ROWS, condition, rows_limit(message.limit))
        hits, unseen = index.search(question, until=until, rows_per_slice=slice_rows)
        found = [
            unit
            for hit in hits
            if (unit := _candidate(connection, hit, terms, snippet_chars_max, redactor)) is not None
        ]
        behind = max(behind, unseen)
    return Candidates(found=found, latest=latest, behind=behind, changed=tuple(changed[:CHANGED_MAX]))


def _candidate(
    connection: sqlite3.Connection, hit: Hit, terms: Sequence[str], snippet_chars_max: int, redactor: Redactor
) -> Candidate | None:
    unit = units.version_at(connection, hit.rowid)
    if unit is None:
        return None
    return Candidate(
        id=unit.unit_id,
        corpus="units",
        version=unit.version,
        text_score=hit.score,
        snippet=recall_text(redactor, snippet(unit.text, terms, snippet_chars_max), shown=True),
        ts=unit.updated_at,
        seq=unit.core_seq,
        session_id=unit.session_id,
        type=unit.type,
        scope=unit.scope,
        tags=msgspec.json.decode(unit.tags, type=tuple[str, ...]),
    )


def _document(unit: units.UnitRow) -> Document:
    facts = None if unit.facts is None else msgspec.json.decode(unit.facts, type=dict[str, object])
    tags = msgspec.json.decode(unit.tags, type=list[str])
    return Document(unit.core_seq, " ".join(unit_terms(unit.text, facts, tags)))


def _mark(unit: units.UnitRow) -> str:
    return f"{unit.version}:{unit.unit_id}"
