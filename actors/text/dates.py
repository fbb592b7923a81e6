"""The date of an event as index terms, so that "8 May, 2023" or 5月8日 finds what was said on that day.

The date is the one of UTC: the truth keeps no other, and an index must not depend on where it was built.
"""

from datetime import datetime, timedelta

from actors.text.words import stem

_EPOCH = datetime(1970, 1, 1)
_MONTHS = (
    "january february march april may june july august september october november december".split()  # noqa: SIM905
)


def date_terms(ts_us: int) -> list[str]:
    """Return the terms for the UTC date of a time in µs since the epoch; none when it is outside the years 1 to 9999.

    They are terms that `analyse` makes of a written date: ISO date and month, year, name of the month (also its first
    three letters), day, and the Chinese year, month and day.
    """
    try:
        date = _EPOCH + timedelta(microseconds=ts_us)
    except OverflowError:
        return []
    month = _MONTHS[date.month - 1]
    terms = [
        f"{date.year:04d}-{date.month:02d}-{date.day:02d}",
        f"{date.year:04d}-{date.month:02d}",
        f"{date.year:04d}",
        stem(month),
        month[:3],
        str(date.day),
        f"{date.year}年",
        f"{date.month}月",
        f"{date.day}日",
    ]
    return list(dict.fromkeys(terms))
