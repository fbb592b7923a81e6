"""The routes of the index."""

import time

import msgspec

from actors.errors import BulkheadError, InvalidParams, NotFound
from actors.messages.base import Row
from actors.messages.core_writer import ListSources, SourceRoots
from actors.messages.generation_builder import (
    CancelBuild,
    CountItems,
    GetItemState,
    ItemCounts,
    ItemState,
    Rebuild,
    RebuildQueued,
    RollbackIndex,
    VerifyIndex,
)
from actors.sql.rows import rfc3339
from supervisor import params as wire
from supervisor.following import Notes, follow, outcome
from supervisor.narrowing import narrow_index_status
from supervisor.routes.routing import Method, Routes, Scope, as_json
from supervisor.routes.search import CITATION, NOT_FOUND, event_or_unit

COUNT_NS = 2_000_000_000  # how long index.status waits for the items to be counted
REBUILD_NS = 600_000_000_000  # how long an order to rebuild may wait for a builder that is away


async def _index_status(routes: Routes, given: wire.Params, scope: Scope) -> object:
    """Return the index, and what became of the items: counted now, or as last counted when nobody can."""
    if not routes.sees_all(scope):
        return await _index_status_of(routes, scope)
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


async def _index_status_of(routes: Routes, scope: Scope) -> object:
    """Return what one of several tenants is told: how the index is, and what became of its own notes."""
    known = await routes.ask("core_writer", ListSources(tenant=scope.tenant), SourceRoots, scope)
    return narrow_index_status(
        routes.health.index_status(),
        source_ids={each.source_id for each in known.sources},
        roots=[each.path for each in known.sources],
    )


def _items(counts: ItemCounts | None, stale: str | None) -> dict[str, object] | None:
    if counts is None:
        return None
    return {**counts.corpora, "at": rfc3339(counts.at), "stale": stale}


async def _index_item(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.IndexItem)
    found = await event_or_unit(routes, given.id, scope)
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
    return as_json(await routes.ask("generation_builder", CancelBuild(build=given.build), Row, scope))


async def _index_rollback(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.IndexRollback)
    return as_json(await routes.ask("generation_builder", RollbackIndex(generation=given.generation), Row, scope))


async def _index_verify(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return as_json(await routes.ask("generation_builder", VerifyIndex(), Row, scope))


METHODS: dict[str, Method] = {
    "index.status": Method(wire.NoParams, _index_status),
    "index.item": Method(wire.IndexItem, _index_item),
    "index.rebuild": Method(wire.IndexRebuild, _index_rebuild),
    "index.cancel": Method(wire.IndexCancel, _index_cancel),
    "index.rollback": Method(wire.IndexRollback, _index_rollback),
    "index.verify": Method(wire.NoParams, _index_verify),
}
