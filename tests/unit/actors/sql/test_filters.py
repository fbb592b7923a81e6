"""Filters of the truth, run through the real engine and compared with what the words of `Filters` say."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Literal, NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.errors import InvalidParams
from actors.messages.base import Filters
from actors.sql.filters import VALUES_MAX, Where, where

# Values that a careless engine would mix up: wildcards, quotes, SQL, case, NUL, Unicode forms.
NASTY = (
    "a_b",
    "a%",
    "aXb",
    "a",
    "A",
    "",
    "a'b",
    "' OR 1=1 --",
    '"',
    "a\0b",
    "记忆",
    "é",
    "e\u0301",
    "%",
    "_",
    "\\",
    "1",
)
WORDS = st.sampled_from(NASTY)
TENANTS = st.sampled_from(("a_b", "a%", "aXb", "default"))
TIMES = st.integers(min_value=-3, max_value=3)
ACTORS = st.sampled_from(("user", "assistant", "system", "tool"))
KINDS = st.sampled_from(("message", "tool_call", "tool_result", "document_fragment"))
TYPES = st.sampled_from(("profile", "summary", "skill", "plan"))
SCOPES = st.sampled_from(("user", "session", "global"))


class Row(NamedTuple):
    """What filters can look at in a row of either corpus."""

    tenant: str
    session_id: str | None
    actor: str
    kind: str
    type: str
    scope: str
    ts: int
    tags: tuple[str, ...]


ROWS = st.lists(
    st.builds(
        Row,
        tenant=TENANTS,
        session_id=st.one_of(st.none(), WORDS),
        actor=ACTORS,
        kind=KINDS,
        type=TYPES,
        scope=SCOPES,
        ts=TIMES,
        tags=st.lists(WORDS.filter(lambda tag: "\0" not in tag), max_size=3).map(tuple),
    ),
    max_size=8,
)
FILTERS = st.builds(
    Filters,
    session_ids=st.lists(WORDS, max_size=2).map(tuple),
    actors=st.lists(ACTORS, max_size=2).map(tuple),
    kinds=st.lists(KINDS, max_size=2).map(tuple),
    tags=st.lists(WORDS, max_size=2).map(tuple),
    since=st.one_of(st.none(), TIMES, st.just(-(2**70))),
    until=st.one_of(st.none(), TIMES, st.just(2**70)),
    path=st.one_of(st.none(), st.just(""), WORDS),
    types=st.lists(TYPES, max_size=2).map(tuple),
    scopes=st.lists(SCOPES, max_size=2).map(tuple),
)


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as opened:
        opened.execute(
            "CREATE TABLE t (n INTEGER PRIMARY KEY, tenant TEXT, session_id TEXT, actor TEXT, kind TEXT,"
            " type TEXT, scope TEXT, ts INTEGER, updated_at INTEGER, tags TEXT)"
        )
        yield opened


def selected(connection: sqlite3.Connection, rows: list[Row], condition: Where) -> list[int]:
    connection.execute("DELETE FROM t")
    for n, row in enumerate(rows):
        tags = msgspec.json.encode(row.tags).decode()
        connection.execute("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (n, *row[:7], row.ts, tags))
    found = connection.execute(f"SELECT n FROM t WHERE {condition.sql} ORDER BY n", condition.parameters)
    return [n for (n,) in found]


def fits(row: Row, filters: Filters, tenant: str) -> bool:
    return (
        row.tenant == tenant
        and (not filters.session_ids or row.session_id in filters.session_ids)
        and (not filters.actors or row.actor in filters.actors)
        and (not filters.kinds or row.kind in filters.kinds)
        and (not filters.types or row.type in filters.types)
        and (not filters.scopes or row.scope in filters.scopes)
        and set(filters.tags) <= set(row.tags)
        and (filters.since is None or row.ts >= filters.since)
        and (filters.until is None or row.ts < filters.until)
    )


@given(rows=ROWS, filters=FILTERS, tenant=TENANTS, corpus=st.sampled_from(("events", "units")))
def test_filters_select_what_they_say(
    rows: list[Row], filters: Filters, tenant: str, corpus: Literal["events", "units"]
) -> None:
    condition = where(filters, tenant, corpus)
    others = (filters.types or filters.scopes) if corpus == "events" else (filters.actors or filters.kinds)
    assert (condition is None) == bool(filters.path or others)
    if condition is None:
        return
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE t (n INTEGER PRIMARY KEY, tenant TEXT, session_id TEXT, actor TEXT, kind TEXT,"
            " type TEXT, scope TEXT, ts INTEGER, updated_at INTEGER, tags TEXT)"
        )
        assert selected(connection, rows, condition) == [n for n, row in enumerate(rows) if fits(row, filters, tenant)]


@pytest.mark.parametrize(
    ("member", "events", "units"),
    [
        ({"session_ids": ("s",)}, True, True),
        ({"actors": ("user",)}, True, False),
        ({"kinds": ("message",)}, True, False),
        ({"types": ("plan",)}, False, True),
        ({"scopes": ("user",)}, False, True),
        ({"path": "notes/"}, False, False),
        ({"path": ""}, True, True),
        ({"tags": ("x",)}, True, True),
        ({"since": 0, "until": 1}, True, True),
    ],
)
def test_a_member_that_does_not_apply_rules_the_corpus_out(
    member: dict[str, object], events: bool, units: bool
) -> None:
    filters = msgspec.convert(member, Filters)
    assert (where(filters, "default", "events") is not None) == events
    assert (where(filters, "default", "units") is not None) == units


@pytest.mark.parametrize("wanted", ["a_b", "a%", "aXb"])
def test_wildcards_are_ordinary_characters(connection: sqlite3.Connection, wanted: str) -> None:
    names = ("a_b", "a%", "aXb", "ab")
    rows = [Row(name, name, "user", "message", "plan", "user", 0, (name,)) for name in names]
    for filters in (Filters(), Filters(session_ids=(wanted,)), Filters(tags=(wanted,))):
        condition = where(filters, wanted, "events")
        assert condition is not None
        assert selected(connection, rows, condition) == [names.index(wanted)]


def test_nothing_that_a_client_names_stands_in_the_sql() -> None:
    evil = "x' OR '1'='1"
    condition = where(Filters(session_ids=(evil,), tags=(evil,)), evil, "events")
    assert condition is not None
    assert evil not in condition.sql
    assert set(condition.parameters.values()) == {evil}


def test_too_many_values_are_refused() -> None:
    with pytest.raises(InvalidParams, match=f"{VALUES_MAX + 1} values, the limit is {VALUES_MAX}"):
        where(Filters(session_ids=tuple(map(str, range(VALUES_MAX + 1)))), "default", "events")
