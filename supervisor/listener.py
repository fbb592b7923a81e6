"""The doors: unix socket and stdio. One connection is one client, and only ever harms itself.

Per connection: a bounded number of requests in flight, bounded in bytes too (beyond it nothing more is read); a
bounded outbox (a client that does not read is waited for, then closed); lines of bounded length; and a turn of the
loop after every few lines, so that a flood of tiny ones delays nobody. A client that vanishes has its requests
cancelled; a write that was already handed over goes on and is found again under its request_id. Of all connections
one process may hold a part only, and the last descriptors are kept for the daemon's own workers.
"""

import itertools
import logging
import math
import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

import trio

from actors.errors import BulkheadError, Overloaded, ShuttingDown
from supervisor import mcp
from supervisor.config import ProtocolLimits
from supervisor.in_flight import InFlight, Place
from supervisor.outbox import Outbox
from supervisor.peers import HangUp, Peer, peer_of
from supervisor.principals import Visitor
from supervisor.routes.routing import Routes, Scope, UnknownMethod
from supervisor.rpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    LineSplitter,
    Malformed,
    Request,
    encode_error,
    encode_failure,
    encode_result,
    parse,
)

READ_BYTES = 256 * 1024
# A client has the loop for so long at a time, whatever it sends; then it is everybody's turn. What is taken apart
# between two looks at the clock is small enough to be a ms or two, were it newlines only.
TURN_NS = 1_000_000
SLICE_BYTES = 2 * 1024
HANG_UP_LOOK_S = 0.05
ACCEPT_PAUSE_S = 0.1
ACCEPT_TOLD_S = 60.0
REFUSED_RETRY_MS = 1000
# Clients leave this share of the descriptors alone: an actor that restarts needs three for each worker.
DESCRIPTORS_KEPT_SHARE, DESCRIPTORS_KEPT_MAX = 8, 32
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


