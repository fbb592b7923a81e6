"""Every native method: its parameters, and how it becomes a message and a result. The table is `METHODS`.

A route validates, stamps the deadline, asks one actor, and shapes the answer. It never touches storage. Rows that
a worker made as JSON are passed on undecoded. Tenant and principal come from the connection, never from parameters.
"""

import ctypes
import os
import re
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
import trio

from actors.errors import ActorUnavailable, BulkheadError, InvalidParams, NotFound
from actors.mailbox import Mailbox
from actors.messages import (
    CORPORA,
    AddSource,
    Appended,
    AppendEvents,
    AppendResult,
    CacheStats,
    CancelBuild,
    ClearCache,
    CloseSession,
    Corpus,
    CountItems,
    Done,
    EventDraft,
    Filters,
    Folder,
    GetEvent,
    GetItemState,
    GetSession,
    GetUnit,
    HoldBuild,
    ItemCounts,
    ItemState,
    ListSessions,
    ListSources,
    ListUnits,
    Message,
    OpenSession,
    PutUnit,
    ReadDocument,
    Rebuild,
    RebuildQueued,
    RemoveSource,
    ResolveFolder,
    RestoreTruth,
    RollbackIndex,
    Row,
    Rows,
    Search,
    SearchAnswer,
    SessionHistory,
    SourceRoot,
    SourceRoots,
    Statistics,
    TrimCache,
    TruthAdvanced,
    UnitHistory,
    VerifyIndex,
)
from actors.notices import SourceNotice
from actors.quarantine import Quarantine
from actors.sql.rows import rfc3339
from actors.sql.ulid import RANDOM_BYTES, UlidMaker
from supervisor import params as wire
from supervisor.config import Config
from supervisor.disk import DiskWatch, Growing
from supervisor.following import Notes, follow, outcome
from supervisor.health import Health
from supervisor.rpc import decode_params, free_form, suggest
from supervisor.times import parse_ts

Answer = TypeVar("Answer", bound=msgspec.Struct)

HINT_EVERY_S = 0.2
LOOK_EVERY_S = 0.1
STALL_S_MAX = 60.0
COUNT_NS = 2_000_000_000  # how long index.status waits for the items to be counted
NOT_FOUND = "not_found"
REBUILD_NS = 600_000_000_000  # how long an order to rebuild may wait for a builder that is away
# The actors whose truth can be restored by command: their mailboxes have a place for the order.
RESTORABLE = ("core_writer", "transcript_appender")
CITATION = re.compile(r"^(?P<path>.+)#L(?P<from>\d+)(?:-L(?P<to>\d+))?$", re.DOTALL)


