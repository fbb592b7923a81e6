"""export, import: everything of a memory as lines of JSON, and back.

    {"kind": "export", "format": 1, …}
    {"kind": "source" | "session" | "event" | "unit", "row": {…}}      one a line, in the order in which they are put in
    {"kind": "end", "counts": {"event": 120, …}}

The rows are what the protocol shows, so the file can be read by anything. Units come with all their versions. What is
imported keeps its ids and times; what is there already stays, so an import that was cut short is done again from the
start and comes to the same. Numbers (`seq`, `core_seq`) are given anew, in the same order.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from supervisor.cli.answers import FAILED, OK, ask, clean, member, members, note, number, say, say_json, to_json
from supervisor.cli.arguments import Verbs
from supervisor.client import Client, RequestFailed
from supervisor.version import VERSION

FORMAT = 1
PAGE = 200
BATCH_ROWS = 100
BATCH_BYTES = 1024 * 1024
LINE_BYTES_MAX = 32 * 1024 * 1024
DEADLINE_S = 120.0
EVENT = ("event_id", "session_id", "actor", "content", "kind", "ts", "channel", "project", "tags", "meta", "trace_id")
SESSION = (
    "session_id",
    "created_at",
    "updated_at",
    "last_active_at",
    "title",
    "agent",
    "meta",
    "closed_at",
    "archived_at",
)
UNIT = (
    *("unit_id", "version", "type", "scope", "text", "created_at", "updated_at", "status", "facts", "event_refs"),
    *("confidence", "parent_unit_id", "tags", "session_id"),
)
Row = dict[str, object]


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    export = verbs.add("export", run_export, "write everything of the memory into a file, as lines of JSON")
    export.add_argument("file", metavar="FILE", help="the file to write, which must not be there yet; - is stdout")
    imported = verbs.add("import", run_import, "put an exported memory in; what is there already stays as it is")
    imported.add_argument("file", metavar="FILE", help="a file that `bulkhead export` wrote; - is stdin")
    imported.add_argument(
        "--continue", dest="go_on", action="store_true", help="pass over lines that cannot be read, and name them"
    )


# ---------------------------------------------------------------- export


def run_export(options: argparse.Namespace) -> int:
    """Write the file; it has its name only when it is complete."""
    counts: Counter[str] = Counter()
    try:
        with Client(options.data, options.config) as client, _new_file(options.file) as file:
            _write_line(file, {"kind": "export", "format": FORMAT, "program": VERSION})
            for kind, row in _everything(client):
                _write_line(file, {"kind": kind, "row": row})
                counts[kind] += 1
            _write_line(file, {"kind": "end", "counts": dict(counts)})
    except FileExistsError:
        note(f"bulkhead: export refused: {options.file!r} is there already")
        return FAILED
    if options.file != "-":
        _tell("exported", counts, options)
    return OK


def _everything(client: Client) -> Iterator[tuple[str, Row]]:
    for row in members(ask(client, "source.list"), "sources"):
        yield "source", row
    yield from (("session", row) for row in _sessions(client))
    yield from (("session", row) for row in _sessions(client, status="archived"))
    yield from (("event", row) for row in _numbered(client, "events"))
    yield from (("unit", row) for row in _numbered(client, "units"))


def _sessions(client: Client, **narrowed: str) -> Iterator[Row]:
    """Yield the sessions, each once: one that is active meanwhile moves to the front of the list."""
    seen: set[object] = set()
    params: dict[str, object] = {"limit": PAGE, **narrowed}
    while True:
        found = ask(client, "session.list", params, DEADLINE_S)
        rows = members(found, "sessions")
        for row in rows:
            if row.get("session_id") not in seen:
                seen.add(row.get("session_id"))
                yield row
        if not rows or member(found, "more") is not True:
            return
        params["before"] = rows[-1].get("cursor")


def _numbered(client: Client, what: str) -> Iterator[Row]:
    after, more = 0, True
    while more:
        found = ask(client, "memory.export", {"what": what, "after": after, "limit": PAGE}, DEADLINE_S)
        yield from members(found, what)
        after, more = number(found, "last"), member(found, "more") is True


@contextmanager
def _new_file(name: str) -> Iterator[IO[str]]:
    if name == "-":
        yield sys.stdout
        return
    path = Path(name)
    if path.exists():
        raise FileExistsError(name)
    draft = path.with_name(f"{path.name}.tmp")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)


def _write_line(file: IO[str], line: Row) -> None:
    file.write(to_json(line) + "\n")


# ---------------------------------------------------------------- import


class BadLine(Exception):
    """A line that is not what an export writes; says which and why."""


def run_import(options: argparse.Namespace) -> int:
    """Put the rows in, batch by batch, and compare the number of rows with what the file says."""
    with Client(options.data, options.config) as client:
        importing = Importing(client, go_on=options.go_on)
        try:
            with _opened(options.file) as file:
                importing.run(iter(lambda: file.readline(LINE_BYTES_MAX + 1), b""))
        except BadLine as error:
            note(f"bulkhead: import stopped: {error}")
            note("what stood before is imported; mend the line and import again, or pass over it with --continue")
            return FAILED
        except FileNotFoundError:
            note(f"bulkhead: import refused: {options.file!r} is not there")
            return FAILED
        except RequestFailed as error:
            note(f"bulkhead: import stopped at line {importing.line}; import again, it goes on from there")
            raise error
    _tell("read", importing.read, options, importing.outcomes)
    return OK if importing.is_whole() else FAILED


class Importing:
    """An import: lines are gathered to batches of one kind, each written whole or not at all."""

    def __init__(self, client: Client, *, go_on: bool) -> None:
        self.line = 0
        self.read: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self._client = client
        self._go_on = go_on
        self._begun = False
        self._bad = 0
        self._expected: dict[str, object] | None = None
        self._kind = ""
        self._batch: list[Row] = []
        self._bytes = 0

    def run(self, lines: Iterable[bytes]) -> None:
        """Read the file to its end. Raises BadLine after what stood before has been put in."""
        for line in lines:
            self.line += 1
            try:
                self._take(line)
            except BadLine as error:
                self._bad += 1
                if not (self._go_on and self._begun):
                    self._put()
                    raise
                note(f"bulkhead: passed over: {error}")
        self._put()

    def is_whole(self) -> bool:
        """Say whether everything that the file should have is in the memory, and say what is not."""
        if self._expected is None:
            note("bulkhead: the file has no last line: it was cut short, what it has is imported")
        elif self._expected != dict(self.read):
            note(f"bulkhead: the file says {to_json(self._expected)}, it has {to_json(dict(self.read))}")
        conflicts = self.outcomes["conflict"]
        if conflicts:
            note(f"bulkhead: {conflicts} rows are not imported: something else has their id here")
        return self._expected == dict(self.read) and not conflicts and not self._bad

    def _take(self, line: bytes) -> None:
        if len(line) > LINE_BYTES_MAX:
            raise BadLine(f"line {self.line} is over {LINE_BYTES_MAX} bytes")
        found = self._decoded(line)
        kind, row = found.get("kind"), found.get("row")
        if not self._begun:
            self._begin(found)
        elif kind == "end":
            counts = found.get("counts")
            self._expected = counts if isinstance(counts, dict) else {}
        elif isinstance(kind, str) and kind in _PUT and isinstance(row, dict):
            self._gather(kind, row, len(line))
        else:
            raise BadLine(f"line {self.line} is no row of an export (kind {str(kind)[:40]!r})")

    def _decoded(self, line: bytes) -> Row:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadLine(f"line {self.line} is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise BadLine(f"line {self.line} is no JSON object")
        return found

    def _begin(self, found: Row) -> None:
        if found.get("kind") != "export":
            raise BadLine(f"line {self.line} does not begin an export")
        if not isinstance(found.get("format"), int) or number(found, "format") > FORMAT:
            raise BadLine(f"the file has format {found.get('format')}, this program knows up to {FORMAT}")
        self._begun = True

    def _gather(self, kind: str, row: Row, size: int) -> None:
        full = len(self._batch) >= BATCH_ROWS or self._bytes + size > BATCH_BYTES
        if self._batch and (kind != self._kind or full):
            self._put()
        self._kind = kind
        self._batch.append(row)
        self._bytes += size

    def _put(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        if batch:
            self._put_rows(self._kind, batch)

    def _put_rows(self, kind: str, rows: list[Row]) -> None:
        """Put rows in; when they are refused, one by one, to name the one that is the reason."""
        try:
            self.outcomes.update(_PUT[kind](self._client, rows))
        except RequestFailed as error:
            if error.retryable:
                raise
            if len(rows) > 1:
                for row in rows:
                    self._put_rows(kind, [row])
                return
            self._bad += 1
            name = next((str(rows[0][key]) for key in _IDS if key in rows[0]), "")
            refusal = f"{kind} {clean(name)!r} before line {self.line + 1} is refused: {clean(str(error))}"
            if not self._go_on:
                raise BadLine(refusal) from error
            note(f"bulkhead: passed over: {refusal}")
            return
        self.read[kind] += len(rows)


_IDS = ("event_id", "unit_id", "session_id", "path")


def _put_sources(client: Client, rows: list[Row]) -> list[str]:
    return [_put_source(client, row) for row in rows]


def _put_source(client: Client, row: Row) -> str:
    """Add a folder of notes; on another machine it may well not be there, which is said and stops nothing."""
    try:
        ask(client, "source.add", {"path": row.get("path"), "name": row.get("name")}, DEADLINE_S)
    except RequestFailed as error:
        if error.retryable:
            raise
        note(f"bulkhead: source not added: {error}")
        return "absent"
    return "imported"


def _put_sessions(client: Client, rows: list[Row]) -> list[str]:
    return _outcomes(ask(client, "memory.import", {"sessions": _only(SESSION, rows)}, DEADLINE_S))


def _put_units(client: Client, rows: list[Row]) -> list[str]:
    return _outcomes(ask(client, "memory.import", {"units": _only(UNIT, rows)}, DEADLINE_S))


def _put_events(client: Client, rows: list[Row]) -> list[str]:
    found = ask(client, "event.append_many", {"events": _only((*EVENT, "request_id"), rows)}, DEADLINE_S)
    results = members(found, "results")
    return [_event_outcome(row, result) for row, result in zip(rows, results, strict=True)]


def _event_outcome(row: Mapping[str, object], result: Mapping[str, object]) -> str:
    if result.get("event_id") != row.get("event_id"):
        return "conflict"  # its request, or its content within the window, has led to another event here
    return "present" if result.get("deduplicated") else "imported"


def _only(names: Iterable[str], rows: list[Row]) -> list[Row]:
    return [{name: row[name] for name in names if row.get(name) is not None} for row in rows]


def _outcomes(found: object) -> list[str]:
    outcomes = member(found, "outcomes")
    return [str(each) for each in outcomes] if isinstance(outcomes, list) else []


_PUT: dict[str, Callable[[Client, list[Row]], list[str]]] = {
    "source": _put_sources,
    "session": _put_sessions,
    "event": _put_events,
    "unit": _put_units,
}


@contextmanager
def _opened(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdin.buffer
        return
    with Path(name).open("rb") as file:
        yield file


def _tell(what: str, counts: Counter[str], options: argparse.Namespace, outcomes: Counter[str] | None = None) -> None:
    if options.json:
        say_json({what: dict(counts), **({} if outcomes is None else {"outcomes": dict(outcomes)})})
        return
    rows = ", ".join(f"{counts[kind]} {kind}s" for kind in _PUT)
    say(f"{what}: {rows}" if outcomes is None else f"{what}: {rows} ({_summary(outcomes)})")


def _summary(outcomes: Counter[str]) -> str:
    return f"{outcomes['imported']} new, {outcomes['present']} there already, {outcomes['conflict']} in conflict"
