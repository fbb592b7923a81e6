"""The routes of sources."""

from actors.messages.base import Row
from actors.messages.core_writer import AddSource, ListSources, RemoveSource, SourceRoot, SourceRoots
from actors.messages.searcher import Folder, ResolveFolder
from actors.notices import SourceNotice
from actors.sql.rows import rfc3339
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, request_id_of_ours


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
    return as_json(answer)


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
    return as_json(answer)


METHODS: dict[str, Method] = {
    "source.add": Method(wire.SourceAdd, _source_add, ordered=True, grows="core_writer"),
    "source.list": Method(wire.NoParams, _source_list),
    "source.remove": Method(wire.SourceRemove, _source_remove, ordered=True),
}