class Scope:
    """One request on its way: its deadline, who asks, and its turn among the writes of its connection."""

    def __init__(
        self,
        *,
        deadline_ns: int,
        tenant: str = "default",
        client: int = 0,
        turn: trio.Event | None = None,
        posted: trio.Event | None = None,
        notify: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        """`notify` offers the client a line that it is not owed; it says whether the client was given it."""
        self.deadline_ns = deadline_ns
        self.notify = notify
        self.tenant = tenant
        self.client = client
        self._turn = turn
        self._posted = posted

    async def wait_turn(self) -> None:
        """Wait until the writes that this connection sent earlier have their places in the queue."""
        if self._turn is not None:
            await self._turn.wait()

    def mark_posted(self) -> None:
        """Let the next write of the connection go on."""
        if self._posted is not None:
            self._posted.set()


Handler = Callable[["Routes", wire.Params, Scope], Awaitable[object]]


class Method(msgspec.Struct, frozen=True):
    """A method: the type of its parameters, its handler, and whether writes of a connection keep their order.

    `grows` names the store that its effect makes larger: on a full disk it is refused before it reaches the actor.
    """

    params: type[wire.Params]
    handler: Handler
    ordered: bool = False
    chaos_only: bool = False
    grows: Growing | None = None


class Routes:
    """Dispatches requests to the actors."""

    def __init__(
        self,
        *,
        mailboxes: Mapping[str, Mailbox],
        health: Health,
        quarantine: Quarantine,
        disk: DiskWatch,
        config: Config,
        drain: Callable[[], None],
        epoch: str,
    ) -> None:
        self.mailboxes = mailboxes
        self.health = health
        self.quarantine = quarantine
        self.disk = disk
        self.config = config
        self.drain = drain
        self.epoch = epoch
        self._hinted_at = 0.0
        self._ulids = UlidMaker()
        self.methods = {
            name: method for name, method in METHODS.items() if config.chaos.enabled or not method.chaos_only
        }

    def is_ordered(self, name: str) -> bool:
        """Say whether requests of this method keep their order within a connection."""
        method = self.methods.get(name)
        return method is not None and method.ordered

    async def call(self, name: str, raw: msgspec.Raw, scope: Scope) -> object:
        """Serve one request and return its result, ready to be encoded; raise BulkheadError."""
        method = self.methods.get(name)
        if method is None:
            raise UnknownMethod(f"unknown method {name!r}{suggest(name, self.methods)}")
        parameters = decode_params(raw, method.params, name)
        self._set_deadline(name, parameters, scope)
        if method.grows is not None:
            self.disk.check(name, method.grows)
        try:
            return await method.handler(self, parameters, scope)
        except BulkheadError as error:
            self.disk.report(error)
            raise

    def _set_deadline(self, name: str, parameters: wire.Params, scope: Scope) -> None:
        limits, wanted_ms = self.config.protocol, parameters.deadline_ms
        waits = isinstance(parameters, wire.IndexRebuild) and parameters.wait
        longest = limits.wait_ms_max if waits else limits.deadline_ms_max
        if wanted_ms is None and waits:
            wanted_ms = longest
        if wanted_ms is None:
            return
        if wanted_ms > longest:
            key = "wait_ms_max" if waits else "deadline_ms_max"
            raise InvalidParams(f"{name}: deadline_ms is {wanted_ms}, limit is {longest} (config: protocol.{key})")
        scope.deadline_ns = time.monotonic_ns() + wanted_ms * 1_000_000

    async def ask(self, actor: str, message: Message, answer: type[Answer], scope: Scope) -> Answer:
        """Ask an actor in the order of the connection."""
        await scope.wait_turn()
        return await self.mailboxes[actor].ask(
            message, answer, deadline_ns=scope.deadline_ns, posted=scope.mark_posted, client=scope.client
        )

    def named(self, event: EventDraft) -> EventDraft:
        """Return an event that is recognised when it is appended twice: after a death the daemon repeats it by itself.

        Where equal content within a window is one event, only an event without an id is compared, so it gets none.
        """
        if event.event_id or event.request_id or self.config.transcript_appender.duplicate_window_s:
            return event
        made = self._ulids.make(time.time_ns() // 1000, os.urandom(RANDOM_BYTES))
        return msgspec.structs.replace(event, event_id=made)

    def hint(self) -> None:
        """Tell the builder that the truth moved, at most a few times a second; a lost hint costs a moment only."""
        now = time.monotonic()
        if now - self._hinted_at > HINT_EVERY_S:
            self._hinted_at = now
            self.mailboxes["generation_builder"].tell(TruthAdvanced(), deadline_ns=time.monotonic_ns() + 60_000_000_000)

    def page_rows(self, limit: int, method: str) -> int:
        """Return a page size within the limit."""
        most = self.config.protocol.page_rows_max
        if limit > most:
            raise InvalidParams(f"{method}: limit is {limit}, at most {most} (config: protocol.page_rows_max)")
        return limit

    async def wait_searchable(self, scope: Scope, results: Sequence[Appended]) -> bool:
        """Wait until a published view covers these events and is open; False when the deadline came first.

        Raises ActorUnavailable when nothing is made searchable at present: the events are durable all the same.
        """
        self.hint()
        event_seq = max(each.seq for each in results)
        remaining = (scope.deadline_ns - time.monotonic_ns()) / 1e9
        with trio.move_on_after(max(0.0, remaining)):
            while not self._searchable(event_seq):
                if (reason := self.health.not_building()) is not None:
                    raise _durable_only(results, reason)
                with trio.move_on_after(LOOK_EVERY_S):
                    await self.health.searcher.wait_changed()
            return True
        return False

    def _searchable(self, event_seq: int) -> bool:
        serving, searcher = self.health.builder.notice.serving, self.health.searcher.notice
        return (
            serving is not None
            and serving.covers.event_seq >= event_seq
            and searcher.view == serving.view
            and searcher.loaded > 0
        )


def _durable_only(results: Sequence[Appended], reason: str) -> ActorUnavailable:
    first, more = results[0], len(results) - 1
    named = f"event {first.event_id!r} (seq {first.seq})" + (f" and {more} more are" if more else " is")
    return ActorUnavailable(
        f"wait_for given up: {named} durable and found by words, but not made searchable by meaning: {reason}",
        outcome="committed",
        hint="do not append again; index.item says when it is searchable",
    )


class UnknownMethod(InvalidParams):
    """There is no such method."""

    code = -32601


# ---------------------------------------------------------------- system


async def _hello(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.Hello)
    if given.principal not in (None, "owner"):
        raise InvalidParams(
            f"hello: unknown principal {given.principal!r}",
            hint="the socket is private to its owner; leave principal out",
        )
    return {
        "server": "bulkhead",
        "version": routes.health.version,
        "data_dir_id": routes.health.data_dir_id,
        "epoch": routes.epoch,
    }


async def _status(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return routes.health.status()


async def _health(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return routes.health.health()


async def _metrics(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return routes.health.metrics()


async def _drain(routes: Routes, given: wire.Params, scope: Scope) -> object:
    routes.drain()
    return {"draining": True}


# ---------------------------------------------------------------- poison


async def _poison_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return {
        "messages": [
            {
                "key": each.key,
                "actor": each.actor,
                "kind": each.kind,
                "bytes": each.bytes,
                "causes": each.causes,
                "at": rfc3339(each.at),
            }
            for each in routes.quarantine.condemned()
        ]
    }


async def _poison_clear(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.PoisonClear)
    cleared = routes.quarantine.clear(given.key)
    if given.key is not None and not cleared:
        raise NotFound(f"poison.clear: no message with key {given.key!r} is condemned", hint="poison.list shows them")
    return {"cleared": cleared}


# ---------------------------------------------------------------- sessions and events


async def _session_open(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionOpen)
    message = OpenSession(
        session_id=given.session_id or f"s-{uuid.uuid4().hex}",
        title=given.title,
        agent=given.agent,
        meta=free_form(
            given.meta, "meta", bytes_max=routes.config.core_writer.meta_bytes_max, key="core_writer.meta_bytes_max"
        ),
        tenant=scope.tenant,
        request_id=given.request_id,
    )
    return _json(await routes.ask("core_writer", message, Row, scope))


async def _session_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionRef)
    message = GetSession(session_id=given.session_id, tenant=scope.tenant)
    return _json(await routes.ask("core_writer", message, Row, scope))


async def _session_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionList)
    if given.status not in (None, "open", "closed"):
        raise InvalidParams(f"session.list: status is {given.status!r}, must be 'open' or 'closed'")
    message = ListSessions(
        limit=routes.page_rows(given.limit, "session.list"),
        before=given.before,
        status=given.status,  # type: ignore[arg-type]  # checked above
        tenant=scope.tenant,
    )
    return _page("sessions", await routes.ask("core_writer", message, Rows, scope))


async def _session_close(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionRef)
    message = CloseSession(session_id=given.session_id, tenant=scope.tenant, request_id=given.request_id)
    return _json(await routes.ask("core_writer", message, Row, scope))


async def _session_history(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SessionHistory)
    if given.after_seq is not None and given.before_seq is not None:
        raise InvalidParams("session.history: give after_seq or before_seq, not both")
    message = SessionHistory(
        session_id=given.session_id,
        limit=routes.page_rows(given.limit, "session.history"),
        after_seq=given.after_seq,
        before_seq=given.before_seq,
        tenant=scope.tenant,
    )
    return _page("events", await routes.ask("transcript_appender", message, Rows, scope))


def _draft(given: wire.EventMembers, request_id: str | None, meta_bytes_max: int) -> EventDraft:
    return EventDraft(
        session_id=given.session_id,
        actor=given.actor,
        content=given.content,
        kind=given.kind,
        event_id=given.event_id,
        ts=None if given.ts is None else parse_ts(given.ts, "ts"),
        channel=given.channel,
        project=given.project,
        tags=tuple(given.tags),
        meta=free_form(given.meta, "meta", bytes_max=meta_bytes_max, key="transcript_appender.meta_bytes_max"),
        trace_id=given.trace_id,
        request_id=request_id,
    )


def _check_wait_for(wait_for: str | None, method: str) -> bool:
    if wait_for not in (None, "searchable"):
        raise InvalidParams(f"{method}: wait_for is {wait_for!r}, must be 'searchable'")
    return wait_for is not None


async def _append(routes: Routes, events: tuple[EventDraft, ...], wait: bool, scope: Scope) -> list[dict[str, object]]:
    named = tuple(routes.named(event) for event in events)
    ours = {event.event_id for event, given in zip(named, events, strict=True) if event is not given}
    message = AppendEvents(events=named, tenant=scope.tenant)
    answer = await routes.ask("transcript_appender", message, AppendResult, scope)
    routes.hint()
    results: list[dict[str, object]] = [
        {
            "event_id": each.event_id,
            "seq": each.seq,
            "durability": "fsync",
            # Under an id of ours it can only have met itself, after a death that hid the first answer.
            "deduplicated": each.deduplicated and each.event_id not in ours,
        }
        for each in answer.results
    ]
    if wait:
        reached = await routes.wait_searchable(scope, answer.results)
        for result in results:
            result["searchable"] = reached
    return results


async def _event_append(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.EventAppend)
    wait = _check_wait_for(given.wait_for, "event.append")
    results = await _append(
        routes, (_draft(given, given.request_id, routes.config.transcript_appender.meta_bytes_max),), wait, scope
    )
    return results[0]


async def _event_append_many(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.EventAppendMany)
    wait = _check_wait_for(given.wait_for, "event.append_many")
    most = routes.config.transcript_appender.events_per_append_max
    if len(given.events) > most:
        raise InvalidParams(
            f"event.append_many: {len(given.events)} events, limit is {most} "
            "(config: transcript_appender.events_per_append_max)"
        )
    meta_bytes_max = routes.config.transcript_appender.meta_bytes_max
    events = tuple(_draft(each, each.request_id, meta_bytes_max) for each in given.events)
    return {"results": await _append(routes, events, wait, scope)}


async def _event_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.EventGet)
    message = GetEvent(event_id=given.event_id, tenant=scope.tenant)
    return _json(await routes.ask("transcript_appender", message, Row, scope))


# ---------------------------------------------------------------- units


def request_id_of_ours() -> str:
    """Return a request_id for a client that gave none: after a death the daemon repeats its write, once."""
    return f"daemon-{uuid.uuid4().hex}"


async def _unit_put(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitPut)
    if given.status not in ("active", "deprecated"):
        raise InvalidParams(f"unit.put: status is {given.status!r}, must be 'active' or 'deprecated'")
    message = PutUnit(
        unit_id=given.unit_id,
        type=given.type,
        scope=given.scope,
        text=given.text,
        facts=free_form(
            given.facts, "facts", bytes_max=routes.config.core_writer.facts_bytes_max, key="core_writer.facts_bytes_max"
        ),
        event_refs=tuple(given.event_refs),
        confidence=given.confidence,
        parent_unit_id=given.parent_unit_id,
        status=given.status,  # type: ignore[arg-type]  # checked above
        tags=tuple(given.tags),
        session_id=given.session_id,
        expected_version=given.expected_version,
        tenant=scope.tenant,
        request_id=given.request_id or request_id_of_ours(),
    )
    answer = await routes.ask("core_writer", message, Row, scope)
    routes.hint()
    return _json(answer)


async def _unit_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitGet)
    message = GetUnit(unit_id=given.unit_id, version=given.version, tenant=scope.tenant)
    return _json(await routes.ask("core_writer", message, Row, scope))


async def _unit_history(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitHistory)
    message = UnitHistory(
        unit_id=given.unit_id,
        limit=routes.page_rows(given.limit, "unit.history"),
        before_version=given.before_version,
        tenant=scope.tenant,
    )
    return _page("versions", await routes.ask("core_writer", message, Rows, scope))


async def _unit_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.UnitList)
    message = ListUnits(
        limit=routes.page_rows(given.limit, "unit.list"),
        before_core_seq=given.before_core_seq,
        type=given.type,
        scope=given.scope,
        status=given.status,
        tenant=scope.tenant,
    )
    return _page("units", await routes.ask("core_writer", message, Rows, scope))


