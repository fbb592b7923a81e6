"""add: folders of markdown notes."""

import argparse
from pathlib import Path

from supervisor.cli.answers import FAILED, OK, ask, member, note, say, say_json, table
from supervisor.cli.arguments import Verbs, refuse
from supervisor.client import Client


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    add = verbs.add("add", run_add, "register folders of markdown notes to be indexed and watched")
    add.add_argument("paths", metavar="PATH", nargs="+", help="a folder; its files stay where they are")
    add.add_argument("--name", help="how the folder is called in citations (one PATH only)")


def run_add(options: argparse.Namespace) -> int:
    """Register every folder; the first that cannot be is an error, those before it stay registered."""
    if options.name is not None and len(options.paths) > 1:
        refuse("bulkhead add", "--name goes with one PATH")
    folders = [Path(path).expanduser().resolve() for path in options.paths]
    for folder in folders:
        if not folder.is_dir():
            note(f"bulkhead: add refused: {str(folder)!r} is not a folder")
            return FAILED
    with Client(options.data, options.config) as client:
        added = [ask(client, "source.add", _params(folder, options.name)) for folder in folders]
    if options.json:
        say_json(added)
        return OK
    rows = [(member(source, "source_id"), member(source, "name"), member(source, "path")) for source in added]
    say(table(rows, ("id", "name", "folder")))
    return OK


def _params(folder: Path, name: str | None) -> dict[str, object]:
    params: dict[str, object] = {"path": str(folder)}
    if name is not None:
        params["name"] = name
    return params
