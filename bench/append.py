"""Appends: latency and throughput for 1, 16 and 128 clients, fsync before each acknowledgement.

Each client is a connection of its own on the daemon's socket, appends 1 KiB events one after the other (the next when
the last was acknowledged), and notes how long each took. As a yardstick the same run times a bare write + fdatasync of
1 KiB on the same disk; the ratio of the two is what stays comparable between machines.
"""

import json
import os
import statistics
import time
from pathlib import Path

import trio

from chaos.client import Client, open_socket
from chaos.daemon import Daemon, data_directory
from chaos.load import percentile

CLIENTS = (1, 16, 128)
SECONDS = 8.0
CONTENT = "an event of about one kibibyte, 一个事件 " * 24


def bare_fsync(folder: Path, count: int = 300) -> float:
    """Return the median ms of appending 1 KiB to a file and waiting for the disk."""
    fd = os.open(folder / "yardstick", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    took = []
    for _ in range(count):
        began = time.perf_counter()
        os.write(fd, b"x" * 1024)
        os.fsync(fd)
        took.append((time.perf_counter() - began) * 1000)
    os.close(fd)
    return statistics.median(took)


async def append_for(client: Client, session: str, until: float, took: list[float]) -> None:
    """Append until the time is up."""
    params = {"session_id": session, "actor": "user", "content": CONTENT}
    while time.monotonic() < until:
        began = time.perf_counter()
        await client.call("event.append", params)
        took.append((time.perf_counter() - began) * 1000)


async def measure(path: str, clients: int) -> dict[str, float]:
    """Run one number of clients."""
    took: list[float] = []
    until = time.monotonic() + SECONDS

    async def one(index: int) -> None:
        async with open_socket(path) as client:
            await append_for(client, f"s{index}", until, took)

    async with trio.open_nursery() as nursery:
        for index in range(clients):
            nursery.start_soon(one, index)
    return {
        "clients": clients,
        "per_s": len(took) / SECONDS,
        "p50_ms": percentile(took, 0.5),
        "p99_ms": percentile(took, 0.99),
        "max_ms": max(took),
    }


async def run(data: Path, config: Path) -> None:
    """Print one row per number of clients."""
    yardstick = bare_fsync(data)
    print(f"bare write + fsync of 1 KiB: {yardstick:.2f} ms (median)")
    print(f"{'clients':>8} {'appends/s':>10} {'p50 ms':>8} {'p99 ms':>8} {'max ms':>8} {'p50 / fsync':>12}")
    daemon = Daemon(data, config)
    daemon.start()
    await daemon.connected()
    for clients in CLIENTS:
        row = await measure(daemon.socket_path, clients)
        cells = f"{row['per_s']:10.0f} {row['p50_ms']:8.2f} {row['p99_ms']:8.2f} {row['max_ms']:8.1f}"
        print(f"{clients:8} {cells} {row['p50_ms'] / yardstick:12.1f}", flush=True)
    async with open_socket(daemon.socket_path) as client:
        status = await client.call("system.status")
        print(f"loop lag ms: {json.dumps(status['loop_lag_ms'])}, daemon RSS {status['rss_bytes'] >> 20} MiB")
    await daemon.stop()


def main(arguments: list[str]) -> None:
    """Print the table."""
    print("\n# append")
    with data_directory() as data:
        data.mkdir(parents=True)
        config = data.with_name("config.toml")
        config.write_text('[embedding]\nprovider = "none"\n', encoding="utf-8")
        trio.run(run, data, config)