class Connection:
    """One client."""

    def __init__(self, stream: Stream, routes: Routes, limits: ProtocolLimits, *, number: int = 0) -> None:
        self._stream = stream
        self._routes = routes
        self._limits = limits
        self._number = number
        self._visitor = Visitor(routes.principals)
        self._outbox = Outbox(limits)
        self._in_flight = InFlight(count_max=limits.in_flight_max, bytes_max=limits.in_flight_bytes_max)
        self._hang_up = HangUp(stream)
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
                    while len(self._in_flight):
                        await self._unless_gone(self._in_flight.wait_left)
                self._outbox.close()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the client is gone; its requests were cancelled with the nursery
        finally:
            with trio.move_on_after(1, shield=True):
                await self._stream.aclose()

    async def _unless_gone(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait a moment for something while nothing is read; raise BrokenResourceError if the client hung up."""
        with trio.move_on_after(HANG_UP_LOOK_S):
            await wait()
        if self._hang_up.happened():
            raise trio.BrokenResourceError("the client hung up")

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
            turn_began_ns = time.monotonic_ns()
            for start in range(0, len(data), SLICE_BYTES):
                for line in splitter.feed(bytes(data[start : start + SLICE_BYTES])):
                    await self._receive(line, nursery)
                    turn_began_ns = await end_turn(turn_began_ns)
                turn_began_ns = await end_turn(turn_began_ns)

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
            await self._begin(request, len(line), nursery)

    def _notice(self, request: Request) -> None:
        """Take a notification: a cancellation is obeyed, the others ask for nothing."""
        if request.method != "notifications/cancelled":
            return
        target = mcp.cancelled_id(request.params)
        if target is not None:
            self._in_flight.cancel(target, "the client cancelled it")

    async def _begin(self, request: Request, size: int, nursery: trio.Nursery) -> None:
        """Give a request its place and its turn, and let it run beside the others."""
        while not self._in_flight.has_room(size):
            await self._unless_gone(self._in_flight.wait_left)
        place = self._in_flight.enter(request.id, size)
        turn: trio.Event | None = None
        posted: trio.Event | None = None
        if self._routes.is_ordered(mcp.native_method(request)):
            turn, self._last_posted = self._last_posted, trio.Event()
            posted = self._last_posted
        deadline_ns = time.monotonic_ns() + self._limits.deadline_ms * 1_000_000
        scope = Scope(
            deadline_ns=deadline_ns,
            visitor=self._visitor,
            client=self._number,
            turn=turn,
            posted=posted,
            notify=self._outbox.offer,
        )
        if request.method == "hello":
            # Who asks is settled before the next line is looked at; it waits for nobody but this client.
            await self._serve(request, scope, place)
        else:
            nursery.start_soon(self._serve, request, scope, place)

    async def _serve(self, request: Request, scope: Scope, place: Place) -> None:
        try:
            with place.scope:
                line = await self._answer(request, scope)
                self._in_flight.answered(place)
                if request.id is not None and not place.scope.cancel_called:
                    await self._outbox.put(line)
        finally:
            scope.mark_posted()
            self._in_flight.leave(place)

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
                    return mcp.tool_result(await self._routes.call(tool.method, params, scope), tool)
                except BulkheadError as error:
                    return mcp.tool_failure(error)


ALWAYS = frozenset({"system.health", "system.status", "system.metrics", "hello", "ping"})


class Listener:
    """Accepts clients on the socket, one task each, up to a limit."""

    def __init__(self, routes: Routes, limits: ProtocolLimits) -> None:
        self._routes = routes
        self._limits = limits
        self._connections: set[Connection] = set()
        self._by_process: Counter[int] = Counter()
        self._numbers = itertools.count(1)

    async def serve_socket(self, listening: socket.socket) -> None:
        """Accept for ever. Out of descriptors means a pause, never a spin and never the end."""
        doorman = Doorman(trio.SocketListener(trio.socket.from_stdlib_socket(listening)))
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon(self._serve_one, await doorman.accept())

    async def _serve_one(self, stream: trio.SocketStream) -> None:
        """Serve one client of the socket. Whatever goes wrong with it stays with it: the others share our nursery."""
        try:
            await self._admit(stream)
        except Exception:
            log.exception("connection failed")
        finally:
            stream.socket.close()

    async def _admit(self, stream: trio.SocketStream) -> None:
        peer = peer_of(stream.socket)
        if peer is not None and peer.uid != os.getuid():
            log.warning("refused a client of another user")
            await stream.aclose()
        elif (full := self._full(stream, peer)) is not None:
            await refuse(stream, full)
        else:
            with self._counted(peer):
                await self.serve(stream)

    def _full(self, stream: trio.SocketStream, peer: Peer | None) -> str | None:
        """Return why there is no room for this client, if there is none."""
        if len(self._connections) >= self._limits.clients_max:
            return (
                f"{len(self._connections)} clients are connected, limit is {self._limits.clients_max} "
                "(config: protocol.clients_max)"
            )
        if peer is not None and self._by_process[peer.pid] >= self._limits.clients_per_process_max and peer.pid:
            return (
                f"process {peer.pid} holds {self._by_process[peer.pid]} connections, limit is "
                f"{self._limits.clients_per_process_max} (config: protocol.clients_per_process_max)"
            )
        if few_descriptors_left(stream.socket.fileno()):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return f"the daemon runs short of file descriptors, its limit is {limit} (ulimit -n)"
        return None

    @contextmanager
    def _counted(self, peer: Peer | None) -> Iterator[None]:
        """Count a connection for its process while it is served."""
        pid = peer.pid if peer is not None else 0
        self._by_process[pid] += 1
        try:
            yield
        finally:
            self._by_process[pid] -= 1
            if not self._by_process[pid]:
                del self._by_process[pid]

    async def serve(self, stream: Stream) -> None:
        """Serve one client on any stream until it leaves."""
        connection = Connection(stream, self._routes, self._limits, number=next(self._numbers))
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)

    def drain(self) -> None:
        """Refuse new requests on every connection; those under way are answered."""
        for connection in self._connections:
            connection.draining = True


class Doorman:
    """Takes the next client; while none can be taken (no descriptors are left), pauses and says so now and then."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener
        self._failures = 0
        self._told_at = -math.inf

    async def accept(self) -> trio.SocketStream:
        """Return the next client."""
        while True:
            try:
                return await self._listener.accept()
            except OSError as error:
                self._note(error)
                await trio.sleep(ACCEPT_PAUSE_S)

    def _note(self, error: OSError) -> None:
        self._failures += 1
        if time.monotonic() - self._told_at > ACCEPT_TOLD_S:
            self._told_at = time.monotonic()
            log.warning("accept failed", extra={"error": str(error), "count": self._failures})


def few_descriptors_left(newest: int) -> bool:
    """Say whether the last descriptors begin; the system hands out the lowest free number, so the newest one tells."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    kept = min(limit // DESCRIPTORS_KEPT_SHARE, DESCRIPTORS_KEPT_MAX)
    return limit != resource.RLIM_INFINITY and newest >= limit - kept


async def end_turn(began_ns: int) -> int:
    """Let the others run if our turn has lasted long enough; return when the turn that goes on began."""
    if time.monotonic_ns() - began_ns < TURN_NS:
        return began_ns
    await trio.lowlevel.checkpoint()
    return time.monotonic_ns()


async def refuse(stream: trio.SocketStream, text: str) -> None:
    """Tell a client why it is not served, and close; it may have left already."""
    with trio.move_on_after(1), suppress(trio.BrokenResourceError):
        await stream.send_all(encode_failure(None, Overloaded(text, retry_after_ms=REFUSED_RETRY_MS)))
    with trio.move_on_after(1, shield=True):
        await stream.aclose()


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
