"""Reading a damaged segment: row by row, past what can't be read, and nothing that does not prove itself.

A view is a read-only connection on the file as it lies there, with its WAL or without. The one with the WAL knows
more; the other one still reads what was copied into the file before a WAL was damaged. Rows are immutable, so whatever
both give together is right.

A row proves itself by its hash (the content), by the indexes, whose pages are others than its own (tenant, session and
id), and by the types and limits of its columns. A page that can't be read takes the rows on it along: the search for
the next one that can be read gallops and bisects, so a hole of any size costs some twenty probes.
"""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from actors.sql.database import FileKind, file_bytes, open_writer, remove_database, wal_of
from actors.transcript_appender import store
from actors.transcript_appender.examine import UNREADABLE
from actors.transcript_appender.layout import Layout, expected_layout, read_layout
from actors.transcript_appender.soundness import is_sound, is_text
from actors.transcript_appender.store import EventRow, Place

_PAGE_BYTES = 4096
# The change counter. Unless it equals another field of the header, the number of pages is not read from the header but
# taken from the size of the file.
_CHANGES_AT = 24


class View:
    """One way of reading a damaged file. What can't be read is left out; nothing is raised for it."""

    def __init__(self, path: Path, *, with_wal: bool) -> None:
        options = "mode=ro" if with_wal else "mode=ro&immutable=1"
        self._connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?{options}",
            uri=True,
            timeout=0.25,
            isolation_level=None,
            check_same_thread=False,
        )
        # Bytes that are no text become lone surrogates, by which the row is known to be damaged.
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
        for pragma in ("query_only = ON", "cell_size_check = ON", "trusted_schema = OFF", "mmap_size = 0"):
            with suppress(*UNREADABLE):
                self._connection.execute(f"PRAGMA {pragma}")

    def close(self) -> None:
        """Close the connection; neither the file nor the WAL is changed by it."""
        self._connection.close()

    def layout(self) -> Layout | None:
        """Return which tables and indexes there are, None when the first page can't be read."""
        try:
            return read_layout(self._connection)
        except (*UNREADABLE, ValueError, TypeError):
            return None

    def rows_below(self, top: int, bottom: int, limit: int) -> tuple[list[EventRow], int]:
        """Return readable rows with bottom <= seq < top, the newest first, at most `limit`; and the seq down to which
        everything has been tried."""
        rows: list[EventRow] = []
        try:
            for row in self._below(top, bottom, limit):
                rows.append(row)
        except UNREADABLE:
            return rows, rows[-1].seq if rows else self._next_readable(top, bottom)
        return rows, rows[-1].seq if len(rows) == limit else bottom

    def _below(self, top: int, bottom: int, limit: int) -> Iterator[EventRow]:
        rows = self._connection.execute(
            f"""
            SELECT {store.COLUMNS}
            FROM events NOT INDEXED
            WHERE seq < :top AND seq >= :bottom
            ORDER BY seq DESC
            LIMIT :limit
            """,
            {"top": top, "bottom": bottom, "limit": limit},
        )
        return (EventRow(*row) for row in rows)

    def _next_readable(self, top: int, bottom: int) -> int:
        """Return the highest seq below `top` such that reading on from there works; `bottom` when there is none."""
        works, fails, step = bottom, top, 1
        while fails - step > bottom:
            if self._can_read_below(fails - step, bottom):
                works = fails - step
                break
            fails, step = fails - step, step * 2
        while fails - works > 1:
            middle = (fails + works) // 2
            if self._can_read_below(middle, bottom):
                works = middle
            else:
                fails = middle
        return works

    def _can_read_below(self, top: int, bottom: int) -> bool:
        try:
            next(self._below(top, bottom, 1), None)
        except UNREADABLE:
            return False
        return True

    def confirms(self, row: EventRow) -> bool | None:
        """Say whether the indexes know this row as it is; None when they can't be read."""
        try:
            by_session = self._connection.execute(
                """
                SELECT 1 FROM events INDEXED BY events_by_session
                WHERE tenant = :tenant AND session_id = :session_id AND seq = :seq
                """,
                {"tenant": row.tenant, "session_id": row.session_id, "seq": row.seq},
            ).fetchone()
            by_id = self._connection.execute(
                "SELECT seq FROM events WHERE event_id = :event_id", {"event_id": row.event_id}
            ).fetchone()
        except (*UNREADABLE, UnicodeEncodeError):
            return None
        return by_session is not None and by_id == (row.seq,)

    def requests(self) -> Iterator[tuple[str, str, int]]:
        """Yield (tenant, request_id, seq) of the noted requests, from both ends up to what can't be read."""
        for order in ("tenant, request_id", "tenant DESC, request_id DESC"):
            try:
                rows = self._connection.execute(f"SELECT tenant, request_id, seq FROM requests ORDER BY {order}")
                yield from (row for row in rows if _is_request(row))
                return
            except UNREADABLE:
                continue

    def recent(self) -> list[tuple[bytes, int, int, int]]:
        """Return (key, seq, ts, seen) of the events that may be repeated by mistake; nothing when damaged."""
        try:
            return self._connection.execute("SELECT key, seq, ts, seen FROM recent").fetchall()
        except UNREADABLE:
            return []

    # ------------------------------------------------------------ single events, for finding duplicates

    def place_by_event_id(self, event_id: str) -> Place | None:
        """Return where the event with this id stands, when it proves itself."""
        try:
            return self._proven(store.place_by_event_id(self._connection, event_id))
        except UNREADABLE:
            return None

    def place_by_request(self, tenant: str, request_id: str) -> Place | None:
        """Return which event a request led to, when the event says the same of itself."""
        try:
            place = store.place_by_request(self._connection, tenant, request_id)
            event = None if place is None else store.event_at(self._connection, place.seq)
        except UNREADABLE:
            return None
        if event is None or (event.tenant, event.request_id) != (tenant, request_id):
            return None
        return self._proven(place)

    def place_at(self, seq: int) -> Place | None:
        """Return the event with this seq, when it proves itself."""
        try:
            return self._proven(store.place_at(self._connection, seq))
        except UNREADABLE:
            return None

    def recent_place(self, key: bytes, ts: int, window_us: int) -> Place | None:
        """Return the event with this key whose time is within the window around `ts`, when it proves itself."""
        try:
            return self._proven(store.recent_place(self._connection, key, ts, window_us))
        except UNREADABLE:
            return None

    def _proven(self, place: Place | None) -> Place | None:
        event = None if place is None else store.event_at(self._connection, place.seq)
        if place is None or event is None or event.event_id != place.event_id or not is_sound(event):
            return None
        return None if self.confirms(event) is False else place


