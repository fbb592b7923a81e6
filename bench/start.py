"""Starts: exec of the daemon to its socket, `initialize` over a bridge warm and cold, first keyword hit.

Each is repeated and the median and the worst are printed. *Cold* has no daemon: the bridge starts it. *First hit* is
from the exec of a bridge without a daemon to the answer of a search that finds an event appended just before it.
"""

import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import trio

from chaos.client import ROOT, open_socket
from chaos.daemon import Daemon, data_directory, wait_until

REPEATS = 10
HELLO: dict[str, object] = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def line(number: int, method: str, params: dict[str, object]) -> bytes:
    """Return a request."""
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


def bridge(data: Path, requests: list[bytes]) -> float:
    """Return the ms from the exec of a bridge to its last answer; requests go out one after the other."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "supervisor", "stdio", "--data", str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdin is not None and process.stdout is not None
    for request in requests:
        process.stdin.write(request)
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        assert "result" in answer, answer
    took = (time.perf_counter() - began) * 1000
    process.stdin.close()
    process.stdout.close()
    process.wait()
    return took


def daemon_accepts(data: Path) -> tuple[Daemon, float]:
    """Start a daemon and return it with the ms from its exec until a connection is accepted."""
    daemon = Daemon(data)
    began = time.perf_counter()
    daemon.start()
    while True:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.connect(daemon.socket_path)
            return daemon, (time.perf_counter() - began) * 1000
        except OSError:
            select.select([], [], [], 0.002)
        finally:
            client.close()


async def settled(daemon: Daemon) -> None:
    """Wait until a daemon has loaded everything: that is when it counts as running."""
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        await wait_until(client, lambda s: s["searcher"]["workers_ready"] == 2 and all(s["ready"].values()))
    await trio.sleep(1)


def stop(daemon: Daemon) -> None:
    """Stop a daemon."""
    trio.run(daemon.stop)


def show(name: str, took: list[float]) -> None:
    """Print a row."""
    print(f"{name:44} median {statistics.median(took):7.0f} ms   worst {max(took):7.0f} ms", flush=True)


def main(arguments: list[str]) -> None:
    """Print the table."""
    print("\n# start")
    initialize = line(1, "initialize", HELLO)
    event = line(2, "event.append", {"session_id": "s", "actor": "user", "content": "the first event 第一"})
    search = line(3, "memory.search", {"query": "第一"})
    accepts, warm, cold, first = [], [], [], []
    for _ in range(REPEATS):
        with data_directory() as data:
            daemon, took = daemon_accepts(data)
            accepts.append(took)
            trio.run(settled, daemon)
            warm.append(bridge(data, [initialize]))
            stop(daemon)
        with data_directory() as data:
            cold.append(bridge(data, [initialize]))
            stop(Daemon(data))
        with data_directory() as data:
            first.append(bridge(data, [event, search]))
            stop(Daemon(data))
    show("daemon: exec to accepted connection", accepts)
    show("bridge to a running daemon: initialize", warm)
    show("bridge that starts the daemon: initialize", cold)
    show("no daemon: exec to first keyword hit", first)
