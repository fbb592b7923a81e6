"""The doors: unix socket and stdio. One connection is one client, and only ever harms itself.

Per connection: a bounded number of requests in flight (beyond it nothing more is read), a bounded outbox (a client
that does not read is waited for, then closed), lines of bounded length. A client that vanishes has its requests
cancelled; a write that was already handed over goes on and is found again under its request_id.
"""

import logging
import os
import socket
import struct
import sys
import time
from collections import deque
from typing import Protocol

import trio

from actors.errors import BulkheadError, ShuttingDown
from supervisor import mcp
from supervisor.config import ProtocolLimits
from supervisor.routes import Routes, Scope, UnknownMethod
from supervisor.rpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    Id,
    LineSplitter,
    Malformed,
    Request,
    encode_error,
    encode_failure,
    encode_result,
    parse,
)

READ_BYTES = 256 * 1024
log = logging.getLogger("bulkhead.listener")


class Stream(Protocol):
    """What a connection needs of its transport."""

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return some bytes, none at the end."""
        ...

    async def send_all(self, data: bytes) -> None:
        """Write all of it."""
        ...

    async def aclose(self) -> None:
        """Close it."""
        ...


class Outbox:
    """Answers on their way to one client, bounded in lines and bytes."""

    def __init__(self, limits: ProtocolLimits) -> None:
        self._limits = limits
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._changed = trio.Event()
        self._closed = False

    async def put(self, line: bytes) -> None:
        """Queue a line, waiting for room; the writer's stall limit bounds the wait."""
        while self._lines and not self._closed and not self._has_room(len(line)):
            await self._wait()
        self._lines.append(line)
        self._bytes += len(line)
        self._wake()

    def _has_room(self, size: int) -> bool:
        return len(self._lines) < self._limits.outbox_lines_max and self._bytes + size <= self._limits.outbox_bytes_max

    async def take(self) -> bytes | None:
        """Return the next chunk to write, several lines at once where they are short; None after `close`."""
        while not self._lines:
            if self._closed:
                return None
            await self._wait()
        chunk = [self._lines.popleft()]
        size = len(chunk[0])
        while self._lines and size + len(self._lines[0]) <= READ_BYTES:
            chunk.append(self._lines.popleft())
            size += len(chunk[-1])
        self._bytes -= size
        self._wake()
        return b"".join(chunk)

    def close(self) -> None:
        """Let the writer end once everything is written."""
        self._closed = True
        self._wake()

    async def _wait(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


class Connection:
    """One client."""

    def __init__(self, stream: Stream, routes: Routes, limits: ProtocolLimits) -> None:
        self._stream = stream
        self._routes = routes
        self._limits = limits
        self._outbox = Outbox(limits)
        self._in_flight: dict[Id, trio.CancelScope] = {}
        self._slots = trio.CapacityLimiter(limits.in_flight_max)
        self._last_posted: trio.Event | None = None
        self.draining = False

    async def run(self) -> None:
        """Serve until the client closes its end; answers that are under way are still delivered."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, nursery.cancel_scope)
                async with trio.open_nursery() as requests:
                    await self._read(requests)
                    # Half-closed: a script that sent its lines and closed gets its answers before we leave.
                self._outbox.close()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client is gone; its requests were cancelled with the nursery
        finally:
            with trio.move_on_after(1, shield=True):
                await self._stream.aclose()

    async def _write(self, scope: trio.CancelScope) -> None:
        while (chunk := await self._outbox.take()) is not None:
            with trio.move_on_after(self._limits.stalled_client_ms / 1000) as stall:
                await self._stream.send_all(chunk)
            if stall.cancelled_caught:
                log.warning("client does not read and is closed", extra={"duration_ms": self._limits.stalled_client_ms})
                scope.cancel("the client does not read")
                return

    async def _read(self, nursery: trio.Nursery) -> None:
        splitter = LineSplitter(self._limits.line_bytes_max)
        while data := await self._stream.receive_some(READ_BYTES):
            for line in splitter.feed(bytes(data)):
                await self._receive(line, nursery)

    async def _receive(self, line: bytes | None, nursery: trio.Nursery) -> None:
        if line is None:
            text = f"the line is longer than {self._limits.line_bytes_max} bytes (config: protocol.line_bytes_max)"
            await self._outbox.put(encode_error(None, INVALID_REQUEST, text))
            return
        request = parse(line)
        if isinstance(request, Malformed):
            await self._outbox.put(encode_error(request.id, request.code, request.message))
        elif request.id is None and request.method.startswith("notifications/"):
            self._notice(request)
        elif request.id is not None and request.id in self._in_flight:
            text = f"id {request.id!r} is in use by a request that is still under way"
            await self._outbox.put(encode_error(None, INVALID_REQUEST, text))
        else:
            await self._begin(request, nursery)

    def _notice(self, request: Request) -> None:
        """Take a notification: a cancellation is obeyed, the others ask for nothing."""
        if request.method != "notifications/cancelled":
            return
        target = mcp.cancelled_id(request.params)
        scope = self._in_flight.get(target) if target is not None else None
        if scope is not None:
            scope.cancel("the client cancelled it")

    async def _begin(self, request: Request, nursery: trio.Nursery) -> None:
        """Give a request its slot and its turn, and let it run beside the others."""
        slot = object()
        await self._slots.acquire_on_behalf_of(slot)
        cancel = trio.CancelScope()
        if request.id is not None:
            self._in_flight[request.id] = cancel
        scope = Scope(deadline_ns=time.monotonic_ns() + self._limits.deadline_ms * 1_000_000)
        if self._routes.is_ordered(mcp.native_method(request)):
            turn, self._last_posted = self._last_posted, trio.Event()
            scope = Scope(deadline_ns=scope.deadline_ns, turn=turn, posted=self._last_posted)
        nursery.start_soon(self._serve, request, scope, cancel, slot)

    async def _serve(self, request: Request, scope: Scope, cancel: trio.CancelScope, slot: object) -> None:
        try:
            with cancel:
                line = await self._answer(request, scope)
                # Until the answer is queued the id counts as in use; a cancellation that comes now is too late.
                self._forget(request)
                if request.id is not None:
                    await self._outbox.put(line)
        finally:
            scope.mark_posted()
            self._forget(request)
            self._slots.release_on_behalf_of(slot)

    def _forget(self, request: Request) -> None:
        if request.id is not None:
            self._in_flight.pop(request.id, None)

    async def _answer(self, request: Request, scope: Scope) -> bytes:
        request_id = request.id if request.id is not None else 0
        try:
            if self.draining and request.method not in ALWAYS:
                raise ShuttingDown("the daemon is shutting down")
            if mcp.is_mcp(request.method):
                return encode_result(request_id, await self._answer_mcp(request, scope))
            return encode_result(request_id, await self._routes.call(request.method, request.params, scope))
        except UnknownMethod as error:
            return encode_error(request_id, error.code, error.message)
        except BulkheadError as error:
            return encode_failure(request_id, error)
        except Exception as error:
            # A bug in a route: the client is told, the log has the traceback, and nobody else notices.
            log.exception("route failed", extra={"method": request.method})
            return encode_error(request_id, INTERNAL_ERROR, f"internal error in {request.method}: {error!r}")

    async def _answer_mcp(self, request: Request, scope: Scope) -> object:
        match request.method:
            case "initialize":
                return mcp.initialize_result(request.params, self._routes.health.version)
            case "ping":
                return {}
            case "tools/list":
                return mcp.list_tools()
            case _:
                tool, params = mcp.native_request(request.params)
                try:
                    mcp.check_arguments(request.params)
                    return mcp.tool_result(await self._routes.call(tool.method, params, scope))
                except BulkheadError as error:
                    return mcp.tool_failure(error)


ALWAYS = frozenset({"system.health", "system.status", "system.metrics", "hello", "ping"})


class Listener:
    """Accepts clients on the socket, one task each, up to a limit."""

    def __init__(self, routes: Routes, limits: ProtocolLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._connections: set[Connection] = set()

    async def serve_socket(self, listening: socket.socket) -> None:
        """Accept for ever. Out of descriptors means a pause, never a spin and never the end."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    log.warning("accept failed", extra={"error": str(error)})
                    await trio.sleep(0.1)
                    continue
                nursery.start_soon(self._serve_one, stream)

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        if not is_own_user(stream.socket):
            log.warning("refused a client of another user")
            await stream.aclose()
        elif len(self._connections) >= self._limits.clients_max:
            await refuse(stream, f"{len(self._connections)} clients are connected, limit is {self._limits.clients_max}")
        else:
            await self.serve(stream)

    async def serve(self, stream: Stream) -> None:
        """Serve one client on any stream until it leaves."""
        connection = Connection(stream, self._routes, self._limits)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    def drain(self) -> None:
        """Refuse new requests on every connection; those under way are answered."""
        for connection in self._connections:
            connection.draining = True


async def refuse(stream: trio.SocketStream, text: str) -> None:
    """Tell a client why it is not served, and close."""
    with trio.move_on_after(1):
        await stream.send_all(encode_error(None, 1001, f"{text} (config: protocol.clients_max)"))
    with trio.move_on_after(1, shield=True):
        await stream.aclose()


def is_own_user(peer: trio.socket.SocketType) -> bool:
    """Say whether the peer of a unix socket is our user; where the system cannot tell, the folder's mode must do."""
    if sys.platform != "linux":
        return True
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    _, uid, _ = struct.unpack("iII", credentials)
    return bool(uid == os.getuid())


class StdioStream:
    """The daemon's own stdin and stdout as one stream; the descriptors are private copies (see daemon.py)."""

    def __init__(self, fd_in: int, fd_out: int) -> None:
        self._in = trio.lowlevel.FdStream(fd_in)
        self._out = trio.lowlevel.FdStream(fd_out)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return some bytes of stdin, none at its end."""
        return await self._in.receive_some(max_bytes)

    async def send_all(self, data: bytes) -> None:
        """Write to stdout."""
        await self._out.send_all(data)

    async def aclose(self) -> None:
        """Close both."""
        await self._in.aclose()
        await self._out.aclose()
