"""Searches: latency at 1k, 20k and 100k chunks, keyword and hybrid; build time; resident memory of each process.

The corpus is synthetic (words drawn with the frequencies of a natural text, English and Chinese, about 60 a chunk).
Vectors come from a small deterministic embedder behind an OpenAI-compatible endpoint on loopback (384 dimensions), so
that 100k chunks are embedded in minutes and what is measured is the index and not the model. One client asks one
question after the other (p50, p99 over 300); the embedding of the query, a call over loopback, is part of it.
"""

import random
import time
from pathlib import Path
from typing import Any

import trio

from chaos.client import Client, open_socket
from chaos.daemon import Daemon, data_directory, wait_until
from chaos.endpoint import hashing
from chaos.load import percentile

SIZES = (1_000, 20_000, 100_000)
WORDS = 60
VOCABULARY = 20_000
QUERIES = 300
APPEND = 500
CHINESE = (
    "的一是在不了有和人这中大为上个国我以要他时来用们生到作地于出就分对成会"
    "可主发年动同工也能下过子说产种面而方后多定行学法所民得经"
)


def chunk(rng: random.Random, number: int) -> str:
    """Return a chunk of text."""
    words = [f"w{min(int(rng.paretovariate(0.7)), VOCABULARY)}" for _ in range(WORDS - 10)]
    words += ["".join(rng.choices(CHINESE, k=4)) for _ in range(10)]
    rng.shuffle(words)
    return f"chunk {number}: {' '.join(words)}"


async def fill(client: Client, start: int, end: int, rng: random.Random) -> None:
    """Append chunks as events."""
    for first in range(start, end, APPEND):
        events = [
            {"session_id": f"s{number % 50}", "actor": "user", "content": chunk(rng, number)}
            for number in range(first, min(first + APPEND, end))
        ]
        await client.call("event.append_many", {"events": events}, deadline_s=60)


async def ask(client: Client, mode: str, rng: random.Random) -> dict[str, float]:
    """Time searches."""
    took = []
    for _ in range(QUERIES):
        words = [f"w{min(int(rng.paretovariate(0.7)), VOCABULARY)}" for _ in range(3)]
        query = " ".join([*words, "".join(rng.choices(CHINESE, k=2))])
        began = time.perf_counter()
        found = await client.call("memory.search", {"query": query, "mode": mode, "deadline_ms": 60_000}, deadline_s=60)
        took.append((time.perf_counter() - began) * 1000)
        assert not found["degraded"], found["degraded"]
    return {"p50": percentile(took, 0.5), "p99": percentile(took, 0.99)}


def complete(wanted: int) -> Any:
    """Return the check for a complete index."""
    return lambda s: (
        s["covers"] is not None
        and s["covers"]["event_seq"] >= wanted
        and s["building"] is None
        and s["vectors"]["have"] == s["vectors"]["want"]
    )


async def run(data: Path, config: Path, sizes: list[int]) -> None:
    """Print a row per size."""
    rng = random.Random(1)
    daemon = Daemon(data, config)
    daemon.start()
    await daemon.connected()
    print(f"{'chunks':>8} {'keyword p50':>12} {'p99':>7} {'hybrid p50':>12} {'p99':>7} {'build s':>8}  RSS MiB")
    async with open_socket(daemon.socket_path) as client:
        before = 0
        for size in sizes:
            await fill(client, before, size, rng)
            before = size
            await wait_until(client, complete(size), 7200, method="index.status")
            await client.call("index.rebuild")
            number = (await client.call("index.status"))["builds"]["started"]
            await wait_until(client, lambda s, n=number: s["builds"]["published"] >= n, 7200, method="index.status")
            await wait_until(client, lambda s: s["searcher"]["loaded"] == 2)
            await trio.sleep(5)  # let the workers that were just equipped come to rest
            keyword, hybrid = await ask(client, "keyword", rng), await ask(client, "hybrid", rng)
            status = await client.call("system.status")
            cells = f"{keyword['p50']:12.1f} {keyword['p99']:7.1f} {hybrid['p50']:12.1f} {hybrid['p99']:7.1f}"
            print(f"{size:8} {cells} {status['index']['build_ms'] / 1000:8.1f}  {memory(status)}", flush=True)
    await daemon.stop()


def memory(status: dict[str, Any]) -> str:
    """Return the resident memory of every process."""
    parts = [f"daemon {status['rss_bytes'] >> 20}"]
    for actor in status["actors"].values():
        parts += [f"{worker['name']} {worker['rss_bytes'] >> 20}" for worker in actor["workers"]]
    return ", ".join(parts)


def main(arguments: list[str]) -> None:
    """Print the table; `--sizes 1000,20000` for fewer."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m bench search", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    sizes = [int(size) for size in parser.parse_args(arguments).sizes.split(",")]
    print("\n# search")
    with hashing() as embedding, data_directory() as data:
        config = data.with_name("config.toml")
        config.write_text(f"{embedding}[generation_builder]\nembed_texts_per_call = 64\n", encoding="utf-8")
        trio.run(run, data, config, sizes)
