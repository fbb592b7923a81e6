"""Retrieval quality through the daemon's own memory.search, on labelled sets in a folder.

A set is `NAME.corpus.jsonl` (`id, group, text, date?`) and `NAME.queries.jsonl` (`group, query, relevant, category,
units?`); the folder's README describes it. Each document becomes one event of the session named by its group, with its
date as time; each query is a search with that session as filter. Every set has a data directory of its own.

Measures: Recall@5, Recall@10, nDCG@10 (binary), MRR; where a query has `units` (lists of ids, each list a page that
answers), hit@k and the reciprocal rank of the first hit. Mean over queries. LoCoMo without the category adversarial.
"""

import json
import math
import re
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import trio

from chaos.client import Client, open_bridge
from chaos.daemon import Daemon, data_directory, wait_until

APPEND = 200
AT_ONCE = 8
LIMIT = 100
SEARCH_S = 60.0
EMBED_S = 4 * 3600.0
SETS = (
    "locomo",
    "memorybank-zh",
    "memorybank-en",
    "memorybank-zhq-end",
    "memorybank-enq-zhd",
    "linuxnotes-zh",
    "pytestdocs-en",
    "cmrc-zh",
)
CORPUS_OF = {"memorybank-zhq-end": "memorybank-en", "memorybank-enq-zhd": "memorybank-zh"}


class Document(msgspec.Struct):
    """One document of a set."""

    id: str
    group: str
    text: str
    date: str | None = None


class Question(msgspec.Struct):
    """One question of a set."""

    id: str
    group: str
    query: str
    relevant: list[str]
    category: str = ""
    units: list[list[str]] | None = None


class Measures(msgspec.Struct, frozen=True):
    """The measures of one question, or their mean."""

    recall_5: float
    recall_10: float
    ndcg_10: float
    mrr: float


def read(path: Path, kind: type[Any]) -> list[Any]:
    """Read a file of JSON lines."""
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines() if line.strip()]


def measure(question: Question, found: list[str]) -> Measures:
    """Compare a ranking with what is relevant."""
    groups = question.units or [[identifier] for identifier in question.relevant]
    good = {identifier for group in groups for identifier in group}
    first = next((rank for rank, identifier in enumerate(found, 1) if identifier in good), None)
    if question.units:
        # One answering page is enough, so only the first hit counts, and the best possible rank is 1.
        hit = [float(first is not None and first <= k) for k in (5, 10)]
        gain = 1 / math.log2(first + 1) if first is not None and first <= 10 else 0.0
        return Measures(hit[0], hit[1], gain, 1 / first if first else 0.0)
    recalls = [len(good & set(found[:k])) / len(good) for k in (5, 10)]
    gains = sum(1 / math.log2(rank + 1) for rank, identifier in enumerate(found[:10], 1) if identifier in good)
    best = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(good), 10) + 1))
    return Measures(recalls[0], recalls[1], gains / best, 1 / first if first else 0.0)


def mean(measures: Iterable[Measures]) -> Measures:
    """Return the mean of each measure."""
    rows = list(measures)
    return Measures(*(sum(getattr(row, name) for row in rows) / len(rows) for name in Measures.__struct_fields__))


def moment(date: str | None) -> str | None:
    """Return a document's date as RFC 3339; the sets write it in two ways."""
    if date is None:
        return None
    match = re.match(r"^(\d{1,2}:\d{2} [ap]m) on (\d{1,2} \w+, \d{4})$", date)
    if match is not None:
        parsed = datetime.strptime(f"{match[1]} {match[2]}", "%I:%M %p %d %B, %Y").replace(tzinfo=UTC)
        return parsed.isoformat()
    return date


async def ingest(client: Client, documents: list[Document]) -> None:
    """Append every document as an event; doing it again changes nothing."""
    for start in range(0, len(documents), APPEND):
        events = [
            {
                "session_id": each.group,
                "actor": "user",
                "kind": "document_fragment",
                "content": each.text,
                "event_id": each.id,
                **({"ts": moment(each.date)} if each.date else {}),
            }
            for each in documents[start : start + APPEND]
        ]
        await client.call("event.append_many", {"events": events}, deadline_s=60)


