"""Rows as clients see them: JSON text with times as RFC 3339, in pages of bounded size. Pure.

A page ends at its row limit or when it has grown to PAGE_BYTES_MAX, whichever comes first, and always holds at least
one row: a line of the protocol is at most 8 MiB, and a few large contents must not make a page that can't be sent.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

import msgspec

from actors.errors import InvalidParams
from actors.messages.base import Row, Rows

PAGE_BYTES_MAX = 4 * 1024 * 1024
PAGE_ROWS_MAX = 1000
TS_MIN = -62_135_596_800_000_000
TS_MAX = 253_402_300_799_999_999
"""The first and the last µs that have a date (years 1 to 9999)."""

_EPOCH = datetime(1970, 1, 1)


def rfc3339(ts_us: int) -> str:
    """Return a time in µs since the epoch, between TS_MIN and TS_MAX, as UTC with microseconds and `Z`."""
    return (_EPOCH + timedelta(microseconds=ts_us)).isoformat(timespec="microseconds") + "Z"


def raw_json(text: str | None) -> msgspec.Raw | None:
    """Return JSON text from a column so that it is written into a row as it is."""
    return None if text is None else msgspec.Raw(text.encode())


def encode_row(row: dict[str, object]) -> bytes:
    """Return a row as JSON."""
    return msgspec.json.encode(row)


def with_redacted(row: Row, counts: Mapping[str, int]) -> Row:
    """Return a row with one more member: how many secrets of which kind were taken out of what was sent."""
    told = msgspec.json.encode(dict(sorted(counts.items())))
    return Row(row=row.row.removesuffix(b"}") + (b"," if row.row != b"{}" else b"") + b'"redacted":' + told + b"}")


def rows_limit(limit: int) -> int:
    """Return the limit of a page, at most PAGE_ROWS_MAX; raises InvalidParams below 1."""
    if limit < 1:
        raise InvalidParams(f"page refused: limit is {limit}, it must be at least 1")
    return min(limit, PAGE_ROWS_MAX)


def page(rows: Iterable[bytes], limit: int, *, reverse: bool = False) -> Rows:
    """Make a page of at most `limit` rows of JSON; the iterable should go one row further, to know if there is more.

    With `reverse` the rows came last first and are put in order.
    """
    taken, more = _take(rows, limit)
    if reverse:
        taken.reverse()
    return Rows(rows=b"[" + b",".join(taken) + b"]", count=len(taken), more=more)


def page_msgpack(rows: Iterable[bytes], limit: int) -> Rows:
    """Make a page of at most `limit` rows of msgpack, as `page` does."""
    taken, more = _take(rows, limit)
    return Rows(rows=msgspec.msgpack.encode([msgspec.Raw(row) for row in taken]), count=len(taken), more=more)


def _take(rows: Iterable[bytes], limit: int) -> tuple[list[bytes], bool]:
    taken: list[bytes] = []
    size = 0
    for row in rows:
        if len(taken) == limit or (taken and size + len(row) > PAGE_BYTES_MAX):
            return taken, True
        taken.append(row)
        size += len(row)
    return taken, False
