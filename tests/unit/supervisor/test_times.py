"""Times as clients write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import InvalidParams
from actors.sql.rows import rfc3339
from supervisor.times import TS_MAX, TS_MIN, parse_ts

NOON = 1_772_366_400_000_000


@pytest.mark.parametrize(
    "text",
    [
        "2026-03-01T12:00:00Z",
        "2026-03-01T21:00:00+09:00",
        "2026-03-01T12:00:00",
        "2026-03-01T12:00:00.000000Z",
        "2026-03-01 12:00",
    ],
)
def test_one_instant_in_many_spellings(text: str) -> None:
    assert parse_ts(text, "ts") == NOON


def test_a_date_is_its_first_microsecond() -> None:
    assert parse_ts("2026-03-01", "since") == NOON - 12 * 3600 * 1_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "2026-03-01T25:00:00Z", "9999999999999999999999"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidParams, match="ts: ") as refused:
        parse_ts(text, "ts")
    assert refused.value.hint is not None


def test_integers_outside_the_calendar_are_refused() -> None:
    for ts in (TS_MIN - 1, TS_MAX + 1):
        with pytest.raises(InvalidParams):
            parse_ts(ts, "ts")


@given(st.integers(TS_MIN, TS_MAX))
def test_text_and_back(ts: int) -> None:
    assert parse_ts(rfc3339(ts), "ts") == ts
