"""What one client does is felt by that client only: connections and the listener on real sockets, with fake routes."""

import json
import os
import resource
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from actors.errors import NotFound
from supervisor import listener as doors
from supervisor.config import ProtocolLimits
from supervisor.in_flight import InFlight
from supervisor.listener import Connection, Listener
from supervisor.principals import Principals
from supervisor.routes.routing import Routes, Scope

PATIENCE_S = 20


class Handlers:
    """Stands in for the routes: `wait` never answers, `echo` does at once, `late` when the test lets it."""

    def __init__(self) -> None:
        self.principals = Principals(())
        self.began: list[str] = []
        self.cancelled = 0
        self.clients: list[int] = []
        self.release = trio.Event()
        self.changed = trio.Event()

    def is_ordered(self, name: str) -> bool:
        return name == "ordered"

    async def call(self, name: str, raw: msgspec.Raw, scope: Scope) -> object:
        self.began.append(name)
        self.clients.append(scope.client)
        self._change()
        try:
            if name == "wait":
                await trio.sleep_forever()
            elif name == "late":
                await self.release.wait()
            elif name == "missing":
                raise NotFound("no such item")
            elif name == "bug":
                raise ZeroDivisionError
        except trio.Cancelled:
            self.cancelled += 1
            self._change()
            raise
        return {"method": name, "bytes": len(bytes(raw))}

    def _change(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        with trio.fail_after(PATIENCE_S):
            while not holds():
                await self.changed.wait()


class Peer:
    """The client's end of a socket pair."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def say(self, method: str, number: int | str | None = None, **params: object) -> None:
        message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        await self.stream.send_all(json.dumps(message).encode() + b"\n")

    async def hear(self) -> dict[str, Any]:
        with trio.fail_after(PATIENCE_S):
            while b"\n" not in self._buffer:
                data = bytes(await self.stream.receive_some(1 << 16))
                if not data:
                    raise EOFError
                self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return cast(dict[str, Any], json.loads(line))


@asynccontextmanager
async def connected(handlers: Handlers, **limits: int) -> AsyncIterator[tuple[Peer, trio.Event]]:
    """Serve one end of a socket pair and give the other, with an event that says when the connection has ended."""
    ours, theirs = trio.socket.socketpair()
    connection = Connection(trio.SocketStream(ours), cast(Routes, handlers), ProtocolLimits(**limits), number=7)
    ended = trio.Event()

    async def serve() -> None:
        await connection.run()
        ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield Peer(trio.SocketStream(theirs)), ended
        nursery.cancel_scope.cancel()
    theirs.close()


async def within(wait: Callable[[], Awaitable[None]]) -> None:
    with trio.fail_after(PATIENCE_S):
        await wait()


# ---------------------------------------------------------------- vanishing


async def test_a_half_closed_client_gets_its_answers() -> None:
    handlers = Handlers()
    async with connected(handlers) as (peer, ended):
        for number in range(5):
            await peer.say("late", number)
        await handlers.until(lambda: len(handlers.began) == 5)
        await peer.stream.send_eof()
        await trio.sleep(3 * doors.HANG_UP_LOOK_S)  # long enough for it to be taken for gone, if it were
        handlers.release.set()
        assert {(await peer.hear())["id"] for _ in range(5)} == set(range(5))
        with pytest.raises(EOFError):
            await peer.hear()
        await within(ended.wait)
    assert handlers.cancelled == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a closed socket from a half-closed one")
async def test_a_client_that_vanishes_has_its_requests_cancelled_at_once() -> None:
    handlers = Handlers()
    async with connected(handlers) as (peer, ended):
        for number in range(5):
            await peer.say("wait", number)
        await handlers.until(lambda: len(handlers.began) == 5)
        await peer.stream.aclose()
        await within(ended.wait)
    assert handlers.cancelled == 5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a closed socket from a half-closed one")
async def test_a_client_that_vanishes_while_nothing_is_read_from_it_is_noticed_too() -> None:
    handlers = Handlers()
    async with connected(handlers, in_flight_max=2) as (peer, ended):
        for number in range(4):  # the third waits for a place, the fourth is not even read
            await peer.say("wait", number)
        await handlers.until(lambda: len(handlers.began) == 2)
        await peer.stream.aclose()
        await within(ended.wait)
    assert handlers.cancelled == 2


async def test_an_idle_client_may_leave_at_any_time() -> None:
    handlers = Handlers()
    async with connected(handlers) as (peer, ended):
        await peer.say("echo", 1)
        await peer.hear()
        await peer.stream.aclose()
        await within(ended.wait)


# ---------------------------------------------------------------- bounds of one client


async def test_no_more_requests_are_under_way_than_the_limit() -> None:
    handlers = Handlers()
    async with connected(handlers, in_flight_max=3) as (peer, _):
        for number in range(10):
            await peer.say("late", number)
        await handlers.until(lambda: len(handlers.began) == 3)
        await trio.testing.wait_all_tasks_blocked()
        assert len(handlers.began) == 3
        handlers.release.set()
        assert {(await peer.hear())["id"] for _ in range(10)} == set(range(10))


async def test_large_requests_are_bounded_in_bytes_and_a_single_one_always_passes() -> None:
    handlers = Handlers()
    async with connected(handlers, in_flight_bytes_max=1000) as (peer, _):
        for number in range(4):
            await peer.say("late", number, text="x" * 600)
        await handlers.until(lambda: len(handlers.began) == 1)
        await trio.testing.wait_all_tasks_blocked()
        assert len(handlers.began) == 1
        handlers.release.set()
        assert {(await peer.hear())["id"] for _ in range(4)} == set(range(4))
        await peer.say("echo", 9, text="x" * 5000)
        assert (await peer.hear())["result"]["bytes"] > 5000


async def test_a_cancelled_request_gives_its_place_and_its_id_back_and_is_not_answered() -> None:
    handlers = Handlers()
    async with connected(handlers, in_flight_max=2) as (peer, _):
        for _ in range(50):
            await peer.say("wait", "same")
            await peer.say("notifications/cancelled", requestId="same")
        await peer.say("echo", "after")
        assert (await peer.hear())["id"] == "after"
    assert handlers.cancelled == handlers.began.count("wait")


async def test_notifications_ask_for_nothing_and_hold_nothing() -> None:
    handlers = Handlers()
    async with connected(handlers) as (peer, _):
        await peer.stream.send_all(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{}}\n' * 5000)
        await peer.stream.send_all(b"\n" * 500_000)
        await peer.say("echo", 1)
        assert (await peer.hear())["id"] == 1
    assert handlers.began == ["echo"]


async def test_an_id_in_use_is_refused_and_may_be_used_again_once_answered() -> None:
    handlers = Handlers()
    async with connected(handlers) as (peer, _):
        await peer.say("late", 1)
        await handlers.until(lambda: len(handlers.began) == 1)
        await peer.say("echo", 1)
        refused = await peer.hear()
        assert refused["id"] is None and refused["error"]["code"] == -32600
        handlers.release.set()
        assert (await peer.hear())["result"]["method"] == "late"
        await peer.say("echo", 1)
        assert (await peer.hear())["result"]["method"] == "echo"


async def test_every_bad_line_is_answered_and_the_connection_stays() -> None:
    handlers = Handlers()
    async with connected(handlers, line_bytes_max=65536, outbox_lines_max=8) as (peer, _):

        async def flood() -> None:
            for _ in range(1000):
                await peer.stream.send_all(b"nonsense\n[]\n" + b"x" * 70_000 + b"\n")
            await peer.say("echo", "last")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood)
            codes = [(await peer.hear())["error"]["code"] for _ in range(3000)]
            assert codes == [-32700, -32600, -32600] * 1000
            assert (await peer.hear())["id"] == "last"


async def test_a_client_that_does_not_read_is_closed_after_its_time() -> None:
    handlers = Handlers()
    async with connected(handlers, stalled_client_ms=100, outbox_lines_max=4) as (peer, ended):
        # The buffer of the socket is finite and nobody reads: sending fails in the end, or the connection ends.
        with trio.move_on_after(PATIENCE_S):
            try:
                while not ended.is_set():
                    await peer.say("missing", "id-" + "x" * 10_000)
            except trio.BrokenResourceError:
                pass
        await within(ended.wait)


async def test_a_bug_in_a_route_is_an_answer() -> None:
    handlers = Handlers()
    async with connected(handlers) as (peer, _):
        await peer.say("bug", 1)
        assert (await peer.hear())["error"]["code"] == -32603
        await peer.say("missing", 2)
        assert (await peer.hear())["error"]["code"] == 1013


async def test_a_flood_leaves_the_loop_to_the_others() -> None:
    """While megabytes of newlines, notifications and nonsense are read, somebody else gets a turn again and again."""
    handlers = Handlers()
    turns = 0

    async def somebody_else() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with connected(handlers) as (peer, _), trio.open_nursery() as nursery:
        nursery.start_soon(somebody_else)
        for piece in (b"\n" * 200_000, b'{"jsonrpc":"2.0","method":"notifications/x"}\n' * 5000, b"x\n" * 200):
            await peer.stream.send_all(piece)
        await peer.say("echo", 1)
        while (await peer.hear())["id"] != 1:
            pass
        nursery.cancel_scope.cancel()
    # A turn is 1 ms and this is hundreds of ms of work; read as it comes it would be a handful of turns.
    assert turns > 50


# ---------------------------------------------------------------- in flight, as a table


async def test_places_are_counted_and_ids_are_freed() -> None:
    in_flight = InFlight(count_max=2, bytes_max=100)
    assert in_flight.has_room(1000)
    first = in_flight.enter("a", 60)
    assert in_flight.has_room(40) and not in_flight.has_room(41)
    second = in_flight.enter(None, 1)
    assert not in_flight.has_room(1) and len(in_flight) == 2
    in_flight.answered(first)
    assert "a" not in in_flight and len(in_flight) == 2
    third = in_flight.enter("a", 0)
    in_flight.leave(first)  # leaves the id to its new holder
    assert "a" in in_flight
    in_flight.cancel("a", "test")
    in_flight.cancel("nobody", "test")
    assert third.scope.cancel_called and not second.scope.cancel_called


# ---------------------------------------------------------------- many clients


@asynccontextmanager
async def listening(path: Path, handlers: Handlers, **limits: int) -> AsyncIterator[Listener]:
    """Serve a socket."""
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    bound.listen(128)
    bound.setblocking(False)
    listener = Listener(cast(Routes, handlers), ProtocolLimits(**limits))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.serve_socket, bound)
        yield listener
        nursery.cancel_scope.cancel()
    bound.close()


async def test_every_connection_has_a_number_of_its_own(tmp_path: Path) -> None:
    handlers = Handlers()
    async with listening(tmp_path / "s", handlers):
        for _ in range(3):
            async with await trio.open_unix_socket(tmp_path / "s") as stream:
                peer = Peer(stream)
                await peer.say("echo", 1)
                await peer.hear()
    assert len(set(handlers.clients)) == 3 and 0 not in handlers.clients


async def test_clients_beyond_the_limit_are_told_so_and_may_come_back(tmp_path: Path) -> None:
    handlers = Handlers()
    async with listening(tmp_path / "s", handlers, clients_max=3):
        peers = [Peer(await trio.open_unix_socket(tmp_path / "s")) for _ in range(5)]
        for peer in peers[:3]:
            await peer.say("echo", 1)
            assert (await peer.hear())["id"] == 1
        for peer in peers[3:]:
            refused = (await peer.hear())["error"]
            assert refused["code"] == 1001 and refused["data"]["retryable"] and "clients_max" in refused["message"]
            with pytest.raises(EOFError):
                await peer.hear()
        for peer in peers:
            await peer.stream.aclose()
        assert await admitted(tmp_path / "s")


async def admitted(path: Path) -> bool:
    """Say whether a client is served within the time."""
    with trio.fail_after(PATIENCE_S):
        while True:
            peer = Peer(await trio.open_unix_socket(path))
            try:
                await peer.say("echo", 1)
                if "result" in await peer.hear():
                    return True
            except (trio.BrokenResourceError, EOFError):
                await trio.sleep(0.01)
            finally:
                await peer.stream.aclose()


async def test_refused_clients_that_leave_before_they_are_told_harm_nobody(tmp_path: Path) -> None:
    """Telling one that had left ended the listener, and with it every connection (found by start_fd_exhaustion)."""
    handlers = Handlers()
    async with listening(tmp_path / "s", handlers, clients_max=1):
        steady = Peer(await trio.open_unix_socket(tmp_path / "s"))
        await steady.say("echo", 1)
        await steady.hear()
        for _ in range(50):
            async with await trio.open_unix_socket(tmp_path / "s"):
                pass
        for number in range(5):
            await steady.say("echo", number)
            assert (await steady.hear())["id"] == number
        await steady.stream.aclose()


async def test_a_bug_in_one_connection_ends_that_connection_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers, run = Handlers(), Connection.run
    runs = 0

    async def with_a_bug(connection: Connection) -> None:
        nonlocal runs
        runs += 1
        if runs == 2:
            raise ZeroDivisionError
        await run(connection)

    monkeypatch.setattr(Connection, "run", with_a_bug)
    async with listening(tmp_path / "s", handlers):
        steady = Peer(await trio.open_unix_socket(tmp_path / "s"))
        await steady.say("echo", 1)
        await steady.hear()
        async with await trio.open_unix_socket(tmp_path / "s") as unlucky:
            with pytest.raises((EOFError, trio.BrokenResourceError)):
                await Peer(unlucky).hear()
        assert await admitted(tmp_path / "s")
        await steady.say("echo", 2)
        assert (await steady.hear())["id"] == 2
        await steady.stream.aclose()


OTHER_PROCESS = """
import json, socket, sys
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
link.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "echo"}).encode() + b"\\n")
print(link.makefile("rb").readline().decode())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the process behind a socket")
async def test_one_process_cannot_take_all_connections(tmp_path: Path) -> None:
    handlers = Handlers()
    async with listening(tmp_path / "s", handlers, clients_max=8, clients_per_process_max=2):
        peers = [Peer(await trio.open_unix_socket(tmp_path / "s")) for _ in range(3)]
        refused = (await peers[2].hear())["error"]
        assert f"process {os.getpid()}" in refused["message"] and "clients_per_process_max" in refused["message"]
        other = await trio.run_process(
            [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "s")], capture_stdout=True, stderr=subprocess.DEVNULL
        )
        assert json.loads(other.stdout)["result"]["method"] == "echo"
        for peer in peers:
            await peer.stream.aclose()
        assert await admitted(tmp_path / "s")


async def test_the_last_descriptors_are_not_for_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers = Handlers()
    async with listening(tmp_path / "s", handlers):
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (8, 8))
        async with await trio.open_unix_socket(tmp_path / "s") as stream:
            assert "file descriptors" in (await Peer(stream).hear())["error"]["message"]
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY,) * 2)
        assert await admitted(tmp_path / "s")


async def test_an_accept_that_fails_is_tried_again_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of descriptors `accept` fails at once, every time: without a pause the loop would spin."""
    handlers, pauses = Handlers(), []
    sleep = trio.sleep

    async def counted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    class Failing:
        left = 5

        async def accept(self) -> trio.SocketStream:
            await trio.lowlevel.checkpoint()
            if self.left:
                self.left -= 1
                raise OSError(24, "Too many open files")
            return cast(trio.SocketStream, "a client")

    monkeypatch.setattr(trio, "sleep", counted)
    accepted: object = await doors.Doorman(cast(trio.SocketListener, Failing())).accept()
    assert accepted == "a client"
    assert pauses == [doors.ACCEPT_PAUSE_S] * 5
    assert handlers.began == []
