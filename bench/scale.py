"""Full rebuilds from a thousand to a million chunks: how long, how much memory, what a publication takes, who notices.

A row per size. Markdown notes are indexed with vectors from the deterministic endpoint of the incident; then the three
clients of the incident (appends, approvals, searches) work for a while without and for a while with a full rebuild,
twice each, in turns. Publications (from the flip of the pointer until the searcher serves what it names) are those of
30 deltas, each after one append. Memory is what `system.status` reports every quarter of a second, per process.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec

from bench.incident.bulkhead import Bulkhead
from bench.incident.measure import Numbers, numbers, percentile
from bench.incident.results import IDLE, REBUILD, Rebuild, Window
from bench.incident.windows import Seat
from bench.incident.work import Sizes, write_notes
from chaos.daemon import data_directory
from chaos.endpoint import endpoint
from supervisor.client import Client

SIZES = (1_000, 10_000, 100_000)
DIMENSIONS = 64
CHUNKS_PER_FILE = 200
PUBLICATIONS = 30
PUBLISHED_S_MAX = 120.0
ROUNDS = 2
SAMPLE_S = 0.25
POLL_S = 0.05
MIB = 2**20
# A full generation is made by the first, deltas and publications by the second.
REBUILDER, BUILDER, DAEMON = "rebuilder", "generation_builder", "daemon"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one size. Memory in bytes, publications in milliseconds."""

    chunks: int
    first_index_s: float
    rebuilds: list[Rebuild]
    publish_ms: list[float]
    idle_bytes: dict[str, int]  # the most of each process while nothing was rebuilt
    peak_bytes: dict[str, int]  # the same over everything
    idle: dict[str, Numbers]
    rebuild: dict[str, Numbers]


