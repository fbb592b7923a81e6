"""Freshness: how long after its acknowledgement an event is found, by keyword and by vector, under steady appends.

Clients append at a fixed rate (each event when its time has come, whatever became of the one before). The next request
of the same client is a keyword search for a word that only this event holds. For some events it is asked again and
again, by vector and with their own text, until they are the first hit: the time from the acknowledgement until the
question that found it was sent is how stale the vectors are. Beside it stands where the deltas spent their time: their
stage is looked at every 20 ms, and how long each took and how many rows it held is told by the daemon.

Vectors come from the same deterministic endpoint on loopback as those of `search`, so what is measured is the way of an
event through the index and not a model.
"""

import argparse
import random
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import trio

from bench.search import chunk, complete, fill
from chaos.client import Client, open_socket
from chaos.daemon import Daemon, data_directory, wait_until
from chaos.endpoint import hashing
from chaos.load import new_token, percentile

RATE, SECONDS, EARLIER = 50, 200, 5_000
CLIENTS = 8
PROBES_PER_S = 5
POLL_S = 0.05
LOOK_S = 0.02
FOUND_S = 60.0


class Measured:
    """What was measured."""

    def __init__(self) -> None:
        self.append_ms: list[float] = []
        self.keyword_ms: list[float] = []
        self.missed: list[str] = []  # events that the next request did not find by keyword
        self.vector_s: list[float] = []
        self.lost = 0  # events that were not found by vector at all
        self.stages: Counter[str] = Counter()
        self.deltas: dict[int, tuple[float, int]] = {}  # number: (ms, rows)
        self.generations: set[int] = set()
        self.ended = trio.Event()


async def append_in_time(
    path: str, first: int, measured: Measured, *, rate: float, began: float, seconds: float
) -> None:
    """Append every CLIENTS-th event when its time has come, and search for its word in the next request."""
    number, rng = first, random.Random(first)
    async with trio.open_nursery() as probes, open_socket(path) as client:
        while (due := began + number / rate) < began + seconds:
            await trio.sleep_until(due)
            token = new_token(rng)
            content = f"{chunk(rng, number)} {token}"
            sent = time.perf_counter()
            appended = await client.call(
                "event.append", {"session_id": f"f{first}", "actor": "user", "content": content}
            )
            acknowledged = time.perf_counter()
            found = await client.call("memory.search", {"query": token, "mode": "keyword", "limit": 3})
            measured.append_ms.append((acknowledged - sent) * 1000)
            measured.keyword_ms.append((time.perf_counter() - acknowledged) * 1000)
            if appended["event_id"] not in {hit["id"] for hit in found["hits"]}:
                measured.missed.append(f"{appended['event_id']}: {found['degraded']}")
            if number % max(1, round(rate / PROBES_PER_S)) == 0:
                probes.start_soon(find_by_vector, path, content, appended["event_id"], acknowledged, measured)
            number += CLIENTS


async def find_by_vector(path: str, content: str, event_id: str, acknowledged: float, measured: Measured) -> None:
    """Ask by vector until an event is found."""
    async with open_socket(path) as client:
        while (asked := time.perf_counter()) - acknowledged < FOUND_S:
            found = await client.call("memory.search", {"query": content, "mode": "vector", "limit": 1})
            if found["hits"] and found["hits"][0]["id"] == event_id:
                measured.vector_s.append(asked - acknowledged)
                return
            await trio.sleep(POLL_S)
    measured.lost += 1


async def look(client: Client, measured: Measured) -> None:
    """Note at which stage the delta is, and what became of it."""
    published = -1
    while not measured.ended.is_set():
        index = (await client.call("system.status"))["index"]
        building = index["deltas"]["building"]
        measured.stages["(no delta)" if building is None else building["stage"].removeprefix("delta ")] += 1
        if index["deltas"]["published"] != published and index["delta"] is not None:
            published = index["deltas"]["published"]
            measured.deltas[published] = index["deltas"]["took_ms"], index["deltas"]["rows"]
        measured.generations.add(index["generation"])
        await trio.sleep(LOOK_S)


async def run(data: Path, config: Path, options: argparse.Namespace) -> None:
    """Print the numbers."""
    daemon, measured = Daemon(data, config), Measured()
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        await fill(client, 0, options.earlier, random.Random(1))
        await client.call("event.append", {"session_id": "first", "actor": "user", "content": "there is something"})
        await wait_until(client, complete(options.earlier + 1), 7200, method="index.status")
        await wait_until(client, lambda s: s["searcher"]["loaded"] == 2)
        began = trio.current_time() + 1
        async with trio.open_nursery() as watching:
            watching.start_soon(look, client, measured)
            async with trio.open_nursery() as clients:
                for first in range(CLIENTS):
                    timed = partial(append_in_time, rate=options.rate, began=began, seconds=options.seconds)
                    clients.start_soon(timed, daemon.socket_path, first, measured)
            measured.ended.set()
        show(measured, await client.call("system.status"))
    await daemon.stop()


def show(measured: Measured, status: dict[str, Any]) -> None:
    """Print what was measured."""
    events = len(measured.append_ms)
    print(f"{events} events; found by keyword in the next request: {events - len(measured.missed)} of {events}")
    for missed in measured.missed[:5]:
        print(f"  missed {missed}")
    rows = (
        ("append ms", measured.append_ms),
        ("keyword search ms", measured.keyword_ms),
        (f"found by vector s ({len(measured.vector_s)} asked, {measured.lost} never)", measured.vector_s),
        (f"delta ms ({len(measured.deltas)})", [took for took, _ in measured.deltas.values()]),
        ("rows of a delta", [float(rows) for _, rows in measured.deltas.values()]),
    )
    for name, values in rows:
        if values:
            cells = " ".join(f"{percentile(values, share):9.2f}" for share in (0.5, 0.95, 0.99, 1.0))
            print(f"{name:45} p50 p95 p99 max {cells}")
    looks = sum(measured.stages.values())
    shares = [f"{stage} {count * 100 / looks:.0f} %" for stage, count in measured.stages.most_common()]
    print(f"the deltas' time: {', '.join(shares)}")
    embedding = status["index"]["embedding"]
    print(f"generations {sorted(measured.generations)}; embedding {embedding['state']}, pending {embedding['pending']}")


def main(arguments: list[str]) -> None:
    """Print the numbers; `--seconds 20 --rate 20 --earlier 500` for less."""
    parser = argparse.ArgumentParser(prog="python -m bench freshness", description=__doc__)
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--rate", type=float, default=RATE, help="events a second")
    parser.add_argument("--earlier", type=int, default=EARLIER, help="events that are indexed before")
    options = parser.parse_args(arguments)
    print("\n# freshness")
    with hashing() as embedding, data_directory() as data:
        data.mkdir(parents=True)
        config = data.with_name("config.toml")
        config.write_text(embedding, encoding="utf-8")
        trio.run(run, data, config, options)
