"""Bulkhead as one side of the comparison: a real daemon with its defaults, and clients on its real socket.

An approval is written as a version of a unit: the durable write of core_writer that an approval costs.
"""

import sys
import time
from pathlib import Path
from typing import Any, cast

import psutil
import trio

from bench.incident.memory import BulkheadSpec, Refused
from bench.incident.results import BULKHEAD, Rebuild
from bench.incident.work import Sizes, message, question
from chaos.daemon import Daemon
from chaos.vectors import MODEL
from supervisor.client import Client, DaemonUnavailable, RequestFailed

DEADLINE_S = 10.0
INDEXED_S_MAX = 4 * 3600.0
SETTLED_S_MAX = 180.0
REBUILT_S_MAX = 3600.0
POLL_S = 0.05
SHOW_EVERY_S = 30.0
CACHE_BYTES_MIN = 536_870_912
SESSION = "the conversation"


class BulkheadMemory:
    """A client on the socket; implements `memory.Memory`."""

    def __init__(self, data: str) -> None:
        self._client = Client(data, start=False)

    def append(self, number: int) -> None:
        """Append an event."""
        actor = "user" if number % 2 else "assistant"
        self._call("event.append", {"session_id": SESSION, "actor": actor, "content": message(number)})

    def approve(self, number: int) -> None:
        """Write a version of one of a hundred units."""
        text = f"approval {number}: the tool may run"
        unit = {"unit_id": f"approval-{number % 100}", "type": "plan", "scope": "session", "session_id": SESSION}
        self._call("unit.put", {**unit, "text": text})

    def search(self, number: int) -> tuple[str, ...]:
        """Search everything, by words and meaning."""
        found = self._call("memory.search", {"query": question(number)})
        return tuple(each["code"] for each in found["degraded"])

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _call(self, method: str, params: dict[str, object]) -> Any:
        try:
            return self._client.request(method, params, deadline_s=DEADLINE_S)
        except RequestFailed as error:
            raise Refused(str(error.code)) from error
        except DaemonUnavailable as error:
            raise Refused("unavailable") from error


class Bulkhead:
    """The system under measurement; implements `windows.System`."""

    name = BULKHEAD

    def __init__(self, place: Path, notes: Path, sizes: Sizes, endpoint_port: int, *, builder: str = "") -> None:
        """Take `builder` as further lines of [generation_builder]."""
        self.folder = place / "bulkhead"
        self._notes = notes
        self._sizes = sizes
        config = place / "bulkhead.toml"
        config.write_text(configuration(sizes, endpoint_port, builder), encoding="utf-8")
        self._daemon = Daemon(self.folder, config)
        self._client = Client(str(self.folder), start=False)

    @property
    def spec(self) -> BulkheadSpec:
        """Return where its clients find it."""
        return BulkheadSpec(data=str(self.folder))

    def prepare(self) -> None:
        """Start the daemon, index and embed the notes."""
        self._daemon.start()
        trio.run(self._daemon.connected)
        self._request("source.add", {"path": str(self._notes)})
        self._wait_complete(INDEXED_S_MAX)
        chunks = self._status()["rows"]["documents"]
        assert chunks == self._sizes.chunks, f"the notes gave {chunks} chunks, not {self._sizes.chunks}"

    def rebuild(self) -> Rebuild:
        """Rebuild the whole index, from the request until the new generation serves. Raises TimeoutError."""
        began = time.monotonic()
        number = self._request("index.rebuild", {"reason": "bench"})["build"]
        while (status := self._status())["builds"]["published"] < number:
            if time.monotonic() - began > REBUILT_S_MAX:
                raise TimeoutError(f"index.rebuild: not published after {REBUILT_S_MAX:g} s: {status}")
            time.sleep(POLL_S)
        publish_ms = status.get("publish_ms")
        return Rebuild(begin=began, end=time.monotonic(), publish_s=None if publish_ms is None else publish_ms / 1000)

    def settle(self) -> None:
        """Wait until it has nothing left to do, so that it does not disturb the other one's turn."""
        try:
            self._wait_complete(SETTLED_S_MAX)
        except TimeoutError as error:
            print(f"Bulkhead is still at work: {error}", file=sys.stderr)

    def pids(self) -> list[int]:
        """Return its processes; those of its clients are not among them."""
        pid = self._daemon.pid()
        if pid is None:
            return []
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]

    def close(self) -> None:
        """End the daemon."""
        self._client.close()
        if self._daemon.process is not None:
            trio.run(self._daemon.stop)

    def _wait_complete(self, seconds: float) -> None:
        """Wait until the index holds everything, with its vector, and nothing is being built."""
        give_up, show_at = time.monotonic() + seconds, time.monotonic() + SHOW_EVERY_S
        while not complete(status := self._status(), self._sizes.files):
            if time.monotonic() > give_up:
                raise TimeoutError(f"the index is not complete after {seconds:g} s: {status}")
            if time.monotonic() > show_at:
                show_at += SHOW_EVERY_S
                print(f"  Bulkhead: {status['rows']}, vectors {status['vectors']}", file=sys.stderr)
            time.sleep(POLL_S)

    def _status(self) -> dict[str, Any]:
        return self._request("index.status", {})

    def _request(self, method: str, params: dict[str, object]) -> dict[str, Any]:
        return cast(dict[str, Any], self._client.request(method, params))


def complete(status: dict[str, Any], files: int) -> bool:
    """Say whether an index holds everything that there is, and nothing is under way."""
    behind, vectors = status["behind"], status["vectors"]
    return bool(
        status["files"] == files
        and status["rows"]["documents"] > 0
        and status["building"] is None
        and behind["events"] == behind["units"] == 0
        and vectors["have"] == vectors["want"]
    )


def configuration(sizes: Sizes, endpoint_port: int, builder: str) -> str:
    """Return the configuration: the defaults, but for the model and what a stand-in for it on loopback allows."""
    cache_bytes = max(CACHE_BYTES_MIN, 2 * sizes.chunks * sizes.dimensions * 4)
    return f"""
[embedding]
provider = "openai-compatible"
base_url = "http://127.0.0.1:{endpoint_port}/v1"
model = "{MODEL}"
dimensions = {sizes.dimensions}
[generation_builder]
embed_texts_per_call = 64         # the endpoint is no model, so more at a time needs no more memory
vectors_publish_ms = 5000         # more often than by default: the other one waits for the vectors before his turn
{builder}
[cache_manager]
bytes_max = {cache_bytes}         # room for every vector twice
"""
