"""The routes of events."""

from actors.errors import InvalidParams
from actors.messages.base import Row
from actors.messages.transcript_appender import AppendEvents, AppendResult, EventDraft, GetEvent
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json
from supervisor.rpc import free_form
from supervisor.times import parse_ts


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
            **({"redacted": each.redacted} if each.redacted else {}),
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
    return as_json(await routes.ask("transcript_appender", message, Row, scope))


METHODS: dict[str, Method] = {
    "event.append": Method(wire.EventAppend, _event_append, ordered=True, grows="transcript_appender"),
    "event.append_many": Method(wire.EventAppendMany, _event_append_many, ordered=True, grows="transcript_appender"),
    "event.get": Method(wire.EventGet, _event_get),
}