async def wait_indexed(client: Client, wanted: int, vectors: bool) -> dict[str, Any]:
    """Wait until a generation holds everything and, with `vectors`, all of them are embedded."""
    shown = 0.0

    def complete(status: dict[str, Any]) -> bool:
        nonlocal shown
        covers, have = status["covers"] or {"event_seq": 0}, status["vectors"]
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            done = status["embedding"]["embedded"]
            print(f"    {covers['event_seq']}/{wanted} events, vectors {have}, embedded {done}", file=sys.stderr)
        return covers["event_seq"] >= wanted and (not vectors or have["have"] == have["want"])

    status: dict[str, Any] = await wait_until(client, complete, seconds=EMBED_S, method="index.status")
    await wait_until(client, lambda s: s["searcher"]["loaded"] > 0)
    return status


async def ask(client: Client, questions: list[Question], mode: str) -> list[Measures]:
    """Search every question and measure its ranking."""
    measures: dict[str, Measures] = {}
    slots = trio.CapacityLimiter(AT_ONCE)

    async def one(question: Question) -> None:
        async with slots:
            found = await client.call(
                "memory.search",
                {
                    "query": question.query,
                    "limit": LIMIT,
                    "corpora": ["events"],
                    "filters": {"session_ids": [question.group]},
                    "mode": mode,
                    "deadline_ms": int(SEARCH_S * 1000),
                },
                deadline_s=SEARCH_S,
            )
        assert not found["degraded"] or mode == "keyword", found["degraded"]
        measures[question.id] = measure(question, [hit["id"] for hit in found["hits"]])

    async with trio.open_nursery() as nursery:
        for question in questions:
            nursery.start_soon(one, question)
    return list(measures.values())


async def run_set(folder: Path, name: str, data: Path, modes: list[str], config: Path | None) -> list[dict[str, Any]]:
    """Ingest one set, wait for its vectors, ask its questions, return one row per mode."""
    documents = read(folder / f"{CORPUS_OF.get(name, name)}.corpus.jsonl", Document)
    questions = [q for q in read(folder / f"{name}.queries.jsonl", Question) if q.category != "adversarial"]
    daemon = Daemon(data, config)
    rows = []
    async with open_bridge(data, config) as client:
        await ingest(client, documents)
        await wait_indexed(client, len(documents), vectors=modes != ["keyword"])
        for mode in modes:
            found = mean(await ask(client, questions, mode))
            rows.append({"set": name, "mode": mode, "questions": len(questions), **msgspec.structs.asdict(found)})
    await daemon.stop()
    return rows


def main(arguments: list[str]) -> None:
    """Print one row per set and mode: R@5, R@10, nDCG@10, MRR in percent."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m bench retrieval", description=__doc__)
    parser.add_argument("--eval", type=Path, required=True, help="folder with the sets")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--modes", default="keyword,vector,hybrid")
    parser.add_argument("--keep", type=Path, help="keep the data directories here, so that a second run is quick")
    parser.add_argument("--config", type=Path)
    given = parser.parse_args(arguments)
    print(f"{'set':22} {'mode':8} {'n':>5} {'R@5':>6} {'R@10':>6} {'nDCG':>6} {'MRR':>6}")
    for name in given.sets.split(","):
        with data_directory() as temporary:
            corpus = CORPUS_OF.get(name, name)
            data = (given.keep / corpus).resolve() if given.keep else temporary
            rows = trio.run(run_set, given.eval, name, data, given.modes.split(","), given.config)
        for row in rows:
            percent = [f"{100 * row[key]:6.1f}" for key in ("recall_5", "recall_10", "ndcg_10", "mrr")]
            print(f"{row['set']:22} {row['mode']:8} {row['questions']:5} {' '.join(percent)}", flush=True)
            print(json.dumps(row), file=sys.stderr)
