"""Copying the readable rows of a damaged database into a new one, and counting the rest.

A table with row numbers is read in their order. Where a read fails, the next number from which it succeeds again is
searched by doubling and halving steps, so a damaged page costs the rows on it and a hundred probes. A table without
row numbers is read from its begin until it fails, and from its end until it fails.

A row is taken when the new table accepts it: its types and constraints are checked there. `accept` may refuse more.
Pure SQL: it owns neither of the files.
"""

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from actors.sql.database import Call

_ROWID_MAX = 2**63 - 1
_FAILED = (0, ())
Value = int | float | str | bytes | None
Row = tuple[Value, ...]
Accept = Callable[[str, dict[str, Value]], bool]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a table: rows kept, rows known to be lost (None: nobody can say how many there were)."""

    kept: int
    lost: int | None


class _Table(NamedTuple):
    """A table of the new database: its columns, and its key when it has no row numbers."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]


def salvage(old: sqlite3.Connection, new: sqlite3.Connection, accept: Accept, call: Call) -> dict[str, Kept]:
    """Copy every readable row of every table that the new database has; return what became of each table.

    Runs in the transaction of the caller on `new`. Raises Interrupted at the deadline of the call.
    """
    return {table.name: _copy(old, new, table, accept, call) for table in _tables(new)}


def _tables(new: sqlite3.Connection) -> list[_Table]:
    names = new.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return [_describe(new, name) for (name,) in names.fetchall()]


def _describe(new: sqlite3.Connection, name: str) -> _Table:
    columns, key = [], []
    for _, column, _, _, _, place in new.execute(f"PRAGMA table_info({name})"):
        columns.append(column)
        if place:
            key.append((place, column))
    return _Table(name, tuple(columns), () if _has_rowid(new, name) else tuple(column for _, column in sorted(key)))


def _has_rowid(new: sqlite3.Connection, name: str) -> bool:
    try:
        new.execute(f"SELECT rowid FROM {name} LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, table: _Table, accept: Accept, call: Call) -> Kept:
    expected = _count(old, table)
    rows = _without_rowid(old, table) if table.key else _by_rowid(old, table, call)
    kept = 0
    for row in rows:
        call.check()
        if accept(table.name, dict(zip(table.columns, row, strict=True))) and _insert(new, table, row):
            kept += 1
    return Kept(kept=kept, lost=None if expected is None else max(0, expected - kept))


def _count(old: sqlite3.Connection, table: _Table) -> int | None:
    """Return the number of rows, from whichever index of the table can be read through."""
    indexes: list[str] = []
    with suppress(sqlite3.Error):
        indexes = [row[1] for row in old.execute(f"PRAGMA index_list({table.name})") if not row[4]]
    for source in (table.name, *(f'{table.name} INDEXED BY "{index}"' for index in indexes)):
        try:
            (count,) = old.execute(f"SELECT count(*) FROM {source}").fetchone()
        except sqlite3.Error:
            continue
        return int(count)
    return None


def _insert(new: sqlite3.Connection, table: _Table, row: Row) -> bool:
    columns, places = ", ".join(table.columns), ", ".join("?" * len(table.columns))
    try:
        new.execute(f"INSERT INTO {table.name} ({columns}) VALUES ({places})", row)
    except sqlite3.IntegrityError:
        return False  # of a type or value that the table does not allow, or a second row of the same key
    return True


# ---------------------------------------------------------------- with row numbers


def _by_rowid(old: sqlite3.Connection, table: _Table, call: Call) -> Iterator[Row]:
    last = -1
    while True:
        for rowid, row in _stream(old, table, last):
            last = rowid
            yield row
        found = _next_readable(old, table, last, call)
        if found is None:
            return
        last, row = found
        yield row


def _stream(old: sqlite3.Connection, table: _Table, after: int) -> Iterator[tuple[int, Row]]:
    """Yield the rows after a number in their order, up to the first that can't be read or is out of order.

    The module sqlite3 reads one row ahead, so the last good row before a bad one is missing as well.
    """
    with suppress(sqlite3.DatabaseError):
        for rowid, *row in old.execute(_after(table), {"after": after}):
            if rowid <= after:
                return
            after = rowid
            yield rowid, tuple(row)


def _next_readable(old: sqlite3.Connection, table: _Table, last: int, call: Call) -> tuple[int, Row] | None:
    """Return the next row after `last` that can be read, and its number; None when there is none.

    Invariant: reading fails after `bad` and succeeds after `good`.
    """
    bad, step = last - 1, 0
    while (found := _read_after(old, table, last + step)) is _FAILED:
        call.check()
        bad = last + step
        if bad >= _ROWID_MAX:
            return None
        step = min(max(1, step * 2), _ROWID_MAX - last)
    good = last + step
    while good - bad > 1:
        call.check()
        middle = (bad + good) // 2
        nearer = _read_after(old, table, middle)
        if nearer is _FAILED:
            bad = middle
        else:
            good, found = middle, nearer
    return None if found is None else found


def _read_after(old: sqlite3.Connection, table: _Table, after: int) -> "tuple[int, Row] | None":
    """Return the row after a number, None when there is none, _FAILED when that can't be read."""
    try:
        found = old.execute(f"{_after(table)} LIMIT 1", {"after": after}).fetchone()
    except sqlite3.OperationalError as error:
        return None if "no such" in str(error) else _FAILED
    except sqlite3.Error:
        return _FAILED
    return None if found is None or found[0] <= after else (found[0], tuple(found[1:]))


def _after(table: _Table) -> str:
    # NOT INDEXED: an index may be what is damaged, and may not name rows that are there.
    columns = ", ".join(table.columns)
    return f"SELECT rowid, {columns} FROM {table.name} NOT INDEXED WHERE rowid > :after ORDER BY rowid"


# ---------------------------------------------------------------- without


def _without_rowid(old: sqlite3.Connection, table: _Table) -> Iterator[Row]:
    """Yield the rows from the begin on, and from the end on when the way was cut; the two may meet and overlap."""
    for direction in ("ASC", "DESC"):
        if (yield from _in_order(old, table, direction)):
            return


def _in_order(old: sqlite3.Connection, table: _Table, direction: Literal["ASC", "DESC"]) -> Generator[Row, None, bool]:
    """Yield rows in one direction; return whether the other end was reached."""
    columns, key = ", ".join(table.columns), ", ".join(table.key)
    order = ", ".join(f"{column} {direction}" for column in table.key)
    query, last = f"SELECT {key}, {columns} FROM {table.name}", None
    try:
        for row in old.execute(f"{query} ORDER BY {order}"):
            last = row[: len(table.key)]
            yield row[len(table.key) :]
    except sqlite3.DatabaseError:
        pass
    else:
        return True
    if last is not None:
        # The module sqlite3 reads one row ahead: that one was good and is still to be had.
        places, comparison = ", ".join("?" * len(last)), ">" if direction == "ASC" else "<"
        with suppress(sqlite3.DatabaseError):
            for row in old.execute(f"{query} WHERE ({key}) {comparison} ({places}) ORDER BY {order} LIMIT 1", last):
                yield row[len(table.key) :]
    return False