# ---------------------------------------------------------------- search


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
    found = await _event_or_unit(routes, given.id, scope)
    if found is not None:
        return {"corpus": found[0], "item": _json(found[1])}
    match = CITATION.match(given.id)
    if match is None:
        raise NotFound(f"memory.get: no event or unit has the id {given.id!r}")
    first = int(match["from"])
    lines = int(match["to"] or first) - first + 1
    return await _read_document(routes, match["path"], given.from_line or first, given.lines or max(1, lines), scope)


async def _event_or_unit(routes: Routes, item_id: str, scope: Scope) -> tuple[Corpus, Row] | None:
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
        nursery.start_soon(ask, "transcript_appender", "events", GetEvent(event_id=item_id, tenant=scope.tenant))
        nursery.start_soon(ask, "core_writer", "units", GetUnit(unit_id=item_id, tenant=scope.tenant))
    if not found and failures:
        raise failures[0]
    return found[0] if found else None


async def _read_document(routes: Routes, path: str, from_line: int, lines: int | None, scope: Scope) -> object:
    message = ReadDocument(path=path, from_line=from_line, lines=lines, tenant=scope.tenant)
    row = await routes.ask("searcher", message, Row, scope)
    return {"corpus": "documents", "item": _json(row)}


# ---------------------------------------------------------------- sources and index


