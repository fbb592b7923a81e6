"""How often a table is asked when a delta hides rows of it, and for how many rows. Against a scripted table."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from actors.errors import Interrupted
from actors.searcher.lance_filters import Condition
from actors.searcher.lance_queries import Wanted, find
from actors.searcher.masking import Hidden

LIMIT = 20


class ScriptedTable:
    """A table whose best rows are 0, 1, 2, …; `slow_s` is how long a query takes."""

    def __init__(self, rows: int, *, slow_s: float = 0.0) -> None:
        self.rows = rows
        self.slow_s = slow_s
        self.asked: list[int] = []

    def begin(self) -> Any:
        """Begin a query."""
        return self

    def where(self, condition: object) -> "ScriptedTable":
        """Take any condition."""
        return self

    def select(self, columns: list[str]) -> "ScriptedTable":
        """Take any columns."""
        return self

    def limit(self, limit: int) -> "ScriptedTable":
        """Note how many are wanted."""
        self.asked.append(limit)
        return self

    async def to_arrow(self, timeout: timedelta) -> pa.Table:  # noqa: ASYNC109 - LanceDB's name
        """Answer with the best rows."""
        await asyncio.sleep(self.slow_s)
        return pa.table({"id": [str(number) for number in range(min(self.rows, self.asked[-1]))]})

    def find(self, hidden: Hidden | None, *, seconds: float = 60.0) -> list[int]:
        """Return the numbers of the rows that are found."""
        deadline_ns = time.monotonic_ns() + int(seconds * 1e9)
        wanted = Wanted([Condition("tenant", "eq", "t")], ["id"], LIMIT, deadline_ns, hidden)
        return [int(name) for name in asyncio.run(find(self.begin, wanted)).column("id").to_pylist()]


def hide(*numbers: int, rows_max: int | None = None) -> Hidden:
    names = {str(number) for number in numbers}
    return Hidden("id", names, len(names) if rows_max is None else rows_max)


def test_without_a_delta_a_table_is_asked_for_what_is_wanted() -> None:
    table = ScriptedTable(1000)
    assert table.find(None) == list(range(20))
    assert table.asked == [20]


def test_a_few_hidden_rows_cost_no_second_query() -> None:
    table = ScriptedTable(1000)
    assert table.find(hide(1, 3, 500, rows_max=900)) == [0, 2, *range(4, 22)]
    assert table.asked == [25]
    table = ScriptedTable(1000)
    assert table.find(hide(0)) == list(range(1, 21))
    assert table.asked == [21], "no more than there can be"


def test_many_hidden_rows_are_passed_over_in_few_queries() -> None:
    table = ScriptedTable(1000)
    assert table.find(hide(*range(700))) == list(range(700, 720))
    assert table.asked == [25, 100, 400, 720], "the last one has room for all of them"


def test_a_table_that_has_no_more_rows_is_not_asked_again() -> None:
    table = ScriptedTable(22)
    assert table.find(hide(*range(0, 22, 2), rows_max=5000)) == list(range(1, 22, 2))
    assert table.asked == [25]


def test_the_deadline_ends_it_with_what_was_found() -> None:
    table = ScriptedTable(1000, slow_s=0.2)
    assert table.find(hide(*range(10), rows_max=900), seconds=0.1) == list(range(10, 25))
    assert table.asked == [25]
    with pytest.raises(Interrupted, match="deadline"):
        table.find(hide(1), seconds=-1)
    assert table.asked == [25]
