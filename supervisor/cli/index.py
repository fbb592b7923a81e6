"""index: how complete the index is, rebuilding it, waiting for it."""

import argparse
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from supervisor.cli.answers import FAILED, OK, ask, member, members, note, number, say, say_json, table
from supervisor.cli.arguments import Verbs
from supervisor.cli.service import describe_index
from supervisor.client import Client

if TYPE_CHECKING:
    from tqdm import tqdm

POLL_S = 0.2


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    index = verbs.add("index", run_index, "say how complete the index is, or rebuild it")
    index.add_argument("--rebuild", action="store_true", help="build a new generation; the old one serves meanwhile")
    index.add_argument("--wait", action="store_true", help="wait until it is built and up to date")


def run_index(options: argparse.Namespace) -> int:
    """Rebuild if asked, wait if asked, and print the status of the index."""
    with Client(options.data, options.config) as client:
        build = None
        if options.rebuild:
            build = number(ask(client, "index.rebuild"), "build")
        status = ask(client, "index.status")
        if options.wait:
            status = _wait(client, build, status)
        sources = [] if options.json else members(ask(client, "source.list"), "sources")
    failed = options.wait and build is not None and number(status, "builds", "published") < build
    if options.json:
        say_json(status)
    else:
        _print(status, build, sources)
    if failed:
        note(f"bulkhead: index not rebuilt: {member(status, 'last_error')}")
    return FAILED if failed else OK


def _wait(client: Client, build: int | None, status: object) -> object:
    """Poll until the build that was asked for is through, or until nothing is left to build."""
    with _Bar() as bar:
        while not _settled(status, build):
            bar.show(status)
            time.sleep(POLL_S)
            status = ask(client, "index.status")
    return status


def _settled(status: object, build: int | None) -> bool:
    if member(status, "building") is not None:
        return False
    if build is not None:
        # Every build that was started has ended: it was published, or the old generation goes on serving.
        return number(status, "builds", "started") >= build
    behind = number(status, "behind", "events") + number(status, "behind", "units")
    return not behind or member(status, "last_error") is not None


class _Bar:
    """A progress bar on stderr, one for each stage of a build; nothing when stderr is no terminal."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None
        self._stage: object = None

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_exception: object) -> None:
        self._close()

    def show(self, status: object) -> None:
        """Draw how far the build is."""
        building = member(status, "building")
        if building is None or not sys.stderr.isatty():
            return
        stage, total = member(building, "stage"), number(building, "total")
        if stage != self._stage or (self._bar is not None and self._bar.total != (total or None)):
            self._close()
            self._open(stage, total)
        if self._bar is not None:
            self._bar.n = number(building, "done")
            self._bar.refresh()

    def _open(self, stage: object, total: int) -> None:
        from tqdm import tqdm

        self._stage = stage
        self._bar = tqdm(total=total or None, desc=str(stage), unit=" rows", file=sys.stderr, leave=False)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _print(status: object, build: int | None, sources: list[dict[str, object]]) -> None:
    if build is not None:
        say(f"build {build}")
    say(describe_index(status))
    if sources:
        say()
        say(table([(source.get("name"), source.get("path")) for source in sources], ("source", "folder")))
    left_out = members(status, "skipped") + members(status, "held") + members(status, "suspects")
    if left_out:
        say()
        rows = [(skip.get("path"), skip.get("reason"), skip.get("detail")) for skip in left_out]
        say(table(rows, ("left out", "reason", "detail"), (60, None, 60)))
    if (error := member(status, "last_error")) is not None:
        note(f"note: the last build failed: {error}")
