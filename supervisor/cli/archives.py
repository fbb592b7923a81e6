"""archive: move old parts of the transcript into Parquet files, list and verify them, find what went there."""

import argparse
import time

from supervisor.cli.answers import OK, ask, member, members, note, number, say, say_json, table, when
from supervisor.cli.arguments import Verbs, moment, positive, refuse
from supervisor.client import Client

PROGRAM = "bulkhead archive"
VERIFY_S = 120.0  # the longest deadline that a daemon takes (config: protocol.deadline_ms_max)
POLL_S = 0.2


def register(verbs: Verbs) -> None:
    """Add the verb of this file."""
    archive = verbs.add("archive", run_archive, "move old events into Parquet files; list, verify and search those")
    archive.add_argument(
        "action", nargs="?", choices=("list", "create", "verify", "search"), default="list", help="what to do (list)"
    )
    archive.add_argument("--before", type=moment, metavar="TIME", help="with create: segments sealed before: 90d")
    archive.add_argument("--yes", action="store_true", help="with create: really do it; searches lose these events")
    archive.add_argument("--wait", action="store_true", help="with create: wait until it is done")
    archive.add_argument("--session", metavar="ID", help="with search: only events of this session")
    archive.add_argument("--event", metavar="ID", help="with search: the event with this id")
    archive.add_argument("--since", type=moment, metavar="TIME", help="with search: from this time on")
    archive.add_argument("--until", type=moment, metavar="TIME", help="with search: before this time")
    archive.add_argument("--after", type=positive, metavar="SEQ", help="with search: go on after this seq")
    archive.add_argument("--limit", type=positive, default=50, metavar="N", help="with search: so many at most (50)")


def run_archive(options: argparse.Namespace) -> int:
    """Do what is asked."""
    with Client(options.data, options.config) as client:
        return _ACTIONS[options.action](client, options)


def _create(client: Client, options: argparse.Namespace) -> int:
    if options.before is None:
        refuse(PROGRAM, "create needs --before TIME, such as 2026-01-01 or 90d")
    if not options.yes:
        refuse(PROGRAM, "what is archived is found by no search any more; add --yes if you mean it")
    queued = ask(client, "archive.create", {"before": options.before})
    while options.wait and _is_busy(listed := ask(client, "archive.list")):
        queued = listed
        time.sleep(POLL_S)
    if options.json:
        say_json(ask(client, "archive.list") if options.wait else queued)
        return OK
    if options.wait:
        return _list(client, options)
    segments = member(queued, "segments")
    say(f"{len(segments) if isinstance(segments, list) else 0} segments queued")
    return OK


def _is_busy(listed: object) -> bool:
    return bool(member(listed, "archiving", "queued"))


def _list(client: Client, options: argparse.Namespace) -> int:
    listed = ask(client, "archive.list")
    if options.json:
        say_json(listed)
        return OK
    archives = [
        (each.get("name"), each.get("events"), when(each.get("first_ts")), when(each.get("last_ts")), each.get("bytes"))
        for each in members(listed, "archives")
    ]
    if archives:
        say(table(archives, ("archive", "events", "from", "to", "bytes")))
    else:
        say("nothing is archived")
    segments = [
        (each.get("segment"), each.get("state"), each.get("first_seq"), each.get("last_seq"), each.get("bytes"))
        for each in members(listed, "segments")
    ]
    say()
    say(table(segments, ("segment", "state", "first event", "last event", "bytes")))
    if (error := member(listed, "archiving", "error")) is not None:
        note(f"bulkhead: not archived: {error}")
    return OK


def _verify(client: Client, options: argparse.Namespace) -> int:
    verified = ask(client, "archive.verify", {"deadline_ms": int(VERIFY_S * 1000)}, VERIFY_S + 5)
    if options.json:
        say_json(verified)
    else:
        names = member(verified, "verified")
        count = len(names) if isinstance(names, list) else 0
        say(f"{count} archives hold what was sealed, {number(verified, 'events')} events")
    return OK


def _search(client: Client, options: argparse.Namespace) -> int:
    given = {
        "limit": options.limit,
        "after_seq": options.after,
        "session_id": options.session,
        "event_id": options.event,
        "since": options.since,
        "until": options.until,
    }
    found = ask(client, "archive.search", {name: value for name, value in given.items() if value is not None})
    if options.json:
        say_json(found)
        return OK
    names = ("seq", "ts", "session_id", "actor", "event_id", "archive")
    rows = [
        tuple(when(each[name]) if name == "ts" else each.get(name) for name in names)
        for each in members(found, "events")
    ]
    say(table(rows, names) if rows else "nothing is known of such events")
    if member(found, "more"):
        say(f"more with --after {rows[-1][0]}")
    return OK


_ACTIONS = {"list": _list, "create": _create, "verify": _verify, "search": _search}
