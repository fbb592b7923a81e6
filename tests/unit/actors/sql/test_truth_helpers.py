"""The small pure helpers of the truth: ids, pages, times, limits, terms."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import InvalidParams
from actors.messages.base import Rows
from actors.sql import limits, rows
from actors.sql.ulid import RANDOM_BYTES, UlidMaker
from actors.terms import event_terms, unit_terms


@given(
    times=st.lists(st.integers(min_value=0, max_value=2**60), max_size=30), random=st.binary(min_size=10, max_size=10)
)
def test_ulids_ascend_whatever_the_clock_does(times: list[int], random: bytes) -> None:
    maker = UlidMaker()
    made = [maker.make(time, random) for time in times]
    assert made == sorted(set(made))
    assert all(len(ulid) == 26 and ulid.isalnum() for ulid in made)


def test_a_ulid_tells_its_time() -> None:
    """The example of the ULID specification: this time is written 01ARYZ6S41."""
    assert UlidMaker().make(1469918176385 * 1000, bytes(RANDOM_BYTES)) == "01ARYZ6S41" + "0" * 16


@pytest.mark.parametrize(
    ("ts", "text"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1_700_000_000_123_456, "2023-11-14T22:13:20.123456Z"),
        (-1, "1969-12-31T23:59:59.999999Z"),
        (rows.TS_MIN, "0001-01-01T00:00:00.000000Z"),
        (rows.TS_MAX, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_times_are_written_in_utc_with_microseconds(ts: int, text: str) -> None:
    assert rows.rfc3339(ts) == text


def test_a_page_ends_at_its_limit_or_its_size_and_says_whether_there_is_more() -> None:
    small = [b"%d" % n for n in range(5)]
    assert rows.page(small[:3], 3) == Rows(rows=b"[0,1,2]", count=3, more=False)
    assert rows.page(small, 3) == Rows(rows=b"[0,1,2]", count=3, more=True)
    assert rows.page(small[:3], 2, reverse=True) == Rows(rows=b"[1,0]", count=2, more=True)
    assert rows.page([], 3) == Rows(rows=b"[]", count=0, more=False)
    large = [b'"' + b"x" * (rows.PAGE_BYTES_MAX - 10) + b'"'] * 3
    assert rows.page(large, 3).count == 1
    assert rows.page(large, 3).more
    packed = rows.page_msgpack([msgspec.msgpack.encode(n) for n in range(3)], 2)
    assert (msgspec.msgpack.decode(packed.rows), packed.more) == ([0, 1], True)


@pytest.mark.parametrize(("limit", "expected"), [(1, 1), (1000, 1000), (10**6, 1000)])
def test_a_limit_is_capped(limit: int, expected: int) -> None:
    assert rows.rows_limit(limit) == expected


def test_a_limit_below_one_is_refused() -> None:
    """SQLite takes a negative limit for none at all."""
    with pytest.raises(InvalidParams, match="limit is -1"):
        rows.rows_limit(-1)


def test_text_is_measured_in_bytes_and_may_hold_nul() -> None:
    assert limits.check_text("append", "content", "记\0", 4, "k") == "记\0".encode()
    with pytest.raises(InvalidParams, match=r"append refused: content is 6 bytes, the limit is 5 \(k\)"):
        limits.check_text("append", "content", "记忆", 5, "k")


def test_half_a_surrogate_pair_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidParams, match="content holds a lone surrogate at character 2"):
        limits.check_text("append", "content", "ab\ud800", 100, "k")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("", "is empty"),
        ("abcd", "is 4 characters, the limit is 3"),
        ("a\0", "NUL at character 1"),
        ("\udfff", "surrogate"),
    ],
)
def test_ids_that_are_refused(value: str, words: str) -> None:
    with pytest.raises(InvalidParams, match=words):
        limits.check_id("append", "event_id", value, 3, "k")


def test_tags_and_json_become_columns() -> None:
    assert limits.check_tags("append", ("a", 'b"'), count_max=2, chars_max=2, room="r") == '["a","b\\""]'
    with pytest.raises(InvalidParams, match=r"3 tags, the limit is 2 \(r.tags_max\)"):
        limits.check_tags("append", ("a", "b", "c"), count_max=2, chars_max=2, room="r")
    with pytest.raises(InvalidParams, match=r"tags\[1\] is empty"):
        limits.check_tags("append", ("a", ""), count_max=2, chars_max=2, room="r")
    assert limits.check_json("append", "meta", None, 10, "k") is None
    assert limits.check_json("append", "meta", {"a": 1}, 10, "k") == '{"a":1}'
    with pytest.raises(InvalidParams, match="meta is 7 bytes, the limit is 6"):
        limits.check_json("append", "meta", {"a": 1}, 6, "k")


@pytest.mark.parametrize("wrap", ["dict", "list"])
def test_json_that_is_too_deep_is_refused(wrap: str) -> None:
    deep: object = 1
    for _ in range(limits.JSON_DEPTH_MAX - 1):
        deep = {"a": deep} if wrap == "dict" else [deep]
    assert limits.check_json("append", "meta", {"m": deep}, 10**7, "k")
    with pytest.raises(InvalidParams, match="meta is nested more than 100 levels deep"):
        limits.check_json("append", "meta", {"m": [deep]}, 10**7, "k")


def test_what_json_can_not_express_is_refused() -> None:
    with pytest.raises(InvalidParams, match="meta is not JSON"):
        limits.check_json("append", "meta", {"m": object()}, 10**7, "k")
    with pytest.raises(InvalidParams, match="meta is not JSON"):
        limits.check_json("append", "meta", {"m": "\ud800"}, 10**7, "k")


def test_an_event_is_found_by_its_words_and_its_date() -> None:
    terms = event_terms("hello 记忆", 1_700_000_000_000_000)
    assert {"hello", "记忆", "2023-11-14"} <= set(terms)


def test_a_unit_is_found_by_its_text_the_strings_of_its_facts_and_its_tags() -> None:
    terms = unit_terms("tea", {"keyname": ["oolong", {"deep": "sencha"}], "n": 5, "none": None}, ("drink",))
    assert {"tea", "oolong", "sencha", "drink"} <= set(terms)
    assert "keyname" not in terms
