"""index: how complete the index is, rebuilding it and ending that, going back to the last generation, verifying it."""

import argparse
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from supervisor.cli.answers import FAILED, OK, ask, member, members, note, number, say, say_json, table
from supervisor.cli.arguments import Verbs, positive
from supervisor.cli.service import describe_index
from supervisor.client import Client

if TYPE_CHECKING:
    from tqdm import tqdm

POLL_S = 0.2
VERIFY_S = 120.0  # the longest deadline that a daemon takes (config: protocol.deadline_ms_max)
ACTIONS = ("show", "rebuild", "cancel", "rollback", "verify")


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    index = verbs.add("index", run_index, "say how complete the index is; rebuild, roll back or verify it")
    index.add_argument("action", nargs="?", choices=ACTIONS, default="show", help="what to do (show)")
    index.add_argument("--rebuild", action="store_true", help="build a new generation; the old one serves meanwhile")
    index.add_argument("--wait", action="store_true", help="wait until it is built and up to date")
    index.add_argument("--build", type=positive, metavar="N", help="with cancel: only this build")
    index.add_argument("--generation", type=positive, metavar="N", help="with rollback: to this one (the last before)")


def run_index(options: argparse.Namespace) -> int:
    """Do what is asked; to rebuild, wait and show is one thing: print the status of the index at the end."""
    with Client(options.data, options.config) as client:
        if options.action in _COMMANDS:
            return _COMMANDS[options.action](client, options)
        build = None
        if options.rebuild or options.action == "rebuild":
            build = number(ask(client, "index.rebuild"), "build")
        status = ask(client, "index.status")
        if options.wait:
            status = _wait(client, build, status)
        sources = [] if options.json else members(ask(client, "source.list"), "sources")
    failure = _failure(status, build) if options.wait and build is not None else None
    if options.json:
        say_json(status)
    else:
        _print(status, build, sources)
    if failure is not None:
        note(f"bulkhead: index not rebuilt: {failure}")
    return OK if failure is None else FAILED


def _failure(status: object, build: int) -> str | None:
    """Return why a build that has ended came to nothing, None when it did not."""
    for end in members(status, "builds", "ended"):
        if end.get("build") == build:
            return None if end.get("state") in ("published", "successor") else str(end.get("error"))
    return None if number(status, "builds", "published") >= build else str(member(status, "last_error"))


def _cancel(client: Client, options: argparse.Namespace) -> int:
    result = ask(client, "index.cancel", {} if options.build is None else {"build": options.build})
    if options.json:
        say_json(result)
        return OK
    _say_cancelled(member(result, "cancelled"))
    if (publishing := member(result, "publishing")) is not None:
        say(f"build {publishing} is complete and being published")
    elif not member(result, "cancelled"):
        say("no build is under way")
    return OK


def _roll_back(client: Client, options: argparse.Namespace) -> int:
    # Not by ask(): a second time would roll back one generation further.
    result = client.request("index.rollback", {} if options.generation is None else {"generation": options.generation})
    if options.json:
        say_json(result)
    else:
        say(f"generation {member(result, 'generation')} serves again, instead of {member(result, 'rolled_back_from')}")
        _say_cancelled(member(result, "cancelled"))
    return OK


def _say_cancelled(builds: object) -> None:
    if isinstance(builds, list) and builds:
        say(f"cancelled build {', '.join(map(str, builds))}; the generation that serves goes on serving")


def _verify(client: Client, options: argparse.Namespace) -> int:
    params = {"deadline_ms": int(VERIFY_S * 1000)}
    result = ask(client, "index.verify", params, deadline_s=VERIFY_S + 5)
    if options.json:
        say_json(result)
        return OK
    say(f"generation {member(result, 'generation')} is what was sealed: {number(result, 'bytes'):,} bytes")
    if (reason := member(result, "not_searched")) is not None:
        note(f"note: no searches were tried: {reason}")
        return OK
    say(f"found by their own words: {number(result, 'queries', 'found')} of {number(result, 'queries', 'asked')} rows")
    if (recall := member(result, "recall", "value")) is not None:
        say(f"recall by vector: {recall} of the {member(result, 'recall', 'at')} nearest")
    return OK


_COMMANDS = {"cancel": _cancel, "rollback": _roll_back, "verify": _verify}


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


def _source_row(source: dict[str, object]) -> tuple[object, ...]:
    reason = member(source, "held", "detail") if source.get("held") is not None else source.get("reason")
    followed = str(source.get("watching")) + (f": {reason}" if reason is not None else "")
    return source.get("name"), source.get("path"), source.get("files"), followed


def _print(status: object, build: int | None, sources: list[dict[str, object]]) -> None:
    if build is not None:
        say(f"build {build}")
    say(describe_index(status))
    if items := _item_rows(status):
        say()
        say(table(items, ("items", "accepted", "found by words", "by meaning", "pending", "failed")))
    if sources:
        say()
        say(
            table(
                [_source_row(source) for source in sources],
                ("source", "folder", "notes", "followed by"),
                (None, None, None, 60),
            )
        )
    left_out = members(status, "skipped") + members(status, "held") + members(status, "suspects")
    if left_out:
        say()
        rows = [(skip.get("path"), skip.get("reason"), skip.get("detail")) for skip in left_out]
        say(table(rows, ("left out", "reason", "detail"), (60, None, 60)))
    if (error := member(status, "last_error")) is not None:
        note(f"note: the last build failed: {error}")


def _item_rows(status: object) -> list[tuple[object, ...]]:
    """Return a row for each corpus that holds anything: what was accepted, and what of it can be found."""
    items = member(status, "items")
    return [
        (
            corpus,
            f"{number(items, corpus, 'accepted'):,}",
            f"{number(items, corpus, 'words', 'searchable'):,}",
            f"{number(items, corpus, 'meaning', 'searchable'):,}",
            f"{number(items, corpus, 'meaning', 'pending'):,}",
            _describe_failed(items, corpus),
        )
        for corpus in ("events", "units", "documents")
        if isinstance(items, dict) and number(items, corpus, "accepted")
    ]


def _describe_failed(items: object, corpus: str) -> str:
    reasons = member(items, corpus, "meaning", "reasons")
    listed = reasons.items() if isinstance(reasons, dict) else ()
    return ", ".join(f"{count:,} {reason}" for reason, count in listed) or "0"