def _is_request(row: tuple[object, ...]) -> bool:
    tenant, request_id, seq = row
    texts = isinstance(tenant, str) and isinstance(request_id, str) and is_text(tenant) and is_text(request_id)
    return texts and isinstance(seq, int)


def open_views(path: Path, kind: FileKind, scratch: Path) -> list[View]:
    """Return the ways in which a damaged file can be read: none when nothing of it is left.

    Without its first page, which names the tables, nothing could be found in it, and SQLite reads none of a file that
    is shorter than that page says. The page of a fresh file of this kind names the same tables, so a copy under
    `scratch` gets that one; the damaged file stays as it is.
    """
    if file_bytes(path) == 0:
        return []
    views, expected = _views(path), expected_layout(kind.schema)
    layouts = [layout for view in views if (layout := view.layout()) is not None]
    if expected in layouts:
        return views
    if all(layout.definitions != expected.definitions for layout in layouts):
        for view in views:
            view.close()
        views = []
    # Else the tables begin elsewhere, because of a VACUUM or of the damage: both ways are tried.
    first_page = _first_page(kind, scratch)
    shutil.copyfile(path, scratch)
    if wal_of(path).exists():
        shutil.copyfile(wal_of(path), wal_of(scratch))
    with scratch.open("r+b") as file:
        file.write(first_page[:_CHANGES_AT] + b"\xff\xff\xff\xff" + first_page[_CHANGES_AT + 4 :])
    return [*views, *_views(scratch)]


def _views(path: Path) -> list[View]:
    views = []
    for with_wal in (True, False):
        with suppress(*UNREADABLE):
            views.append(View(path, with_wal=with_wal))
    return views


def _first_page(kind: FileKind, scratch: Path) -> bytes:
    """Return the first page of an empty file of the kind."""
    remove_database(scratch)
    open_writer(scratch, kind).close()
    try:
        return scratch.read_bytes()[:_PAGE_BYTES]
    finally:
        remove_database(scratch)
