"""Filters: what they mean, and that no value in them can widen a result (held against a model on a real table)."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actors.errors import InvalidParams
from actors.messages.base import CORPORA, Corpus, Filters
from actors.searcher.lance_filters import Condition, conditions, prefix_end
from actors.searcher.store import GenerationStore, Question
from actors.sql.filters import VALUES_MAX, where
from tests.unit.actors.searcher.searcher_generations import MadeRow, make_generation

NASTY = (
    "a_b",
    "aXb",
    "a%",
    "a%b",
    "it's",
    "' OR 1=1 --",
    "') OR (tenant != '",
    'say "so"',
    "back\\slash",
    "back\\'slash",
    "\\') OR (1=1) --",
    "\\' OR 1=1) --",
    "tick`tick",
    "${x}",
    "new\nline",
    "nul\0nul",
    "笔记/每日",
    "笔记",
    "Ünï",
    "\ud7ff",
    "\ud7ffz",
    "\ue000",
    "\U0010ffff",
    "\U0010ffffz",
    " ",
    "",
)
FAR_NS = 2**62
word = st.one_of(st.sampled_from(NASTY), st.text(st.characters(exclude_categories=["Cs"]), max_size=3))


def test_the_tenant_is_always_the_first_condition() -> None:
    for corpus in CORPORA:
        assert conditions(Filters(), "t", corpus) == [Condition("tenant", "eq", "t")]


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (Filters(actors=("user",)), {"events"}),
        (Filters(kinds=("message",)), {"events"}),
        (Filters(types=("profile",)), {"units"}),
        (Filters(scopes=("user",)), {"units"}),
        (Filters(path="x/"), {"documents"}),
        (Filters(session_ids=("s",)), {"events", "units"}),
        (Filters(tags=("t",)), {"events", "units", "documents"}),
        (Filters(since=0), {"events", "units", "documents"}),
        (Filters(path="x/", actors=("user",)), set()),
    ],
)
def test_a_member_that_does_not_apply_excludes_the_corpus(filters: Filters, left: set[str]) -> None:
    assert {corpus for corpus in CORPORA if conditions(filters, "t", corpus) is not None} == left


def test_too_many_values_are_refused() -> None:
    many = tuple(f"s{n}" for n in range(VALUES_MAX))
    assert conditions(Filters(session_ids=many), "t", "events") is not None
    with pytest.raises(InvalidParams, match="1001 values, the limit is 1000"):
        conditions(Filters(session_ids=many, tags=("t",)), "t", "events")


def test_both_stores_agree_on_which_member_applies_to_which_corpus() -> None:
    corpora: tuple[Literal["events", "units"], ...] = ("events", "units")
    for filters in (
        Filters(session_ids=("s",)),
        Filters(actors=("user",)),
        Filters(kinds=("message",)),
        Filters(tags=("t",)),
        Filters(since=1),
        Filters(until=1),
        Filters(path="p"),
        Filters(types=("plan",)),
        Filters(scopes=("user",)),
    ):
        for corpus in corpora:
            assert (conditions(filters, "t", corpus) is None) == (where(filters, "t", corpus) is None)


def test_times_beyond_the_column_are_brought_into_its_range() -> None:
    assert conditions(Filters(since=-(2**70), until=2**64 - 1), "t", "events") == [
        Condition("tenant", "eq", "t"),
        Condition("ts", "at_least", -(2**63)),
        Condition("ts", "below", 2**63 - 1),
    ]


@given(word, st.text(st.characters(exclude_categories=["Cs"]), max_size=4))
@example("\ud7ff", "")
@example("a\U0010ffff", "")
def test_prefix_end_is_the_least_bound_of_a_prefix(prefix: str, rest: str) -> None:
    end = prefix_end(prefix)
    other = rest.encode()
    inside = other >= prefix.encode() and (end is None or other < end.encode())
    assert inside == rest.startswith(prefix)
    assert end is None or (prefix + rest).encode() < end.encode()


ROWS: dict[Corpus, list[MadeRow]] = {
    "events": [
        MadeRow(
            id=f"e{i}",
            text="common",
            ts=i - 3,
            tenant=NASTY[i % 7],
            session_id=NASTY[(i * 5) % len(NASTY)] if i % 4 else None,
            actor=("user", "assistant")[i % 2],
            kind=("message", "tool_call", "tool_result")[i % 3],
            tags=[NASTY[(i + j) % len(NASTY)] for j in range(i % 4)],
        )
        for i in range(70)
    ],
    "units": [
        MadeRow(
            id=f"u{i}",
            text="common",
            ts=i - 3,
            tenant=NASTY[i % 7],
            type=("profile", "plan")[i % 2],
            scope=("user", "session", "global")[i % 3],
            tags=[NASTY[i % len(NASTY)]],
        )
        for i in range(40)
    ],
    "documents": [
        MadeRow(id=f"d{i}", text="common", ts=i - 3, tenant=NASTY[i % 2], path=NASTY[i % len(NASTY)] + "/x.md")
        for i in range(60)
    ],
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenerationStore]:
    index: Path = tmp_path_factory.mktemp("filters")
    store = GenerationStore(cache_bytes=32 << 20)
    store.load(make_generation(index, 1, ROWS, identity=None), deadline_ns=time.monotonic_ns() + 10**11)
    yield store
    store.drop(1)


def matches(row: MadeRow, corpus: Corpus, filters: Filters, tenant: str) -> bool:
    """Say what `Filters` promises, without any notion of a query language."""
    if row.tenant != tenant:
        return False
    if corpus != "events" and (filters.actors or filters.kinds):
        return False
    if corpus != "units" and (filters.types or filters.scopes):
        return False
    if corpus != "documents" and filters.path:
        return False
    return all(
        (
            not filters.session_ids or row.session_id in filters.session_ids,
            not filters.actors or row.actor in filters.actors,
            not filters.kinds or row.kind in filters.kinds,
            not filters.types or row.type in filters.types,
            not filters.scopes or row.scope in filters.scopes,
            set(filters.tags) <= set(row.tags),
            filters.since is None or row.ts >= filters.since,
            filters.until is None or row.ts < filters.until,
            not filters.path or (row.path or "").startswith(filters.path),
        )
    )


some_filters = st.builds(
    Filters,
    session_ids=st.lists(word, max_size=4).map(tuple),
    actors=st.one_of(st.just(()), st.just(("user",))),
    kinds=st.one_of(st.just(()), st.just(("message", "tool_result"))),
    tags=st.one_of(st.just(()), st.lists(word, max_size=2).map(tuple)),
    since=st.one_of(st.none(), st.integers(-5, 70), st.just(2**63)),
    until=st.one_of(st.none(), st.integers(-5, 70), st.just(2**63 - 1)),
    path=st.one_of(st.none(), word),
    types=st.one_of(st.just(()), st.just(("profile",))),
    scopes=st.one_of(st.just(()), st.just(("user", "global"))),
)


@settings(max_examples=150, deadline=None)
@given(some_filters, st.one_of(st.sampled_from(NASTY[:7]), word))
@example(Filters(tags=("it's",)), "a_b")
@example(Filters(tags=("back\\'slash",)), "it's")
@example(Filters(session_ids=("\\') OR (1=1) --",), tags=("a_b",)), "a_b")
@example(Filters(session_ids=("\\' OR 1=1) --",), tags=("a_b",)), "a_b")
@example(Filters(path="a_"), "a_b")
@example(Filters(path="a%"), "aXb")
def test_filters_mean_what_they_say_whatever_is_in_them(store: GenerationStore, filters: Filters, tenant: str) -> None:
    question = Question(corpora=CORPORA, filters=filters, tenant=tenant, limit=1000, deadline_ns=FAR_NS)
    found = store.keyword(store.get(1), ["common"], question, lambda text: text)
    expected = {row.id for corpus in CORPORA for row in ROWS[corpus] if matches(row, corpus, filters, tenant)}
    assert {candidate.id for candidate in found} == expected
