"""From `Filters` to a WHERE clause for the tables of the truth. Pure.

The counterpart for the generations is `searcher/lance_filters.py`; the two must agree on which member applies to
which corpus. The result is a conjunction of fixed fragments over a whitelist of columns; every value is a bound
parameter, compared byte by byte, so there are no wildcards and nothing to escape. The tenant comes from the
connection's principal and is always the first condition: nothing in `Filters` can take it away or widen it.

The table is called `t` in the fragments. Tags are a JSON array of strings in the column `tags`.
"""

from typing import Literal, NamedTuple

from actors.errors import InvalidParams
from actors.messages.base import Filters

VALUES_MAX = 1000
"""How many values all members of one Filters may name together."""

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)
# Member of Filters → column of the table. A member that is not listed for a corpus rules the whole corpus out.
_LISTS = {
    "events": {"session_ids": "t.session_id", "actors": "t.actor", "kinds": "t.kind"},
    "units": {"session_ids": "t.session_id", "types": "t.type", "scopes": "t.scope"},
}
_TIME = {"events": "t.ts", "units": "t.updated_at"}
_ALL_LISTS = ("session_ids", "actors", "kinds", "types", "scopes")


class Where(NamedTuple):
    """A condition and the values of its named parameters, which all begin with `f_`."""

    sql: str
    parameters: dict[str, str | int]


def where(filters: Filters, tenant: str, corpus: Literal["events", "units"]) -> Where | None:
    """Return what a row must fulfil, or None when a given member rules the whole corpus out.

    Raises InvalidParams when the members name more than VALUES_MAX values.
    """
    columns = _LISTS[corpus]
    if filters.path or any(getattr(filters, member) for member in _ALL_LISTS if member not in columns):
        return None
    _check_count(filters)
    clauses = ["t.tenant = :f_tenant"]
    parameters: dict[str, str | int] = {"f_tenant": tenant}
    for member, column in columns.items():
        if values := tuple(dict.fromkeys(getattr(filters, member))):
            names = _bind(parameters, member, values)
            clauses.append(f"{column} IN ({', '.join(names)})")
    for name in _bind(parameters, "tags", tuple(dict.fromkeys(filters.tags))):
        clauses.append(f"EXISTS (SELECT 1 FROM json_each(t.tags) AS tag WHERE tag.value = {name})")
    if filters.since is not None:
        parameters["f_since"] = _int64(filters.since)
        clauses.append(f"{_TIME[corpus]} >= :f_since")
    if filters.until is not None:
        parameters["f_until"] = _int64(filters.until)
        clauses.append(f"{_TIME[corpus]} < :f_until")
    return Where(" AND ".join(clauses), parameters)


def _bind(parameters: dict[str, str | int], member: str, values: tuple[str, ...]) -> list[str]:
    """Add the values to the parameters and return their placeholders."""
    names = [f"f_{member}_{index}" for index in range(len(values))]
    parameters.update(zip(names, values, strict=True))
    return [f":{name}" for name in names]


def _check_count(filters: Filters) -> None:
    count = len(filters.tags) + sum(len(getattr(filters, member)) for member in _ALL_LISTS)
    if count > VALUES_MAX:
        raise InvalidParams(f"search refused: filters name {count} values, the limit is {VALUES_MAX}")


def _int64(number: int) -> int:
    """Bring a number into the range of the column, beyond which SQLite can't be given it."""
    return max(_INT64_MIN, min(number, _INT64_MAX))
