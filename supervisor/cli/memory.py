"""search, get, append: the memory itself."""

import argparse
import contextlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from supervisor.cli.answers import (
    FAILED,
    OK,
    ask,
    clean,
    columns,
    cut,
    member,
    members,
    note,
    number,
    say,
    say_json,
    table,
    when,
)
from supervisor.cli.arguments import Verbs, moment, positive, refuse
from supervisor.client import Client, RequestFailed

CORPORA = ("events", "units", "documents")
ACTORS = ("user", "assistant", "system", "tool")
KINDS = ("message", "tool_call", "tool_result", "document_fragment")
MODES = ("hybrid", "keyword", "vector")
SNIPPET_COLUMNS = 240
SNIPPET_COLUMNS_MIN = 30
BATCH_EVENTS = 200
BATCH_BYTES = 1024 * 1024
SUFFIXES = (".md", ".markdown", ".mdx")
CITATION = re.compile(r"#L\d+(-L\d+)?$")


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    search = verbs.add("search", run_search, "find events, units and notes by meaning and by words")
    search.add_argument("query", metavar="QUERY", nargs="+", help="what to look for; several words are one query")
    search.add_argument("--limit", type=positive, metavar="N", help="at most so many hits")
    search.add_argument("--corpus", action="append", choices=CORPORA, help="look only there (may be repeated)")
    search.add_argument("--session", action="append", metavar="ID", help="only this session (may be repeated)")
    search.add_argument("--actor", action="append", choices=ACTORS, help="only events of this actor (may be repeated)")
    search.add_argument("--tag", action="append", metavar="T", help="only what has this tag (all, when repeated)")
    search.add_argument("--since", type=moment, metavar="TIME", help="from this time on: 2026-05-01, 12h, 7d")
    search.add_argument("--until", type=moment, metavar="TIME", help="before this time")
    search.add_argument("--path", metavar="PREFIX", help="only notes whose path begins like this")
    search.add_argument("--mode", choices=MODES, help="how to look (hybrid unless said otherwise)")
    search.add_argument("--explain", action="store_true", help="say how the scores came about (with --json)")

    get = verbs.add("get", run_get, "print an event, a unit or a note")
    get.add_argument("item", metavar="ID|PATH", help="an id or a path, as in a search result")
    get.add_argument("--from-line", type=positive, metavar="N", help="first line of a note")
    get.add_argument("--lines", type=positive, metavar="N", help="how many lines of a note")

    append = verbs.add("append", run_append, "append an event to a session, or many from a file")
    append.add_argument("content", metavar="CONTENT", nargs="?", help="the text; - reads it from stdin")
    append.add_argument("--session", metavar="ID", help="the session (created by its first event)")
    append.add_argument("--actor", choices=ACTORS, help="who said it")
    append.add_argument("--kind", choices=KINDS, help="what it is (message unless said otherwise)")
    append.add_argument("--ts", type=moment, metavar="TIME", help="when it happened (now unless said otherwise)")
    append.add_argument("--tag", action="append", metavar="T", help="a tag (may be repeated)")
    append.add_argument("--event-id", metavar="ID", help="your own id; appending it again changes nothing")
    append.add_argument("--request-id", metavar="ID", help="an id of this request; repeating it changes nothing")
    append.add_argument("--jsonl", metavar="FILE", help="append one event per line of JSON; - reads stdin")


# ---------------------------------------------------------------- search


def run_search(options: argparse.Namespace) -> int:
    """Search, and print the hits with their citations, and how good the answer is."""
    with Client(options.data, options.config) as client:
        answer = ask(client, "memory.search", search_params(options))
    if options.json:
        say_json(answer)
        return OK
    hits = members(answer, "hits")
    if hits:
        width = max(SNIPPET_COLUMNS_MIN, columns() - 62)
        rows = [_hit_row(place, hit) for place, hit in enumerate(hits, 1)]
        say(table(rows, ("", "score", "where", "when", "what"), (None, None, 36, None, width)))
        say()
    say(_summary(answer, len(hits)))
    for reason in members(answer, "degraded"):
        note(f"note: {member(reason, 'code')}: {member(reason, 'detail')}")
    if member(answer, "low_confidence") is True:
        note("note: low confidence: nothing in the memory is close to this query")
    return OK


def search_params(options: argparse.Namespace) -> dict[str, object]:
    """Return the params of `memory.search` for the options."""
    filters = {
        "session_ids": options.session,
        "actors": options.actor,
        "tags": options.tag,
        "since": options.since,
        "until": options.until,
        "path": options.path,
    }
    params: dict[str, object] = {
        "query": " ".join(options.query),
        "limit": options.limit,
        "corpora": options.corpus,
        "filters": {name: value for name, value in filters.items() if value is not None} or None,
        "mode": options.mode,
        "explain": True if options.explain else None,
    }
    return {name: value for name, value in params.items() if value is not None}


def _hit_row(place: int, hit: dict[str, object]) -> tuple[object, ...]:
    score = hit.get("score")
    return (
        place,
        f"{score:.2f}" if isinstance(score, int | float) else "",
        hit.get("citation") or hit.get("id"),
        when(hit.get("ts")),
        cut(clean(str(hit.get("snippet") or "")), SNIPPET_COLUMNS),
    )


def _summary(answer: object, hits: int) -> str:
    generation = member(answer, "generation")
    behind = number(answer, "behind", "events") + number(answer, "behind", "units")
    parts = [
        "1 hit" if hits == 1 else f"{hits or 'no'} hits",
        f"mode {member(answer, 'mode')}",
        "no generation yet" if generation is None else f"generation {generation}",
    ]
    if behind:
        parts.append(f"{behind:,} newer items searched by keyword")
    if member(answer, "building"):
        parts.append("a new generation is being built")
    parts.append(f"{member(answer, 'took_ms')} ms")
    return ", ".join(parts)


