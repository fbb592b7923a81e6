"""A JSON-RPC client for trio: one connection, any number of requests at a time.

Speaks to a bridge over its pipes (`open_bridge`) or to the daemon's socket (`open_socket`). Every wait is bounded
by `LATE_S` beyond the deadline that the request itself has, so a hang shows as `Hung` and never as a stuck test.
"""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio

ROOT = Path(__file__).resolve().parent.parent
DEADLINE_S = 10.0
LATE_S = 5.0
# Whatever works for a data directory under test carries its path in this variable, so that an orphan is found too.
FAMILY = "BULKHEAD_CHAOS_FAMILY"


class RpcError(Exception):
    """The daemon, or the bridge for it, answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.code: int = error["code"]
        self.message: str = error["message"]
        self.data: dict[str, Any] = error.get("data") or {}

    @property
    def outcome(self) -> str:
        """Return what became of the request, as far as is known."""
        return str(self.data.get("outcome", "unknown"))


class Hung(Exception):
    """A request was not answered long after its deadline: the one thing that must never happen."""


class Disconnected(Exception):
    """The connection ended before the answer came."""


class Client:
    """One connection."""

    def __init__(self, send: trio.abc.SendStream, receive: trio.abc.ReceiveStream) -> None:
        self._send = send
        self._receive = receive
        self._ids = itertools.count(1)
        self._waiting: dict[int, tuple[trio.Event, list[dict[str, Any]]]] = {}
        self._lock = trio.Lock()
        self.bad_lines = 0
        self.notifications: list[dict[str, Any]] = []
        self.strays: list[dict[str, Any]] = []  # answers to lines that were sent raw
        self.closed = False
        self.pid: int | None = None  # of the bridge, when there is one

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Read answers until the other end closes."""
        task_status.started()
        buffer = b""
        try:
            while data := await self._receive.receive_some(1 << 20):
                *lines, buffer = (buffer + bytes(data)).split(b"\n")
                for line in lines:
                    self._deliver(line)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.closed = True
            for event, _ in self._waiting.values():
                event.set()

    def _deliver(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self.bad_lines += 1
            return
        if "method" in message:
            self.notifications.append(message)
        elif message.get("id") in self._waiting:
            event, box = self._waiting[message["id"]]
            box.append(message)
            event.set()
        else:
            self.strays.append(message)

    async def send_line(self, line: bytes) -> None:
        """Send raw bytes as they are."""
        async with self._lock:
            await self._send.send_all(line)

    async def call(self, method: str, params: dict[str, Any] | None = None, *, deadline_s: float = DEADLINE_S) -> Any:
        """Send a request and return its result; raise RpcError, Disconnected or Hung."""
        number = next(self._ids)
        event, box = self._waiting[number] = (trio.Event(), [])
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params or {}}
        try:
            if self.closed:
                raise Disconnected(method)
            try:
                await self.send_line(json.dumps(request).encode() + b"\n")
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise Disconnected(method) from error
            with trio.move_on_after(deadline_s + LATE_S) as late:
                await event.wait()
            if late.cancelled_caught:
                raise Hung(f"{method} was not answered within {deadline_s + LATE_S} s")
        finally:
            del self._waiting[number]
        if not box:
            raise Disconnected(method)
        if "error" in box[0]:
            raise RpcError(box[0]["error"])
        return box[0]["result"]

    async def close(self) -> None:
        """Close our end."""
        await self._send.aclose()


@asynccontextmanager
async def _reading(client: Client) -> AsyncIterator[Client]:
    """Read in the background. What the body raises comes out as it is, not inside a group."""
    raised: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(client.run)
        try:
            yield client
        except Exception as error:
            raised = error
        nursery.cancel_scope.cancel()
    if raised is not None:
        raise raised


@asynccontextmanager
async def open_socket(path: str) -> AsyncIterator[Client]:
    """Connect to a daemon's socket."""
    async with await trio.open_unix_socket(path) as stream, _reading(Client(stream, stream)) as client:
        yield client


def environment(data: Path) -> dict[str, str]:
    """Return the environment for what is started on a data directory; its children inherit the mark."""
    return {**os.environ, "PYTHONPATH": str(ROOT), FAMILY: str(data), "XDG_STATE_HOME": str(data.parent / "state")}


@asynccontextmanager
async def open_bridge(data: Path, config: Path | None = None) -> AsyncIterator[Client]:
    """Start a bridge (which starts the daemon when there is none) and speak through its pipes."""
    command = [sys.executable, "-P", "-m", "supervisor", "stdio", "--data", str(data)]
    if config is not None:
        command += ["--config", str(config)]
    process = subprocess.Popen(  # noqa: ASYNC220 - a few ms, and trio would fork in a thread
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(data),
    )
    assert process.stdin is not None and process.stdout is not None
    send = trio.lowlevel.FdStream(os.dup(process.stdin.fileno()))
    receive = trio.lowlevel.FdStream(os.dup(process.stdout.fileno()))
    process.stdin.close()
    process.stdout.close()
    try:
        async with send, receive, _reading(Client(send, receive)) as client:
            client.pid = process.pid
            yield client
    finally:
        process.terminate()
        process.wait()
