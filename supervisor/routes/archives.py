"""The routes of archives: what leaves the transcript for a file of its own, and finding it again."""

import time

from actors.errors import InvalidParams, NotFound
from actors.messages.archives import (
    ArchiveEvents,
    ArchiveFile,
    ArchiveQueued,
    FindArchived,
    ListSegments,
    SegmentInfo,
    SegmentList,
    VerifyArchive,
)
from actors.messages.base import Done, Rows
from actors.sql.rows import rfc3339
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_page
from supervisor.times import parse_ts

DAY_US = 86_400_000_000


async def _archive_create(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ArchiveCreate)
    if (given.before is None) == (given.older_than_days is None):
        raise InvalidParams("archive.create: give either before or older_than_days")
    if given.before is not None:
        before = parse_ts(given.before, "before")
    else:
        before = time.time_ns() // 1000 - (given.older_than_days or 0) * DAY_US
    queued = await routes.ask("generation_builder", ArchiveEvents(before=before), ArchiveQueued, scope)
    return {"segments": queued.segments, "running": queued.running}


async def _archive_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    segments = (await routes.ask("transcript_appender", ListSegments(), SegmentList, scope)).segments
    return {
        "archives": [_archive(each, each.archive) for each in segments if each.archive is not None],
        "segments": [_segment(each) for each in segments if each.archive is None],
        "archiving": routes.health.builder.notice.archiving,
    }


async def _archive_search(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ArchiveSearch)
    message = FindArchived(
        limit=routes.page_rows(given.limit, "archive.search"),
        after_seq=given.after_seq,
        session_id=given.session_id,
        event_id=given.event_id,
        kind=given.kind,
        actor=given.actor,
        since=None if given.since is None else parse_ts(given.since, "since"),
        until=None if given.until is None else parse_ts(given.until, "until"),
        tenant=scope.tenant,
    )
    return as_page("events", await routes.ask("transcript_appender", message, Rows, scope))


async def _archive_verify(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ArchiveVerify)
    segments = (await routes.ask("transcript_appender", ListSegments(), SegmentList, scope)).segments
    archives = [each.archive for each in segments if each.archive is not None]
    wanted = [each for each in archives if given.name in (None, each.name)]
    if given.name is not None and not wanted:
        raise NotFound(f"archive.verify: there is no archive {given.name!r}", hint="archive.list has the names")
    for archive in wanted:
        await routes.ask("generation_builder", VerifyArchive(archive=archive), Done, scope)
    return {"verified": [each.name for each in wanted], "events": sum(each.rows for each in wanted)}


def _archive(segment: SegmentInfo, archive: ArchiveFile) -> dict[str, object]:
    return {
        "name": archive.name,
        "segment": segment.number,
        "events": archive.rows,
        "first_seq": archive.first_seq,
        "last_seq": archive.last_seq,
        "first_ts": rfc3339(archive.first_ts),
        "last_ts": rfc3339(archive.last_ts),
        "bytes": archive.bytes,
        "sha256": archive.sha256,
        "archived_at": rfc3339(segment.at),
    }


def _segment(segment: SegmentInfo) -> dict[str, object]:
    return {
        "segment": segment.number,
        "state": segment.state,
        "first_seq": segment.first_seq,
        "last_seq": segment.last_seq,
        "bytes": segment.bytes,
        "since": rfc3339(segment.at) if segment.at else None,
    }


METHODS: dict[str, Method] = {
    "archive.create": Method(wire.ArchiveCreate, _archive_create),
    "archive.list": Method(wire.NoParams, _archive_list),
    "archive.search": Method(wire.ArchiveSearch, _archive_search),
    "archive.verify": Method(wire.ArchiveVerify, _archive_verify),
}
