"""forget: remove memories from every store, for good."""

import argparse

from supervisor.cli.answers import FAILED, OK, ask, member, members, note, number, say, say_json, table
from supervisor.cli.arguments import Verbs, moment
from supervisor.client import Client

DEADLINE_S = 60.0


def register(verbs: Verbs) -> None:
    """Add the verb of this file."""
    forget = verbs.add("forget", run_forget, "forget memories for good, or say how far that is")
    forget.add_argument("ids", metavar="ID", nargs="*", help="events and units by id")
    forget.add_argument("--session", metavar="ID", help="everything of a session")
    forget.add_argument("--source", metavar="NAME", help="events that came by this channel")
    forget.add_argument("--before", metavar="TIME", type=moment, help="older than a date or an age such as 90d")
    forget.add_argument("--tag", action="append", default=[], help="with this tag; may be repeated")
    forget.add_argument("--everything", action="store_true", help="all there is")
    forget.add_argument("--reason", default="by command line", help="is kept with the order")
    forget.add_argument("--dry-run", action="store_true", help="only say how much it would be")
    forget.add_argument("--yes", action="store_true", help="do it; nothing brings it back")
    forget.add_argument("--status", metavar="FORGET_ID", help="look for what is left of an order")
    forget.add_argument("--list", action="store_true", help="list the orders")


def run_forget(options: argparse.Namespace) -> int:
    """Order, look, or list."""
    if not (options.yes or options.dry_run or options.status or options.list):
        note("bulkhead: forget refused: nothing brings it back; --dry-run says how much it is, --yes does it")
        return FAILED
    with Client(options.data, options.config) as client:
        if options.list:
            result = ask(client, "memory.forget_list")
        elif options.status:
            result = ask(client, "memory.forget_status", {"forget_id": options.status}, DEADLINE_S)
        else:
            result = ask(client, "memory.forget", _params(options), DEADLINE_S)
    if options.json:
        say_json(result)
    elif options.list:
        rows = [[each.get(name) for name in ("forget_id", "state", "ordered_at", "reason")] for each in _orders(result)]
        say(table(rows, ("id", "state", "ordered", "reason"), (None, None, None, 60)))
    else:
        _print(result)
    return OK


def _params(options: argparse.Namespace) -> dict[str, object]:
    chosen: dict[str, object] = {"session_id": options.session, "source": options.source, "before": options.before}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if options.tag:
        chosen["tags"] = options.tag
    params: dict[str, object] = {"reason": options.reason, "dry_run": options.dry_run}
    if options.ids:
        params["ids"] = options.ids
    if chosen:
        params["filter"] = chosen
    if options.everything:
        params["everything_of_tenant"] = True
    return params


def _orders(result: object) -> list[dict[str, object]]:
    return members(result, "forgets")


def _print(result: object) -> None:
    counted = "would_forget" if member(result, "dry_run") else "forgotten"
    events, units = number(result, counted, "events"), number(result, counted, "units")
    say(f"{'would forget' if member(result, 'dry_run') else 'forgotten'}: {events} events, {units} units")
    if (forget_id := member(result, "forget_id")) is not None:
        say(f"order {forget_id}: {member(result, 'state')}")
    if isinstance(left := member(result, "left"), dict):
        say("left: " + ", ".join(f"{count} {what}" for what, count in left.items()))