async def _source_add(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SourceAdd)
    folder = await routes.mailboxes["searcher"].ask(
        ResolveFolder(path=given.path), Folder, deadline_ns=scope.deadline_ns, client=scope.client
    )
    message = AddSource(
        path=folder.path, name=given.name, tenant=scope.tenant, request_id=given.request_id or request_id_of_ours()
    )
    answer = await routes.ask("core_writer", message, Row, scope)
    routes.hint()
    return _json(answer)


async def _source_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    answer = await routes.ask("core_writer", ListSources(tenant=scope.tenant), SourceRoots, scope)
    notices = {notice.source_id: notice for notice in routes.health.builder.notice.sources}
    return {"sources": [_source_row(each, notices.get(each.source_id)) for each in answer.sources]}


def _source_row(source: SourceRoot, notice: SourceNotice | None) -> dict[str, object]:
    """Return a source and what the builder knows of it; the builder may not have seen it yet."""
    notice = notice or SourceNotice(source_id=source.source_id, path=source.path, reason="not looked at yet")
    return {
        "source_id": source.source_id,
        "path": source.path,
        "name": source.name,
        "added_at": rfc3339(source.added_at),
        "watching": notice.watching,
        "reason": notice.reason,
        "files": notice.files,
        "held": notice.held,
        "unfinished": notice.unfinished,
    }