# ---------------------------------------------------------------- get


def run_get(options: argparse.Namespace) -> int:
    """Print an item: its text as it is in a pipe, made harmless on a terminal."""
    with Client(options.data, options.config) as client:
        answer = ask(client, "memory.get", get_params(options))
    if options.json:
        say_json(answer)
        return OK
    item = member(answer, "item")
    text = str(member(item, "content") or member(item, "text") or "")
    if sys.stdout.isatty():
        text = clean(text, lines=True)
    heading = _heading(item)
    if heading:
        note(heading)
    say(text)
    return OK


def get_params(options: argparse.Namespace) -> dict[str, object]:
    """Return the params of `memory.get`: a path when it looks like one, else an id or a citation."""
    item: str = options.item
    params: dict[str, object] = {"id": item}
    if CITATION.search(item) is None and ("/" in item or item.lower().endswith(SUFFIXES)):
        local = Path(item).expanduser()
        # A citation is relative to its source; what lies here under that name is meant by its place here.
        params = {"path": str(local.resolve()) if local.is_file() else item}
    if options.from_line is not None:
        params["from_line"] = options.from_line
    if options.lines is not None:
        params["lines"] = options.lines
    return params


def _heading(item: object) -> str:
    names = ("path", "event_id", "unit_id", "session_id", "actor", "type", "version", "from_line", "to_line")
    facts = [f"{name} {value}" for name in names if (value := member(item, name)) is not None]
    at = when(member(item, "ts") or member(item, "updated_at"))
    return ", ".join([*facts, at] if at else facts)


# ---------------------------------------------------------------- append


def run_append(options: argparse.Namespace) -> int:
    """Append one event, or those of a JSON lines file in batches."""
    if options.jsonl is not None:
        if options.content is not None:
            refuse("bulkhead append", "give CONTENT or --jsonl, not both")
        return _append_lines(options)
    if options.session is None or options.actor is None:
        refuse("bulkhead append", "--session ID and --actor ACTOR are needed")
    if options.content is None:
        refuse("bulkhead append", "CONTENT is missing (- reads it from stdin)")
    event = {
        **_defaults(options),
        "content": _stdin_text() if options.content == "-" else options.content,
        "event_id": options.event_id,
        # An id of our own, so that the request can be repeated when the daemon is lost on the way.
        "request_id": options.request_id or _new_request_id(),
    }
    with Client(options.data, options.config) as client:
        result = ask(client, "event.append", {name: value for name, value in event.items() if value is not None})
    if options.json:
        say_json(result)
    else:
        again = "  (was there already)" if member(result, "deduplicated") is True else ""
        say(f"{member(result, 'event_id')}  seq {member(result, 'seq')}{again}")
    return OK


def _append_lines(options: argparse.Namespace) -> int:
    done = 0
    again = 0
    with Client(options.data, options.config) as client, _open_lines(options.jsonl) as lines:
        try:
            for batch in _batches(lines, _defaults(options)):
                answer = ask(client, "event.append_many", {"events": batch})
                done += len(batch)
                again += sum(result.get("deduplicated") is True for result in members(answer, "results"))
                _tell(options, done)
        except _BadLine as error:
            note(f"bulkhead: append of {options.jsonl!r} stopped: {error}; the {done:,} events before it are stored")
            return FAILED
        except RequestFailed:
            note(f"bulkhead: append of {options.jsonl!r} stopped: the first {done:,} events are stored")
            raise
    if options.json:
        say_json({"appended": done - again, "deduplicated": again})
    else:
        say(f"{done - again:,} events appended" + (f", {again:,} were there already" if again else ""))
    return OK


class _BadLine(Exception):
    """A line that is no event."""


def _batches(lines: Iterator[bytes], defaults: dict[str, object]) -> Iterator[list[dict[str, object]]]:
    """Yield the events of a JSON lines file in pieces that fit into one request.

    A line that is no event ends it, after what came before it has been yielded.
    """
    batch: list[dict[str, object]] = []
    size = 0
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            event = _event(line, at, defaults)
        except _BadLine:
            if batch:
                yield batch
            raise
        if batch and (len(batch) == BATCH_EVENTS or size + len(line) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(event)
        size += len(line)
    if batch:
        yield batch


def _event(line: bytes, at: int, defaults: dict[str, object]) -> dict[str, object]:
    try:
        given = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"line {at} is not JSON in UTF-8 ({error})") from error
    if not isinstance(given, dict):
        raise _BadLine(f"line {at} is no JSON object")
    event = {name: value for name, value in {**defaults, **given}.items() if value is not None}
    missing = [name for name in ("session_id", "actor", "content") if name not in event]
    if missing:
        raise _BadLine(f"line {at} lacks {', '.join(missing)}")
    event.setdefault("request_id", _new_request_id())
    return event


def _defaults(options: argparse.Namespace) -> dict[str, object]:
    return {
        "session_id": options.session,
        "actor": options.actor,
        "kind": options.kind,
        "ts": options.ts,
        "tags": options.tag,
    }


def _new_request_id() -> str:
    return f"cli-{uuid.uuid4()}"


def _tell(options: argparse.Namespace, done: int) -> None:
    if not options.json and sys.stderr.isatty():
        sys.stderr.write(f"\r{done:,} events ")
        sys.stderr.flush()


@contextlib.contextmanager
def _open_lines(name: str) -> Iterator[BinaryIO]:
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        file = Path(name).open("rb")  # noqa: SIM115 (closed below; only opening it is guarded)
    except OSError as error:
        refuse("bulkhead append", f"{name!r} not readable: {error.strerror}")
    with file:
        yield file


def _stdin_text() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        refuse("bulkhead append", f"stdin is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}")
