"""Clients that behave badly, each on connections of its own: what they send, and what they have to be told.

Each abuse returns a line for the time line, and raises `Wrong` when the answer to the abuser itself is not as promised.
Whether anybody else noticed is judged by the scenario. Raw sockets: an abuser keeps no book about its requests.
"""

import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

MIB = 1 << 20
PATIENCE_S = 30.0
HELD = 60  # half lines held at a time
CROWD = 200
PARSE_ERROR, INVALID_REQUEST, OVERLOADED = -32700, -32600, 1001

Abuse = Callable[[str, random.Random], Awaitable[str]]


class Wrong(Exception):
    """The abuser itself was not told what it has to be told."""


class Raw:
    """A connection without manners."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        await self.stream.send_all(data)

    async def ask(self, method: str, number: int | str, **params: object) -> None:
        """Send a request; nobody waits for the answer."""
        await self.send(line(method, number, **params))

    async def hear(self) -> dict[str, Any]:
        """Return the next answer; raise Wrong when none comes, EOFError when the other end closed."""
        with trio.move_on_after(PATIENCE_S):
            while b"\n" not in self._buffer:
                data = bytes(await self.stream.receive_some(MIB))
                if not data:
                    raise EOFError
                self._buffer += data
            text, _, self._buffer = self._buffer.partition(b"\n")
            answer: dict[str, Any] = json.loads(text)
            return answer
        raise Wrong(f"no answer within {PATIENCE_S} s")

    async def expect_alive(self) -> None:
        """Ask for the health as the next thing; raise Wrong when something else is answered."""
        await self.ask("system.health", "alive")
        answer = await self.hear()
        require(answer.get("id") == "alive" and answer["result"]["live"], f"asked for the health, got {answer}")


def line(method: str, number: int | str | None, **params: object) -> bytes:
    """Return a request as it goes over the wire; without a number it is a notification."""
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None:
        message["id"] = number
    return json.dumps(message).encode() + b"\n"


def require(holds: object, text: str) -> None:
    """Raise Wrong unless it holds."""
    if not holds:
        raise Wrong(text)


@asynccontextmanager
async def connection(path: str) -> AsyncIterator[Raw]:
    """Connect."""
    async with await trio.open_unix_socket(path) as stream:
        yield Raw(stream)


# ---------------------------------------------------------------- lines


async def half_lines(path: str, rng: random.Random) -> str:
    """Begin lines on many connections, hold them, and finish them later; one of them is just below the limit."""
    async with AsyncExitStack() as stack:
        held = [await stack.enter_async_context(connection(path)) for _ in range(HELD)]
        for each in held:
            await each.send(b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 64 * 1024)
        await held[0].send(b"x" * 7 * MIB)
        await trio.sleep(1)
        for each in held:
            await each.send(b"\n")
            require((await each.hear())["error"]["code"] == PARSE_ERROR, "half a line is no JSON")
            await each.expect_alive()
    return f"{HELD} half lines held for 1 s"


async def long_line(path: str, rng: random.Random) -> str:
    """Send one line of 100 MB: it is refused once, and the next request on the connection is answered."""
    async with connection(path) as raw:
        for _ in range(100):
            await raw.send(b"x" * MIB)
        await raw.send(b"\n")
        answer = await raw.hear()
        require(answer["error"]["code"] == INVALID_REQUEST and "longer" in answer["error"]["message"], str(answer))
        await raw.expect_alive()
    return "one line of 100 MiB"


async def malformed(path: str, rng: random.Random) -> str:
    """Send bytes that are no requests: each line gets one error, and the connection stays."""
    lines = list(nonsense(rng, 3000))
    codes: Counter[int] = Counter()
    async with connection(path) as raw, trio.open_nursery() as nursery:

        async def send() -> None:
            for start in range(0, len(lines), 100):
                await raw.send(b"".join(each + b"\n" for each in lines[start : start + 100]))

        nursery.start_soon(send)
        for _ in lines:
            codes[(await raw.hear())["error"]["code"]] += 1
        await raw.expect_alive()
    require(set(codes) <= {PARSE_ERROR, INVALID_REQUEST, -32601, -32602}, f"codes {codes}")
    return f"{len(lines)} lines, codes {dict(codes)}"


def nonsense(rng: random.Random, count: int) -> Iterator[bytes]:
    """Give lines that are not requests: noise, JSON of another shape, requests with a byte flipped."""
    sound = line("memory.serch", 1, query="x").strip()
    for number in range(count):
        match number % 4:
            case 0:
                text = rng.randbytes(rng.randint(1, 200))
            case 1:
                text = json.dumps(rng.choice([[], 1, "x", None, {"id": 1}, {"jsonrpc": "2.0", "id": {}}])).encode()
            case 2:
                text = sound[: rng.randrange(1, len(sound))]
            case _:
                damaged = bytearray(sound)
                damaged[rng.randrange(len(damaged))] = rng.choice(b'\x00\x1f{}[]",:x\xff')
                text = bytes(damaged)
        text = text.replace(b"\n", b"?")
        # Blank lines are skipped; a notification is not answered, and a flipped byte can make one of a request.
        yield b"{" + text if not text.strip(b" \t\r") or b'"id"' not in text else text


async def floods_of_nothing(path: str, rng: random.Random) -> str:
    """Send what asks for nothing, a lot of it: newlines, notifications, cancellations of nothing."""
    async with connection(path) as raw:
        await raw.send(b"\n" * 2 * MIB)
        await raw.send(line("notifications/progress", None, token="x") * 20_000)
        await raw.send(line("notifications/cancelled", None, requestId="nobody") * 20_000)
        await raw.expect_alive()
    return "2 MiB of newlines, 40,000 notifications"


async def costly_lines(path: str, rng: random.Random) -> str:
    """Send requests that are large and refused: long names, very many values, deep nests."""
    event = {"session_id": "s", "actor": "user", "content": "x"}
    many = b'{"a":[' + b"0," * 3_000_000 + b"0]}"
    cases = [
        line("x" * 7 * MIB, 1),
        line("event.append", 1, **{**event, "y" * 7 * MIB: 1}),
        line("memory.search", 1, query="x" * 7 * MIB),
        line("event.append", 1, **event, meta="META").replace(b'"META"', many),
        line("event.append", 1, **event, meta="META").replace(b'"META"', b"[" * 100_000 + b"]" * 100_000),
    ]
    async with connection(path) as raw:
        for case in cases:
            await raw.send(case)
            require("error" in await raw.hear(), f"accepted: {case[:80]!r}")
        await raw.expect_alive()
    return f"{len(cases)} requests of several MiB"


# ---------------------------------------------------------------- requests


async def reused_ids(path: str, rng: random.Random) -> str:
    """Use one id for a hundred requests at once: each is answered, with a result or as a reuse."""
    async with connection(path) as raw:
        await raw.send(line("memory.search", "same", query="fsync") * 100)
        answers = [await raw.hear() for _ in range(100)]
        for answer in answers:
            reused = answer.get("id") is None and answer["error"]["code"] == INVALID_REQUEST
            require(reused or answer["id"] == "same", f"got {answer}")
        await raw.expect_alive()
    return f"100 requests, {sum('result' in answer for answer in answers)} of them answered"


async def cancel_storm(path: str, rng: random.Random) -> str:
    """Cancel each request as soon as it is sent: none of them holds its place, and the connection stays usable."""
    async with connection(path) as raw:
        for number in range(1000):
            method, params = rng.choice([("memory.search", {"query": f"fsync {number}"}), ("system.status", {})])
            await raw.send(line(method, number, **params) + line("notifications/cancelled", None, requestId=number))
        for number in range(40):  # more than may be in flight at a time
            await raw.ask("session.list", f"after-{number}")
        after = 0
        while after < 40:
            answer = await raw.hear()
            after += str(answer["id"]).startswith("after-")
    return "1,000 requests cancelled at once"


async def vanishing(path: str, rng: random.Random) -> str:
    """Ask for much and close the connection at once."""
    for number in range(50):
        async with connection(path) as raw:
            for each in range(8):
                await raw.ask("memory.search", each, query=f"fsync {number} {each}")
            if number % 2:
                await raw.send(b'{"jsonrpc":"2.0","id":1,"meth')
    return "50 connections closed with 8 requests each under way"


# ---------------------------------------------------------------- connections


async def slow_readers(path: str, rng: random.Random) -> str:
    """Ask and never read: after `stalled_client_ms` the daemon closes the connection."""

    async def one() -> None:
        async with connection(path) as raw:
            request = line("system.metrics", 1)
            with trio.move_on_after(PATIENCE_S):
                while True:
                    try:
                        await raw.send(request)
                    except trio.BrokenResourceError:
                        return
            raise Wrong(f"a client that reads nothing was still served after {PATIENCE_S} s")

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(one)
    return "4 clients that read nothing"


async def crowd(path: str, rng: random.Random) -> str:
    """Open more connections than a process may hold: those beyond are told so, and the others are served."""
    served = refused = 0
    async with AsyncExitStack() as stack:
        everyone = [await stack.enter_async_context(connection(path)) for _ in range(CROWD)]
        for each in everyone:
            try:
                await each.ask("system.health", 1)
                answer = await each.hear()
            except (trio.BrokenResourceError, EOFError):
                refused += 1  # its refusal was lost with the connection
                continue
            if "error" in answer:
                require(answer["error"]["code"] == OVERLOADED, f"refused with {answer}")
                refused += 1
            else:
                served += 1
    require(served and refused, f"{served} served, {refused} refused")
    for _ in range(CROWD):  # and now as fast as they can
        async with connection(path):
            pass
    return f"{CROWD} connections at once: {served} served, {refused} refused; then {CROWD} in a row"


ABUSES: dict[str, Abuse] = {
    "half_line": half_lines,
    "long_line": long_line,
    "malformed": malformed,
    "flood_of_nothing": floods_of_nothing,
    "costly_lines": costly_lines,
    "reused_ids": reused_ids,
    "cancel_storm": cancel_storm,
    "vanishing": vanishing,
    "slow_reader": slow_readers,
    "crowd": crowd,
}