async def _source_remove(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.SourceRemove)
    message = RemoveSource(
        source_id=given.source_id, tenant=scope.tenant, request_id=given.request_id or request_id_of_ours()
    )
    answer = await routes.ask("core_writer", message, Row, scope)
    routes.hint()
    return _json(answer)


async def _index_status(routes: Routes, given: wire.Params, scope: Scope) -> object:
    """Return the index, and what became of the items: counted now, or as last counted when nobody can."""
    counts, stale = routes.health.builder.notice.items, None
    deadline_ns = min(scope.deadline_ns, time.monotonic_ns() + COUNT_NS)
    try:
        counts = await routes.mailboxes["generation_builder"].ask(
            CountItems(), ItemCounts, deadline_ns=deadline_ns, client=scope.client
        )
    except BulkheadError as error:
        stale = error.message
        counts = routes.health.builder.notice.items or counts
    return {**routes.health.index_status(), "items": _items(counts, stale)}


def _items(counts: ItemCounts | None, stale: str | None) -> dict[str, object] | None:
    if counts is None:
        return None
    return {**counts.corpora, "at": rfc3339(counts.at), "stale": stale}


async def _index_item(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.IndexItem)
    found = await _event_or_unit(routes, given.id, scope)
    if found is None:
        match = CITATION.match(given.id)
        message = GetItemState(
            corpus="documents", key=given.id if match is None else match["path"], tenant=scope.tenant
        )
    else:
        corpus, row = found
        known = msgspec.json.decode(row.row, type=_Accepted)
        if known.status not in (None, "active"):
            raise NotFound(f"index.item: unit {given.id!r} is {known.status}, so it is not to be found")
        message = GetItemState(corpus=corpus, key=given.id, seq=known.seq or known.core_seq, tenant=scope.tenant)
    state = await routes.mailboxes["generation_builder"].ask(
        message, ItemState, deadline_ns=scope.deadline_ns, client=scope.client
    )
    if state.reason == NOT_FOUND:
        raise NotFound(f"index.item: no event, unit or note has the id {given.id!r}")
    return {
        "id": given.id,
        "corpus": message.corpus,
        "words": state.words,
        "meaning": state.meaning,
        "reason": state.reason,
    }


