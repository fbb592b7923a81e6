"""The kind of file that core.db is, and its counters. The statements about each subject are in modules of their own."""

import sqlite3

from actors.settings import CoreWriterSettings
from actors.sql import meta
from actors.sql.database import FileKind, read_schema

FILE_NAME = "core.db"
# What each version of the schema added, as files of this folder. A released one is never changed.
VERSIONS: tuple[tuple[str, ...], ...] = (
    ("schema.sql",),
    ("claims.sql", "approvals.sql", "archived_sessions.sql", "unit_refs.sql", "jobs.sql", "forgets.sql"),
)
CORE_SEQ = "core_seq"
CORE_SEQ_FLOOR = "core_seq_floor"
SOURCES_SEQ = "sources_seq"
SESSIONS_CURSOR = "sessions_cursor"
GENERATION = "generation"


def file_kind(limits: CoreWriterSettings) -> FileKind:
    """Return what kind of file core.db is."""
    return FileKind(
        name="core",
        application_id=0x6268434F,
        user_version=len(VERSIONS),
        schema=read_schema(__package__, *(name for names in VERSIONS for name in names))
        + f"\nPRAGMA user_version = {len(VERSIONS)};",
        migrations={number: read_schema(__package__, *names) for number, names in enumerate(VERSIONS[1:], start=1)},
        synchronous="FULL",
        busy_timeout_ms=limits.busy_timeout_ms,
        journal_bytes_max=limits.wal_bytes_max,
    )


def allocate_generation(connection: sqlite3.Connection, at_least: int) -> int:
    """Return the next generation number, above every one given before and above `at_least`."""
    number = max(meta.read_counter(connection, GENERATION), at_least) + 1
    meta.write(connection, GENERATION, number)
    return number


def count_rows(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many sessions, units (latest versions), roots and remembered requests there are."""
    row = connection.execute(
        """
        SELECT
            (SELECT count(*) FROM sessions),
            (SELECT count(*) FROM units WHERE latest = 1),
            (SELECT count(*) FROM sources),
            (SELECT coalesce(max(id) - min(id) + 1, 0) FROM requests)
        """
    ).fetchone()
    return dict(zip(("sessions", "units", "sources", "requests"), row, strict=True))


def counters(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the counters by name."""
    names = (CORE_SEQ, SOURCES_SEQ, SESSIONS_CURSOR, GENERATION)
    return {name: meta.read_counter(connection, name) for name in names}
