"""restore: a whole data directory from a backup, or one damaged truth from a file or from what can still be read."""

import argparse
from pathlib import Path

from supervisor import paths
from supervisor.cli.answers import FAILED, OK, member, note, say, say_json, table
from supervisor.cli.arguments import Verbs, refuse
from supervisor.client import Client

PROGRAM = "bulkhead restore"
# The longest that a daemon with the defaults lets a request take.
DEADLINE_S = 120.0
ACTORS = ("core_writer", "transcript_appender")


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    restore = verbs.add("restore", run_restore, "restore a backup, or replace damaged files; the old ones are kept")
    restore.add_argument(
        "what",
        metavar="BACKUP|ACTOR",
        help="a backup (its folder, or a name of `backup list`): the whole data directory, no daemon may run; "
        "or whose damaged files: core_writer, transcript_appender, by the daemon",
    )
    source = restore.add_mutually_exclusive_group()
    source.add_argument("--from", dest="source", metavar="FILE", help="by this database (a backup); it stays as it is")
    source.add_argument("--salvage", action="store_true", help="by every row of them that can still be read")
    restore.add_argument("--yes", action="store_true", help="really do it: what the new files do not have is gone")


def run_restore(options: argparse.Namespace) -> int:
    """Restore a data directory, or one truth."""
    if options.what in ACTORS:
        if options.source is None and not options.salvage:
            refuse(PROGRAM, f"{options.what} is restored --from FILE or by --salvage")
        return _restore_truth(options)
    if options.source is not None or options.salvage:
        refuse(PROGRAM, f"--from and --salvage are for {' and '.join(ACTORS)}, not for {options.what!r}")
    return _restore_directory(options)


def _restore_directory(options: argparse.Namespace) -> int:
    """Restore a backup as the data directory, in this process: there must be no daemon."""
    from actors.errors import BulkheadError
    from supervisor import restoring

    data = Path(paths.data_directory(options.data))

    def told(stage: str, done: int, total: int) -> None:
        note(f"{stage}  ({done * 100 // max(1, total)} %)")

    try:
        aside = restoring.restore(Path(options.what).expanduser(), data, replace=options.yes, told=told)
    except BulkheadError as error:
        note(f"bulkhead: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
        return FAILED
    except OSError as error:
        note(f"bulkhead: restore failed, {str(data)!r} is as it was: {error}")
        return FAILED
    if options.json:
        say_json({"data": str(data), "kept_aside": None if aside is None else str(aside)})
        return OK
    say(f"restored {data}; the index is rebuilt when the daemon starts")
    if aside is not None:
        say(f"the directory that was there is kept in {aside}")
    return OK


def _restore_truth(options: argparse.Namespace) -> int:
    """Restore one truth and say what was kept and lost of each table."""
    if not options.yes:
        refuse(PROGRAM, "it replaces the memory that is there by what the new files have; add --yes if you mean it")
    params: dict[str, object] = {"actor": options.what, "deadline_ms": int(DEADLINE_S * 1000)}
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
    say(f"old files kept in {Path(client.data) / options.what / str(member(restored, 'kept_aside'))}")
    return OK


def _lost(count: object) -> str:
    return "not known" if count is None else str(count)
