"""backup: make a copy of the whole memory while it is in use, list the copies, look at every byte of one."""

import argparse

from supervisor.cli.answers import FAILED, OK, ask, member, members, note, number, say, say_json, table, when
from supervisor.cli.arguments import Verbs, refuse
from supervisor.client import Client

PROGRAM = "bulkhead backup"
WAIT_S = 3600.0  # the longest that a daemon with the defaults lets a request wait
PAGE = 100


def register(verbs: Verbs) -> None:
    """Add the verb of this file."""
    backup = verbs.add("backup", run_backup, "copy the whole memory while it is in use; list and verify the copies")
    backup.add_argument("action", nargs="?", choices=tuple(_ACTIONS), default="list", help="what to do (list)")
    backup.add_argument("name", nargs="?", help="with verify: which one (the newest)")


def run_backup(options: argparse.Namespace) -> int:
    """Do what is asked."""
    if options.name is not None and options.action != "verify":
        refuse(PROGRAM, f"unexpected {options.name!r}: {options.action} takes no name")
    with Client(options.data, options.config) as client:
        return _ACTIONS[options.action](client, options)


def _create(client: Client, options: argparse.Namespace) -> int:
    params: dict[str, object] = {"wait": True, "deadline_ms": int(WAIT_S * 1000)}
    made = client.request("backup.create", params, WAIT_S + 5)
    if options.json:
        say_json(made)
    elif member(made, "state") == "finished":
        say(f"{member(made, 'backup')}: {number(made, 'events')} events, {number(made, 'units')} units")
    if member(made, "state") == "finished":
        return OK
    note(f"bulkhead: no backup made: {member(made, 'reason') or member(made, 'state')}")
    return FAILED


def _list(client: Client, options: argparse.Namespace) -> int:
    found = ask(client, "backup.list", {"limit": PAGE})
    if options.json:
        say_json(found)
        return OK
    backups = members(found, "backups")
    if backups:
        rows = [[row.get(name, "") for name in ("backup", "state", "events", "units", "bytes")] for row in backups]
        ages = [when(row.get("created_at")) for row in backups]
        say(table([(row[0], age, *row[1:]) for row, age in zip(rows, ages, strict=True)], _HEADERS))
    else:
        say("there is no backup; bulkhead backup create makes one")
    failure = member(found, "last_failure", "reason")
    if failure is not None:
        note(f"bulkhead: the last backup failed: {failure}")
    return OK


def _verify(client: Client, options: argparse.Namespace) -> int:
    name = options.name or _newest(client)
    if name is None:
        note("bulkhead: there is no backup to verify")
        return FAILED
    params: dict[str, object] = {"backup": name, "deadline_ms": int(WAIT_S * 1000)}
    verified = client.request("backup.verify", params, WAIT_S + 5)
    if options.json:
        say_json(verified)
    else:
        say(f"{name} is whole: {number(verified, 'files')} files, {number(verified, 'bytes')} bytes")
    return OK


def _newest(client: Client) -> str | None:
    for row in members(ask(client, "backup.list", {"limit": PAGE}), "backups"):
        if row.get("state") == "finished":
            return str(row.get("backup"))
    return None


_HEADERS = ("backup", "made", "state", "events", "units", "bytes")
_ACTIONS = {"create": _create, "list": _list, "verify": _verify}
