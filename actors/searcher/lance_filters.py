"""From `Filters` to conditions on the columns of a generation. Pure: no LanceDB, no SQL, no escaping.

The list is a conjunction over a whitelist of columns and operators; `lance_queries.py` turns each condition into a
LanceDB expression with literal values. The tenant comes from the connection's principal and is always the first
condition: there is no way to ask for a search without one, and nothing in `Filters` can take it away or widen it. The
counterpart for the truth is `actors/sql/filters.py`; the two agree on which member applies to which corpus.
"""

from typing import Literal

import msgspec

from actors.errors import InvalidParams
from actors.messages.base import Corpus, Filters
from actors.sql.filters import VALUES_MAX

Operator = Literal["eq", "any_of", "at_least", "below", "starts_with", "has"]
Column = Literal["tenant", "session_id", "actor", "kind", "tags", "ts", "path", "type", "scope"]
_ONLY_EVENTS = ("actors", "kinds")
_ONLY_UNITS = ("types", "scopes")
_ONLY_DOCUMENTS = ("path",)


class Condition(msgspec.Struct, frozen=True):
    """`column operator value`. Strings are compared byte by byte: no wildcards, no folding. NULL matches nothing.

    `any_of` takes a tuple, `at_least` (>=) and `below` (<) integers, `has` (the list contains it) and the others a
    string.
    """

    column: Column
    operator: Operator
    value: str | int | tuple[str, ...]


def conditions(filters: Filters, tenant: str, corpus: Corpus) -> list[Condition] | None:
    """Return what a row of the corpus must fulfil, or None when a given member rules the whole corpus out.

    Raises InvalidParams when the members name more than VALUES_MAX values.
    """
    if any(getattr(filters, member) for member in _ruling_out(corpus)):
        return None
    _check_count(filters)
    found = [Condition("tenant", "eq", tenant)]
    found += _any_of("session_id", filters.session_ids)
    found += _any_of("actor", filters.actors)
    found += _any_of("kind", filters.kinds)
    found += _any_of("type", filters.types)
    found += _any_of("scope", filters.scopes)
    found += [Condition("tags", "has", tag) for tag in dict.fromkeys(filters.tags)]
    if filters.since is not None:
        found.append(Condition("ts", "at_least", _int64(filters.since)))
    if filters.until is not None:
        found.append(Condition("ts", "below", _int64(filters.until)))
    if filters.path:
        found.append(Condition("path", "starts_with", filters.path))
    return found


def prefix_end(prefix: str) -> str | None:
    """Return the least string greater than every string with this prefix, None when there is none.

    Strings are ordered by their UTF-8 bytes, which is the order of their code points. So `prefix <= x < prefix_end`
    is the exact prefix test, without a pattern language and its wildcards.
    """
    while prefix:
        last = ord(prefix[-1])
        prefix = prefix[:-1]
        if last < 0x10FFFF:
            return prefix + chr(0xE000 if last == 0xD7FF else last + 1)  # there is no text with surrogates
    return None


def _ruling_out(corpus: Corpus) -> tuple[str, ...]:
    """Return the members of Filters that no row of the corpus can fulfil."""
    if corpus == "events":
        return (*_ONLY_UNITS, *_ONLY_DOCUMENTS)
    if corpus == "units":
        return (*_ONLY_EVENTS, *_ONLY_DOCUMENTS)
    return (*_ONLY_EVENTS, *_ONLY_UNITS, "session_ids")


def _int64(number: int) -> int:
    """Bring a number into the range of the column; beyond it the comparison would be done in floating point."""
    return max(-(2**63), min(number, 2**63 - 1))


def _check_count(filters: Filters) -> None:
    lists = (filters.session_ids, filters.actors, filters.kinds, filters.tags, filters.types, filters.scopes)
    count = sum(map(len, lists))
    if count > VALUES_MAX:
        raise InvalidParams(f"search refused: filters name {count} values, the limit is {VALUES_MAX}")


def _any_of(column: Column, values: tuple[str, ...]) -> list[Condition]:
    return [Condition(column, "any_of", tuple(dict.fromkeys(values)))] if values else []
