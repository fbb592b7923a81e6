"""The routes of searching and reading."""

import re

import msgspec
import trio

from actors.errors import BulkheadError, InvalidParams, NotFound
from actors.messages.base import CORPORA, Corpus, Filters, Message, Row
from actors.messages.core_writer import GetUnit
from actors.messages.searcher import ReadDocument, Search, SearchAnswer
from actors.messages.transcript_appender import GetEvent
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json
from supervisor.times import parse_ts

NOT_FOUND = "not_found"
CITATION = re.compile(r"^(?P<path>.+)#L(?P<from>\d+)(?:-L(?P<to>\d+))?$", re.DOTALL)


async def _memory_search(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.MemorySearch)
    longest = routes.config.searcher.query_chars_max
    if not given.query.strip():
        raise InvalidParams(
            "memory.search: query is empty", hint="give at least one word; session.history lists events"
        )
    if len(given.query) > longest:
        raise InvalidParams(
            f"memory.search: query has {len(given.query)} characters, limit is {longest} "
            "(config: searcher.query_chars_max)"
        )
    if given.limit > routes.config.protocol.search_limit_max:
        raise InvalidParams(
            f"memory.search: limit is {given.limit}, at most {routes.config.protocol.search_limit_max} "
            "(config: protocol.search_limit_max)"
        )
    message = Search(
        query=given.query,
        limit=given.limit,
        corpora=tuple(dict.fromkeys(given.corpora)) if given.corpora else CORPORA,
        filters=_filters(given.filters),
        mode=given.mode,
        min_score=given.min_score,
        explain=given.explain,
        tenant=scope.tenant,
    )
    answer = await routes.ask("searcher", message, SearchAnswer, scope)
    return msgspec.Raw(answer.body)


def _filters(given: wire.SearchFilters) -> Filters:
    return Filters(
        session_ids=tuple(given.session_ids),
        actors=tuple(given.actors),
        kinds=tuple(given.kinds),
        tags=tuple(given.tags),
        since=None if given.since is None else parse_ts(given.since, "filters.since"),
        until=None if given.until is None else parse_ts(given.until, "filters.until"),
        path=given.path,
        types=tuple(given.types),
        scopes=tuple(given.scopes),
    )


async def _memory_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.MemoryGet)
    if (given.id is None) == (given.path is None):
        raise InvalidParams("memory.get: give either id or path")
    if given.path is not None:
        return await _read_document(routes, given.path, given.from_line or 1, given.lines, scope)
    assert given.id is not None
    found = await event_or_unit(routes, given.id, scope)
    if found is not None:
        return {"corpus": found[0], "item": as_json(found[1])}
    match = CITATION.match(given.id)
    if match is None:
        raise NotFound(f"memory.get: no event or unit has the id {given.id!r}")
    first = int(match["from"])
    lines = int(match["to"] or first) - first + 1
    return await _read_document(routes, match["path"], given.from_line or first, given.lines or max(1, lines), scope)


async def event_or_unit(routes: Routes, item_id: str, scope: Scope) -> tuple[Corpus, Row] | None:
    """Ask both owners at once; an owner that is away is an error only if the other does not have the item."""
    found: list[tuple[Corpus, Row]] = []
    failures: list[BulkheadError] = []

    async def ask(actor: str, corpus: Corpus, message: Message) -> None:
        try:
            row = await routes.mailboxes[actor].ask(message, Row, deadline_ns=scope.deadline_ns, client=scope.client)
            found.append((corpus, row))
        except (NotFound, InvalidParams):
            pass
        except BulkheadError as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            ask, "transcript_appender", "events", GetEvent(event_id=item_id, tenant=scope.tenant, shown=True)
        )
        nursery.start_soon(ask, "core_writer", "units", GetUnit(unit_id=item_id, tenant=scope.tenant, shown=True))
    if not found and failures:
        raise failures[0]
    return found[0] if found else None


async def _read_document(routes: Routes, path: str, from_line: int, lines: int | None, scope: Scope) -> object:
    message = ReadDocument(path=path, from_line=from_line, lines=lines, tenant=scope.tenant)
    row = await routes.ask("searcher", message, Row, scope)
    return {"corpus": "documents", "item": as_json(row)}


METHODS: dict[str, Method] = {
    "memory.search": Method(wire.MemorySearch, _memory_search),
    "memory.get": Method(wire.MemoryGet, _memory_get),
}