class _Accepted(msgspec.Struct):
    """The members of an event or unit that its state depends on."""

    seq: int = 0
    core_seq: int = 0
    status: str | None = None


async def _index_rebuild(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.IndexRebuild)
    if given.progress_token is not None and not given.wait:
        raise InvalidParams("index.rebuild: progress_token without wait: who does not wait is told nothing")
    queued = await routes.ask("generation_builder", Rebuild(reason=given.reason), RebuildQueued, scope)
    members: dict[str, object] = {"build": queued.build, "already_running": queued.already_running}
    if given.wait:
        board, token = routes.health.builder, given.progress_token
        notes = None if token is None else Notes(token, queued.build, scope.notify)
        end = await follow(board, queued.build, deadline_ns=scope.deadline_ns, notes=notes)
        members |= outcome(end, board.notice, queued.build)
    return members


async def _index_cancel(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.IndexCancel)
    return _json(await routes.ask("generation_builder", CancelBuild(build=given.build), Row, scope))


async def _index_rollback(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.IndexRollback)
    return _json(await routes.ask("generation_builder", RollbackIndex(generation=given.generation), Row, scope))


async def _index_verify(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return _json(await routes.ask("generation_builder", VerifyIndex(), Row, scope))


async def _cache_stats(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return (await routes.ask("cache_manager", CacheStats(), Statistics, scope)).values


async def _cache_trim(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.CacheTrim)
    return (await routes.ask("cache_manager", TrimCache(bytes_max=given.bytes_max), Statistics, scope)).values


async def _cache_clear(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return (await routes.ask("cache_manager", ClearCache(), Statistics, scope)).values


async def _truth_restore(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.TruthRestore)
    if given.actor not in RESTORABLE:
        raise InvalidParams(
            f"truth.restore: {given.actor!r} is no actor whose truth can be restored{suggest(given.actor, RESTORABLE)}",
            hint=f"known are {', '.join(RESTORABLE)}",
        )
    if (given.source is not None) == given.salvage:
        raise InvalidParams("truth.restore: give either from or salvage")
    # Between these two nothing may be waited for: the released actor looks for the order when it starts.
    routes.health.release(given.actor)
    answer = await routes.mailboxes[given.actor].ask(
        RestoreTruth(path=given.source), Row, deadline_ns=scope.deadline_ns, client=scope.client
    )
    routes.mailboxes["generation_builder"].tell(
        Rebuild(reason=f"{given.actor} was restored"), deadline_ns=time.monotonic_ns() + REBUILD_NS
    )
    return _json(answer)


async def _debug_hold_build(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugHold)
    await routes.ask("generation_builder", HoldBuild(stage=given.stage), Done, scope)
    return {"stage": given.stage}


async def _debug_fail_actor(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugFailActor)
    if given.actor not in routes.mailboxes:
        raise InvalidParams(
            f"debug.fail_actor: no actor is named {given.actor!r}{suggest(given.actor, routes.mailboxes)}"
        )
    return {"hurt": routes.health.hurt(given.actor, given.how)}


async def _debug_stall_loop(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugStallLoop)
    if not 0 < given.seconds <= STALL_S_MAX:
        raise InvalidParams(f"debug.stall_loop: seconds is {given.seconds}, must be above 0 and at most {STALL_S_MAX}")
    stall(given.seconds, hold_gil=given.hold_gil)
    return {"stalled_s": given.seconds}


def stall(seconds: float, *, hold_gil: bool) -> None:
    """Block the calling thread; with `hold_gil` every other thread of the process as well, as careless C code does."""
    if hold_gil:
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))
    else:
        time.sleep(seconds)


async def _debug_modules(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return {"modules": sorted(sys.modules)}


async def _debug_write_stdout(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.DebugWriteStdout)
    os.write(1, given.text.encode("utf-8", "backslashreplace"))
    return {"written": len(given.text)}


def _json(row: Row) -> msgspec.Raw:
    return msgspec.Raw(row.row)


def _page(name: str, page: Rows) -> dict[str, object]:
    answer: dict[str, object] = {name: msgspec.Raw(page.rows), "more": page.more}
    if page.degraded:
        answer["degraded"] = [{"code": code, "detail": detail} for code, detail in page.degraded]
    return answer


METHODS: dict[str, Method] = {
    "hello": Method(wire.Hello, _hello),
    "session.open": Method(wire.SessionOpen, _session_open, ordered=True, grows="core_writer"),
    "session.get": Method(wire.SessionRef, _session_get),
    "session.list": Method(wire.SessionList, _session_list),
    "session.close": Method(wire.SessionRef, _session_close, ordered=True, grows="core_writer"),
    "session.history": Method(wire.SessionHistory, _session_history),
    "event.append": Method(wire.EventAppend, _event_append, ordered=True, grows="transcript_appender"),
    "event.append_many": Method(wire.EventAppendMany, _event_append_many, ordered=True, grows="transcript_appender"),
    "event.get": Method(wire.EventGet, _event_get),
    "unit.put": Method(wire.UnitPut, _unit_put, ordered=True, grows="core_writer"),
    "unit.get": Method(wire.UnitGet, _unit_get),
    "unit.history": Method(wire.UnitHistory, _unit_history),
    "unit.list": Method(wire.UnitList, _unit_list),
    "memory.search": Method(wire.MemorySearch, _memory_search),
    "memory.get": Method(wire.MemoryGet, _memory_get),
    "source.add": Method(wire.SourceAdd, _source_add, ordered=True, grows="core_writer"),
    "source.list": Method(wire.NoParams, _source_list),
    "source.remove": Method(wire.SourceRemove, _source_remove, ordered=True),
    "index.status": Method(wire.NoParams, _index_status),
    "index.item": Method(wire.IndexItem, _index_item),
    "index.rebuild": Method(wire.IndexRebuild, _index_rebuild),
    "index.cancel": Method(wire.IndexCancel, _index_cancel),
    "index.rollback": Method(wire.IndexRollback, _index_rollback),
    "index.verify": Method(wire.NoParams, _index_verify),
    "cache.stats": Method(wire.NoParams, _cache_stats),
    "cache.trim": Method(wire.CacheTrim, _cache_trim),
    "cache.clear": Method(wire.NoParams, _cache_clear),
    "poison.list": Method(wire.NoParams, _poison_list),
    "poison.clear": Method(wire.PoisonClear, _poison_clear),
    "truth.restore": Method(wire.TruthRestore, _truth_restore),
    "system.status": Method(wire.NoParams, _status),
    "system.health": Method(wire.NoParams, _health),
    "system.metrics": Method(wire.NoParams, _metrics),
    "system.drain": Method(wire.NoParams, _drain),
    "debug.hold_build": Method(wire.DebugHold, _debug_hold_build, chaos_only=True),
    "debug.fail_actor": Method(wire.DebugFailActor, _debug_fail_actor, chaos_only=True),
    "debug.stall_loop": Method(wire.DebugStallLoop, _debug_stall_loop, chaos_only=True),
    "debug.modules": Method(wire.NoParams, _debug_modules, chaos_only=True),
    "debug.write_stdout": Method(wire.DebugWriteStdout, _debug_write_stdout, chaos_only=True),
}
