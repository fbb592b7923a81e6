"""Times as clients write them, to int64 microseconds UTC and back. Pure.

Accepted: an integer (µs since the epoch), or RFC 3339 text with `Z` or an offset; without an offset it is UTC; a date
alone is its first microsecond. Everything else is refused with an example, so nothing is ever guessed.
"""

from datetime import UTC, datetime, timedelta

from actors.errors import InvalidParams

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TS_MIN = -62_135_596_800_000_000  # 0001-01-01
TS_MAX = 253_402_300_799_999_999  # 9999-12-31


def parse_ts(value: int | str, field: str) -> int:
    """Return µs since the epoch, UTC; raise InvalidParams naming the field."""
    if isinstance(value, int):
        if not TS_MIN <= value <= TS_MAX:
            raise InvalidParams(f"{field}: {value} µs is outside the years 1 to 9999")
        return value
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - EPOCH) // timedelta(microseconds=1)
    except (ValueError, OverflowError) as error:
        raise InvalidParams(
            f"{field}: {value!r} is not a time",
            hint="use RFC 3339 such as 2026-03-01T12:00:00Z, a date such as 2026-03-01, or µs since the epoch",
        ) from error