class Memory:
    """Asks for the memory of every process in a thread, and keeps the most by name."""

    def __init__(self, data: Path) -> None:
        self._client = Client(str(data), start=False)
        self.peak: dict[str, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look every SAMPLE_S while entered."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._run, args=(stopping,), name="memory", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()

    def _run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            for name, rss_bytes in by_process(ask(self._client, "system.status")):
                self.peak[name] = max(self.peak.get(name, 0), rss_bytes)
            stopping.wait(SAMPLE_S)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


def ask(client: Client, method: str, params: dict[str, object] | None = None) -> dict[str, Any]:
    """Make a request; return its answer."""
    return cast(dict[str, Any], client.request(method, params or {}))


def by_process(status: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Return the resident bytes of the daemon and of every worker."""
    yield DAEMON, status["rss_bytes"]
    for actor in status["actors"].values():
        for worker in actor["workers"]:
            yield worker["name"], worker["rss_bytes"]


def measure(place: Path, sizes: Sizes, port: int, *, seconds: float) -> Row:
    """Index, rebuild and publish at one size."""
    notes = place / "notes"
    write_notes(notes, sizes)
    system = Bulkhead(place, notes, sizes, port)
    seat = Seat(system)
    memory: Memory | None = None
    try:
        took = seat.prepare()
        memory = Memory(system.folder)
        idle_bytes: dict[str, int] = {}
        for number in range(ROUNDS):
            _say(f"{sizes.chunks:,} chunks, round {number + 1} of {ROUNDS}")
            with memory.watched():
                seat.idle(seconds)
            # The rebuilds of the round before are over, but an allocator gives back late: only the first turn counts.
            idle_bytes = idle_bytes or dict(memory.peak)
            with memory.watched():
                seat.rebuild(seconds / 4, 0.0)
        published = publications(Client(str(system.folder), start=False))
        return Row(
            chunks=sizes.chunks,
            first_index_s=took,
            rebuilds=[each for window in seat.windows for each in window.rebuilds],
            publish_ms=published,
            idle_bytes=idle_bytes,
            peak_bytes=memory.peak,
            idle=by_kind(seat.windows, IDLE),
            rebuild=by_kind(seat.windows, REBUILD),
        )
    finally:
        if memory is not None:
            memory.close()
        seat.close()


def by_kind(windows: list[Window], phase: str) -> dict[str, Numbers]:
    """Return the numbers of each kind of operation in the windows of a phase."""
    chosen = [window for window in windows if window.phase == phase]
    return {kind: numbers(chosen, kind) for kind in ("append", "approval", "search")}


def publications(client: Client) -> list[float]:
    """Append, and note how long the publication of what carries it took, in milliseconds."""
    found = []
    for number in range(PUBLICATIONS):
        event: dict[str, object] = {"session_id": "publications", "actor": "user", "content": f"publication {number}"}
        appended = ask(client, "event.append", event)
        found.append(_published(client, appended["seq"])["publish_ms"])
    client.close()
    return found


def _published(client: Client, seq: int) -> dict[str, Any]:
    give_up = time.monotonic() + PUBLISHED_S_MAX
    while True:
        status = ask(client, "index.status")
        if status["covers"] is not None and status["covers"]["event_seq"] >= seq:
            return status
        if time.monotonic() > give_up:
            raise TimeoutError(f"event {seq} is in no published view after {PUBLISHED_S_MAX:g} s: {status}")
        time.sleep(POLL_S)


# ------------------------------------------------------------ the table

HEAD = (
    "| chunks | first index s | rebuild s | publication p50 / p99 / max ms | rebuilder MiB | builder MiB "
    "| daemon MiB idle / most | append p99 idle / rebuild ms | search p99 idle / rebuild ms | errors |"
)


def table(rows: list[Row]) -> str:
    """Return the table as Markdown."""
    return "\n".join([HEAD, "|---:" * 10 + "|", *map(line, rows)])


def line(row: Row) -> str:
    """Return one size as a line of the table."""
    rebuilt = sorted(each.end - each.begin for each in row.rebuilds)
    published = " / ".join(f"{percentile(row.publish_ms, share):.1f}" for share in (0.5, 0.99, 1.0))
    cells = (
        f"{row.chunks:,}",
        f"{row.first_index_s:.0f}",
        f"{rebuilt[len(rebuilt) // 2]:.1f}",
        published,
        _mib(row.peak_bytes.get(REBUILDER, 0)),
        _mib(row.peak_bytes.get(BUILDER, 0)),
        f"{_mib(row.idle_bytes[DAEMON])} / {_mib(row.peak_bytes[DAEMON])}",
        *(f"{row.idle[kind].p99_ms:.0f} / {row.rebuild[kind].p99_ms:.0f}" for kind in ("append", "search")),
        str(sum(each.errors for phase in (row.idle, row.rebuild) for each in phase.values())),
    )
    return f"| {' | '.join(cells)} |"


def _mib(size: int) -> str:
    return f"{size / MIB:.0f}"


def _say(text: str) -> None:
    print(f"scale: {text}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    """Print the table; `--sizes 1000,1000000` for others (a million takes an hour or two)."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m bench scale", description=__doc__)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--dimensions", type=int, default=DIMENSIONS)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of an idle window (default 20)")
    parser.add_argument("--out", type=Path, help="write the raw results here, as JSON lines")
    given = parser.parse_args(arguments)
    rows = []
    for chunks in (int(size) for size in given.sizes.split(",")):
        sizes = Sizes(chunks=chunks, files=max(1, chunks // CHUNKS_PER_FILE), dimensions=given.dimensions)
        with ExitStack() as stack:
            place = stack.enter_context(data_directory()).parent
            port = stack.enter_context(endpoint(sizes.dimensions))
            rows.append(measure(place, sizes, port, seconds=given.seconds))
        print(line(rows[-1]), file=sys.stderr, flush=True)
        if given.out:
            given.out.parent.mkdir(parents=True, exist_ok=True)
            with given.out.open("ab") as out:
                out.write(msgspec.json.encode(rows[-1]) + b"\n")
    print(f"\n# scale, {given.dimensions} dimensions\n\n{table(rows)}")
