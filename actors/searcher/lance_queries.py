"""Queries of one table: narrowed before they rank, bounded by a deadline, without the rows that are masked.

Rows that a delta masks are left out after LanceDB has ranked, and more are asked for when too few are left. Measured on
20,000 rows: the best 100 take 4.4 ms and the best 1,000 take 5.8 ms. As a condition, `id NOT IN` 100, 1,000 and 10,000
ids, the best 100 take 6.7, 12 and 65 ms: the list is read and held against every row, in each query.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from actors.errors import Interrupted
from actors.searcher.lance_filters import Condition, prefix_end
from actors.searcher.masking import Hidden
from actors.searcher.vector_index import Asked

if TYPE_CHECKING:
    import pyarrow as pa
    from lancedb.expr import Expr
    from lancedb.query import AsyncStandardQuery
    from lancedb.table import AsyncTable

_FACTS = ("id", "version", "part", "ts", "seq", "session_id", "actor", "kind", "path", "from_line", "to_line")
CARRIED = (*_FACTS, "heading", "type", "scope", "tags")
SPARE_PART = 4  # at first, room for masked rows in one place of four more
GROWTH = 4  # when that was too little, how many times as many rows are asked for


class Wanted(NamedTuple):
    """What is wanted of a table: the best `limit` rows that fulfil the conditions, until `deadline_ns`."""

    conditions: list[Condition]
    columns: Sequence[str]
    limit: int
    deadline_ns: int
    hidden: Hidden | None = None


async def find(start: "Callable[[], AsyncStandardQuery]", wanted: Wanted) -> "pa.Table":
    """Return the best rows that are not hidden; `start` begins a query, once for each that is made.

    Raises Interrupted at the deadline.

    One query is enough unless hidden rows take more than a fifth of the places; the last one has room for all of them.
    What was found by then is returned when the deadline leaves no time for another one.
    """
    hidden, limit = wanted.hidden, wanted.limit
    if hidden is None:
        return await _run(start(), wanted, limit)
    most = limit + hidden.rows_max
    asked = min(limit + limit // SPARE_PART, most)
    while True:
        rows = await _run(start(), wanted, asked)
        visible = _without(rows, hidden)
        if visible.num_rows >= limit or rows.num_rows < asked or asked >= most or _late(wanted):
            return visible.slice(0, limit)
        asked = min(GROWTH * asked, most)


async def _run(query: "AsyncStandardQuery", wanted: Wanted, limit: int) -> "pa.Table":
    """Narrow a query before it ranks, and run it. The column of the score must be named to be returned."""
    expression, lists = _where(wanted.conditions)
    query = query.where(expression)
    for text in lists:
        query = query.where(text)
    if _late(wanted):
        raise Interrupted("search stopped at its deadline")
    left_us = max(1, (wanted.deadline_ns - time.monotonic_ns()) // 1000)
    return await query.select([*wanted.columns]).limit(limit).to_arrow(timeout=timedelta(microseconds=left_us))


def _late(wanted: Wanted) -> bool:
    return time.monotonic_ns() >= wanted.deadline_ns


def _without(rows: "pa.Table", hidden: Hidden) -> "pa.Table":
    import pyarrow as pa

    visible = [name not in hidden.names for name in rows.column(hidden.column).to_pylist()]
    return rows if all(visible) else rows.filter(pa.array(visible, pa.bool_()))


def by_terms(table: "AsyncTable", terms: Sequence[str]) -> "AsyncStandardQuery":
    """Begin a keyword query. A MatchQuery: a plain string would be parsed, and a quoted one fail."""
    from lancedb.query import MatchQuery

    return table.query().nearest_to_text(MatchQuery(" ".join(terms), "terms"))


def by_vector(table: "AsyncTable", vector: Sequence[float], asked: Asked | None = None) -> "AsyncStandardQuery":
    """Begin a vector query: exact, or by the index. Rows without a vector have no distance and are never returned."""
    query = table.query().nearest_to(vector).column("vector").distance_type("cosine")
    if asked is None:
        return query.bypass_vector_index()
    return query.nprobes(asked.probes).refine_factor(asked.refine)


async def count_rows(table: "AsyncTable", needed: list[Condition], deadline_ns: int) -> int:
    """Return how many rows fulfil the conditions; raises TimeoutError at the deadline."""
    import asyncio

    expression, lists = _where(needed)
    sql = " AND ".join(f"({text})" for text in (expression.to_sql(), *lists))
    return await asyncio.wait_for(table.count_rows(sql), (deadline_ns - time.monotonic_ns()) / 1e9)


def _where(needed: Iterable[Condition]) -> "tuple[Expr, list[str]]":
    """Return the conditions as one typed expression, and those on lists as SQL, for which LanceDB has no expression.

    Joining the two makes LanceDB print the expression as SQL and parse it again, and its printer leaves a quote after
    a backslash as it is: the value `\\' OR …` would become a condition. Hence `_literal`: no value is ever printed as
    text. tests/unit/actors/searcher/test_searcher_filters.py holds it against arbitrary strings.
    """
    expression: Expr | None = None
    lists = []
    for condition in needed:
        if condition.operator == "has":
            lists.append(f"array_has({condition.column}, {_literal(condition.value).to_sql()})")
        else:
            part = _compare(condition)
            expression = part if expression is None else expression & part
    assert expression is not None, "a search without a tenant"
    return expression, lists


def _compare(condition: Condition) -> "Expr":
    from lancedb.expr import col

    column, value = col(condition.column), condition.value
    match condition.operator:
        case "eq":
            return column == _literal(value)
        case "any_of":
            assert isinstance(value, tuple)
            return column.isin([_literal(one) for one in value])
        case "at_least":
            return column >= _literal(value)
        case "below":
            return column < _literal(value)
        case "starts_with":
            assert isinstance(value, str)
            end, begins = prefix_end(value), column >= _literal(value)
            return begins if end is None else begins & (column < _literal(end))
        case "has":
            raise AssertionError("conditions on lists are written elsewhere")


def _literal(value: object) -> "Expr":
    """Return a value as an expression that prints as a number, or as hexadecimal digits and a cast."""
    from lancedb.expr import lit

    assert isinstance(value, int | str)
    return lit(value) if isinstance(value, int) else lit(value.encode()).cast("string")
