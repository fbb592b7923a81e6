"""What core.db needs when it is restored: which rows can be believed, what must be mended, which numbers go on."""

import sqlite3
from collections.abc import Mapping

import msgspec

from actors.core_writer import claims, store, unit_refs, units
from actors.core_writer.continuity import require_changes
from actors.settings import CoreWriterSettings
from actors.sql import meta, writer_epoch
from actors.sql.salvage import Value

_JSON_COLUMNS = {
    "units": ("tags", "event_refs", "facts"),
    "sessions": ("meta",),
    "requests": ("result",),
    "jobs": ("causes", "payload", "result"),
    "approvals": ("detail",),
}
_NUMBERS = (store.SOURCES_SEQ, store.GENERATION, writer_epoch.COUNTER, claims.COUNTER)


class CoreKeeper:
    """Core's part in a restore; see `actors.sql.restore.Keeper`."""

    file_name = store.FILE_NAME

    def __init__(self, limits: CoreWriterSettings) -> None:
        self.kind = store.file_kind(limits)

    def accept(self, table: str, row: Mapping[str, Value]) -> bool:
        """Refuse a row whose JSON can't be read: it would fail every answer that it is part of."""
        return all(_is_json(row[column]) for column in _JSON_COLUMNS.get(table, ()))

    def mend(self, connection: sqlite3.Connection) -> None:
        """Give each unit one latest version again, and let the sessions be adopted from the transcript anew.

        A unit whose latest version is lost keeps its last one that is left, as the deprecated version it was:
        what replaced it is not known, so it must not come back as if it were current.
        """
        connection.execute(
            """
            UPDATE units SET latest = 1
            WHERE core_seq IN (
                SELECT max(core_seq) FROM units GROUP BY unit_id HAVING sum(latest) = 0
            )
            """
        )
        unit_refs.count_anew(connection)
        meta.write(connection, store.SESSIONS_CURSOR, 0)

    def settle(self, connection: sqlite3.Connection, before: Mapping[str, int]) -> None:
        """Let every counter go on above what was given out, whether its rows are there or not."""
        for name in _NUMBERS:
            meta.write(connection, name, max(meta.read_counter(connection, name), before.get(name, 0)))
        known = (store.CORE_SEQ, store.CORE_SEQ_FLOOR, "indexed")
        floor = max(
            units.last_core_seq(connection),
            meta.read_counter(connection, store.CORE_SEQ),
            *(before.get(name, 0) for name in known),
        )
        meta.write(connection, store.CORE_SEQ, floor)
        meta.write(connection, store.CORE_SEQ_FLOOR, floor)

    def verify(self, connection: sqlite3.Connection) -> None:
        """Check that the changes are what the counter says."""
        require_changes(connection, self.file_name)


def _is_json(value: Value) -> bool:
    if value is None:
        return True
    try:
        msgspec.json.decode(value if isinstance(value, str | bytes) else str(value))
    except msgspec.MsgspecError:
        return False
    return True
