"""restore: make damaged truth whole again, from a backup or from what can still be read."""

import argparse
from pathlib import Path

from supervisor.cli.answers import FAILED, OK, member, note, say, say_json, table
from supervisor.cli.arguments import Verbs, refuse
from supervisor.client import Client

PROGRAM = "bulkhead restore"
# The longest that a daemon with the defaults lets a request take.
DEADLINE_S = 120.0


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    restore = verbs.add("restore", run_restore, "replace damaged files of the truth; the old ones are kept")
    restore.add_argument("actor", metavar="ACTOR", help="whose files: core_writer, transcript_appender")
    source = restore.add_mutually_exclusive_group(required=True)
    source.add_argument("--from", dest="source", metavar="FILE", help="by this database (a backup); it stays as it is")
    source.add_argument("--salvage", action="store_true", help="by every row of them that can still be read")
    restore.add_argument("--yes", action="store_true", help="really do it: what the new files do not have is gone")


def run_restore(options: argparse.Namespace) -> int:
    """Restore one truth and say what was kept and lost of each table."""
    if not options.yes:
        refuse(PROGRAM, "it replaces the memory that is there by what the new files have; add --yes if you mean it")
    params: dict[str, object] = {"actor": options.actor, "deadline_ms": int(DEADLINE_S * 1000)}
    if options.salvage:
        params["salvage"] = True
    else:
        source = Path(options.source).expanduser().resolve()
        if not source.is_file():
            note(f"bulkhead: restore refused: {str(source)!r} is not a file")
            return FAILED
        params["from"] = str(source)
    with Client(options.data, options.config) as client:
        # Asked once: whoever repeats a restore must want it repeated.
        restored = client.request("truth.restore", params, DEADLINE_S + 5)
    if options.json:
        say_json(restored)
        return OK
    tables = member(restored, "tables")
    if isinstance(tables, dict):
        rows = [(name, member(kept, "kept"), _lost(member(kept, "lost"))) for name, kept in sorted(tables.items())]
        say(table(rows, ("table", "rows kept", "lost")))
    say()
    say(f"old files kept in {Path(client.data) / options.actor / str(member(restored, 'kept_aside'))}")
    return OK


def _lost(count: object) -> str:
    return "not known" if count is None else str(count)
