"""Is every change of units there that was counted?

The counter and the rows are written in the same transactions, so they can only differ when the disk, or somebody,
took something away. A restore can't bring back what is lost: it raises `core_seq_floor` to the last number that was
ever given out, so that none is given twice, and up to there gaps are known and accepted.
"""

import sqlite3

from actors.core_writer import store, units
from actors.errors import Quarantined
from actors.sql import meta

TAIL_ROWS = 1000


def require_changes(connection: sqlite3.Connection, path: str) -> int:
    """Return the core_seq of the last change; raise Quarantined when the counter or the tail says that some is gone."""
    floor, last = meta.read_counter(connection, store.CORE_SEQ_FLOOR), units.last_core_seq(connection)
    counted = meta.read_counter(connection, store.CORE_SEQ)
    if counted != max(last, floor):
        raise Quarantined(
            f"core {path!r} counts {counted} changes of units, the last one there is {last}",
            hint="the file is kept as it is; restore it from a backup",
        )
    after = max(floor, last - TAIL_ROWS)
    present = _count_after(connection, after)
    if present != max(0, last - after):
        raise Quarantined(
            f"core {path!r} has {present} of its last {last - after} changes of units",
            hint="the file is kept as it is; restore it from a backup",
        )
    return last


def _count_after(connection: sqlite3.Connection, core_seq: int) -> int:
    (count,) = connection.execute(
        "SELECT count(*) FROM units WHERE core_seq > :core_seq", {"core_seq": core_seq}
    ).fetchone()
    return int(count)
