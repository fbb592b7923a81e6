"""What passes through the bridge, as a state machine without I/O: bytes of the client in, bytes of the daemon out.

Owns the ledger of requests that wait for an answer, the queue of lines that the daemon has not been given yet, and
what must be said again to a new daemon (`hello`, `initialize`). Promises that every request gets exactly one
answer, from the daemon or from here, and that a line is never handed to two daemons once it was handed over whole.
A deadline begins when the client's line comes in, daemon or not: what waited here has less time left over there.

Lines that are not a request (broken UTF-8, invalid JSON, a batch) are the daemon's to judge: they are passed on and
counted, because their answers have no id. Only a line over the limit is answered here, it is never held whole.
Standard library only: the bridge imports this.
"""

import enum
import json
import time
from collections import deque
from collections.abc import Callable

LINE_BYTES_MAX = 8 * 1024 * 1024
ANSWER_BYTES_MAX = 4 * LINE_BYTES_MAX
QUEUED_LINES_MAX = 64
BUFFER_BYTES_MAX = 8 * 1024 * 1024
CHUNK_BYTES = 64 * 1024
CANCELLED_KEPT = 1024
# What the daemon gives a request that does not say how long it may take (config: protocol.deadline_ms).
DEADLINE_S = 10.0
# … and index.rebuild, when it waits for its build (config: protocol.wait_ms_max).
DEADLINE_WAITING_S = 3600.0
# A wait that is worth telling the daemon of.
WAITED_S = 0.05

INVALID_REQUEST = -32600
ACTOR_DIED = 1002
ACTOR_RESTARTING = 1003
DEADLINE_EXCEEDED = 1004

REPLAY_ID = "bulkhead-bridge-replay-{}"
# Of the line by which the bridge says whose token it was given; no client sees the answer.
CREDENTIALS_ID = REPLAY_ID.format("credentials")


class State(enum.Enum):
    """How the bridge stands with the daemon."""

    CONNECTING = "the first connection is looked for; a full queue makes the client wait"
    REPLAYING = "connected; what the client said of itself is being said again"
    OPEN = "lines flow"
    LOST = "the connection broke with requests waiting; a full queue is refused"
    IDLE = "no connection, and nothing that needs one"


class Kind(enum.Enum):
    """What a line of the client's calls for."""

    REQUEST = "one answer with its id"
    NOTIFICATION = "no answer"
    OTHER = "one answer without an id"


class Line:
    """One line of the client's: its bytes with the newline, and what can be read from it without judging it."""

    __slots__ = ("came_at", "cancels", "data", "deadline_s", "key", "kind", "method")

    def __init__(self, data: bytes, came_at: float = 0.0) -> None:
        self.data = data + b"\n"
        self.came_at = came_at
        self.deadline_s = DEADLINE_S
        self.kind = Kind.OTHER
        self.key: str | None = None
        self.method: str | None = None
        self.cancels: str | None = None
        content = _json(data)
        if isinstance(content, dict):
            self._read(content)

    def _read(self, content: dict[str, object]) -> None:
        method = content.get("method")
        if isinstance(method, str):
            self.method = method
        params = content.get("params")
        if isinstance(params, dict):
            if method == "index.rebuild" and params.get("wait") is True:
                self.deadline_s = DEADLINE_WAITING_S
            if isinstance(wanted := params.get("deadline_ms"), int) and wanted > 0:
                self.deadline_s = wanted / 1000
        if "id" in content:
            # Whatever else is wrong with it, the daemon answers with the id, if that is one.
            self.key = _key(content["id"])
            self.kind = Kind.OTHER if self.key is None else Kind.REQUEST
        elif self.method and content.get("jsonrpc") == "2.0":
            self.kind = Kind.NOTIFICATION
            if method == "notifications/cancelled" and isinstance(params, dict):
                self.cancels = _key(params.get("requestId"))

    @property
    def expires_at(self) -> float | None:
        """Return when nobody waits for its answer any more; None for what gets none."""
        return None if self.kind is Kind.NOTIFICATION else self.came_at + self.deadline_s

    def age(self, now: float) -> None:
        """Tell the daemon how much time is left of a native request that waited here."""
        waited_s = now - self.came_at
        if waited_s < WAITED_S or self.kind is not Kind.REQUEST or "." not in (self.method or ""):
            return
        self.came_at, self.deadline_s = now, max(0.001, self.deadline_s - waited_s)
        content = json.loads(self.data)
        params = content.get("params", {})
        if not isinstance(params, dict):
            return
        content["params"] = {**params, "deadline_ms": max(1, int(self.deadline_s * 1000))}
        try:
            self.data = json.dumps(content, allow_nan=False).encode() + b"\n"
        except ValueError:
            return  # a number that JSON does not have: the daemon refuses the line as it is


class LineSplitter:
    """Cut a byte stream into lines without their end. A line over the limit is dropped and comes out as None."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer = bytearray()
        self._dropping = False

    def feed(self, data: bytes) -> list[bytes | None]:
        """Add bytes; return the lines that are complete now. Blank ones are left out."""
        *ended, tail = data.split(b"\n")
        lines = [line for piece in ended if (line := self._end(piece)) != b""]
        self._keep(tail)
        return lines

    def finish(self) -> list[bytes | None]:
        """Return the last line of a stream that ended without a newline, if there is one."""
        line = self._end(b"")
        return [] if line == b"" else [line]

    def clear(self) -> None:
        """Forget an unfinished line."""
        self._buffer.clear()
        self._dropping = False

    def _keep(self, piece: bytes) -> None:
        if self._dropping:
            return
        self._buffer += piece
        # One byte more may be the CR of a CRLF.
        if len(self._buffer) > self._bytes_max + 1:
            self._buffer.clear()
            self._dropping = True

    def _end(self, piece: bytes) -> bytes | None:
        self._keep(piece)
        line = bytes(self._buffer).removesuffix(b"\r")
        dropped = self._dropping or len(line) > self._bytes_max
        self.clear()
        return None if dropped else line if line.strip() else b""


class Ledger:
    """The requests that the daemon was given and has not answered, by the JSON text of their ids."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._nameless = 0

    @property
    def open(self) -> int:
        """Return how many answers are still to come."""
        # An answer without an id may belong to a request whose id only we could read (Python reads NaN), or that
        # took an id twice: then `_nameless` is below zero, and one request less is waited for.
        return max(0, sum(self._counts.values()) + self._nameless)

    def give(self, line: Line) -> None:
        """Note that the daemon was given this line."""
        if line.kind is Kind.REQUEST and line.key is not None:
            # The same id twice in flight is an error that the daemon answers, so both answers are expected.
            self._counts[line.key] = self._counts.get(line.key, 0) + 1
        elif line.kind is Kind.OTHER:
            self._nameless += 1

    def settle(self, key: str | None) -> None:
        """Note an answer that came, or will not come because the request was cancelled."""
        if key is None or key == "null":
            self._nameless -= 1
        elif (count := self._counts.get(key, 0)) > 1:
            self._counts[key] = count - 1
        else:
            self._counts.pop(key, None)

    def take_all(self) -> list[str]:
        """Return the JSON text of the id of every open request, "null" where there is none, and start afresh."""
        keys = [key for key, count in self._counts.items() for _ in range(count)]
        keys += ["null"] * self._nameless
        self._counts.clear()
        self._nameless = 0
        return keys


class Introduction:
    """What the client told the daemon about itself, as far as the daemon accepted it."""

    METHODS = ("hello", "initialize")

    def __init__(self) -> None:
        self._asked: dict[str, Line] = {}
        self._accepted: dict[str, Line] = {}
        self._initialized: Line | None = None

    def give(self, line: Line) -> None:
        """Note a line that the daemon was given."""
        if line.method in self.METHODS and line.key is not None:
            self._asked[line.key] = line
        elif line.method == "notifications/initialized":
            self._initialized = line

    def settle(self, key: str, *, accepted: bool) -> None:
        """Note the answer to a request."""
        line = self._asked.pop(key, None)
        if line is not None and line.method is not None and accepted:
            self._accepted[line.method] = line

    def forget_asked(self) -> None:
        """Forget what was not answered: the client was told so and says it again itself."""
        self._asked.clear()

    def again(self) -> tuple[list[bytes], set[str]]:
        """Return the lines to say to a new daemon, and the keys of the answers that are not for the client."""
        lines, keys = [], set()
        for method in self.METHODS:
            if (line := self._accepted.get(method)) is not None:
                request = json.loads(line.data)
                request["id"] = REPLAY_ID.format(method)
                lines.append(json.dumps(request).encode() + b"\n")
                keys.add(json.dumps(request["id"]))
        if "initialize" in self._accepted and self._initialized is not None:
            lines.append(self._initialized.data)
        return lines, keys


class Relay:
    """The bridge between one client and whichever daemon there is. Feed it what happens; send what it holds ready."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, credentials: bytes = b"") -> None:
        """`credentials` is a line with the id CREDENTIALS_ID that every daemon is to be told first."""
        self._clock = clock
        self._credentials = credentials
        self.state = State.CONNECTING
        self.to_client = bytearray()
        self._from_client = LineSplitter(LINE_BYTES_MAX)
        self._from_daemon = LineSplitter(ANSWER_BYTES_MAX)
        self._ledger = Ledger()
        self._introduction = Introduction()
        self._queue: deque[Line] = deque()
        self._queue_bytes = 0
        self._again = b""
        self._again_keys: set[str] = set()
        # How much of the first line of what is being sent (`_again`, else `_queue`) the daemon was given.
        self._sent = 0

    # ------------------------------------------------------------ what the loop asks

    @property
    def wants_connection(self) -> bool:
        """Return whether a daemon is to be looked for."""
        return self.state in (State.CONNECTING, State.LOST)

    @property
    def accepts_client(self) -> bool:
        """Return whether the client may be read: both directions have room."""
        if len(self.to_client) > BUFFER_BYTES_MAX or self._queue_bytes > BUFFER_BYTES_MAX:
            return False
        return self.state not in (State.CONNECTING, State.REPLAYING) or len(self._queue) < QUEUED_LINES_MAX

    @property
    def accepts_daemon(self) -> bool:
        """Return whether the daemon may be read: the client takes what it is given."""
        return len(self.to_client) <= BUFFER_BYTES_MAX

    @property
    def finished(self) -> bool:
        """Return whether nothing is left to be passed on and no answer is awaited."""
        return not (self._queue or self.to_client or self._ledger.open)

    @property
    def next_expiry(self) -> float | None:
        """Return when the first deadline of what waits here passes, as the clock has it."""
        return min((at for line in self._queue if (at := line.expires_at) is not None), default=None)

    def expire(self) -> None:
        """Answer what waited here for longer than its client wants to wait."""
        now = self._clock()
        for line in [each for each in self._queue if (at := each.expires_at) is not None and at <= now]:
            if line is self._begun():
                continue
            self._drop(line)
            self._answer(
                line.key or "null",
                DEADLINE_EXCEEDED,
                "the deadline passed before a daemon was there to take the request",
                outcome="not_executed",
                hint=None,
            )

    # ------------------------------------------------------------ the client's side

    def client_said(self, data: bytes) -> None:
        """Take bytes that the client wrote."""
        for line in self._from_client.feed(data):
            self._take(line)

    def client_ended(self) -> None:
        """Take the end of the client's stream; a last line without a newline counts."""
        for line in self._from_client.finish():
            self._take(line)

    def client_took(self, count: int) -> None:
        """Drop from `to_client` what the client was given."""
        del self.to_client[:count]

    # ------------------------------------------------------------ the daemon's side

    def connected(self) -> None:
        """Begin with a new daemon."""
        assert self.wants_connection
        lines, self._again_keys = self._introduction.again()
        if self._credentials:
            lines.insert(0, self._credentials)
            self._again_keys.add(json.dumps(CREDENTIALS_ID))
        self._again = b"".join(lines)
        self._sent = 0
        for line in self._queue:
            self._queue_bytes -= len(line.data)
            line.age(self._clock())
            self._queue_bytes += len(line.data)
        self.state = State.REPLAYING if self._again_keys else State.OPEN

    def next_chunk(self) -> memoryview:
        """Return what the daemon is to be given next; empty when there is nothing."""
        if self.state is State.REPLAYING:
            return memoryview(self._again)[self._sent :]
        if self.state is not State.OPEN or not self._queue:
            return memoryview(b"")
        if len(self._queue[0].data) >= CHUNK_BYTES:
            return memoryview(self._queue[0].data)[self._sent :]
        return memoryview(self._join())[self._sent :]

    def daemon_took(self, count: int) -> None:
        """Note that the daemon was given so many bytes of `next_chunk()`."""
        self._sent += count
        if self.state is State.REPLAYING:
            return
        # At once, not when the chunk is through: the first answer may come before the last byte has left.
        while self._queue and len(self._queue[0].data) <= self._sent:
            line = self._queue.popleft()
            self._queue_bytes -= len(line.data)
            self._sent -= len(line.data)
            self._give(line)

    def daemon_said(self, data: bytes) -> None:
        """Take bytes that the daemon wrote. Raises ValueError at a line that no daemon of ours would write."""
        for line in self._from_daemon.feed(data):
            if line is None:
                raise ValueError(f"answer is over {ANSWER_BYTES_MAX} bytes")
            self._pass_back(line)

    def lost(self) -> None:
        """The connection broke: answer what the daemon had been given, keep what it had not been given whole."""
        # A line that was given in part was never executed; the next daemon gets it from its beginning.
        self._sent = 0
        self._from_daemon.clear()
        self._introduction.forget_asked()
        for key in self._ledger.take_all():
            self._answer(
                key,
                ACTOR_DIED,
                "the daemon was lost with this request in hand",
                outcome="unknown",
                hint="retry; with the same request_id a write that was done is not done twice",
            )
        # An idle bridge does not bring back a daemon that was stopped on purpose; the next request does.
        self.state = State.LOST if self._queue else State.IDLE

    def unavailable(self, message: str, hint: str | None) -> None:
        """No daemon could be reached or started: answer everything that waits for one."""
        waiting = list(self._queue)
        self._queue.clear()
        self._queue_bytes = 0
        for line in waiting:
            self._refuse(line, message, hint)
        self.state = State.IDLE

    def give_up(self) -> None:
        """The bridge leaves: answer what is still awaited."""
        self.unavailable("the bridge leaves before a daemon was found", None)
        for key in self._ledger.take_all():
            self._answer(
                key, DEADLINE_EXCEEDED, "the bridge leaves before the answer came", outcome="unknown", hint=None
            )

    # ------------------------------------------------------------ inside

    def _take(self, data: bytes | None) -> None:
        if data is None:
            message = f"request refused: the line is over {LINE_BYTES_MAX} bytes, the limit of the protocol"
            self._answer("null", INVALID_REQUEST, message, outcome="not_executed", hint=None, retryable=False)
            return
        line = Line(data, self._clock())
        if line.cancels is not None and self._cancel_queued(line.cancels):
            return
        if self.state is State.IDLE:
            if line.kind is Kind.NOTIFICATION:
                return
            self.state = State.LOST
        # While connecting, reading stops at the limit instead; what one read brought beyond it is kept.
        if self.state is State.LOST and self._queue_is_full(line):
            self._refuse(line, f"{QUEUED_LINES_MAX} requests wait for the daemon already", "it is being started again")
            return
        self._queue.append(line)
        self._queue_bytes += len(line.data)

    def _queue_is_full(self, line: Line) -> bool:
        too_large = bool(self._queue) and self._queue_bytes + len(line.data) > BUFFER_BYTES_MAX
        return len(self._queue) >= QUEUED_LINES_MAX or too_large

    def _cancel_queued(self, key: str) -> bool:
        """Remove a request that the daemon was not given yet; it gets no answer, as the protocol wants it."""
        found = [line for line in self._queue if line.key == key and line is not self._begun()]
        for line in found:
            self._drop(line)
        return bool(found)

    def _begun(self) -> Line | None:
        """Return the line that the daemon has been given in part."""
        return self._queue[0] if self.state is State.OPEN and self._sent else None

    def _drop(self, line: Line) -> None:
        self._queue.remove(line)
        self._queue_bytes -= len(line.data)

    def _join(self) -> bytes:
        """Join the next lines, so that many small ones are one system call."""
        parts: list[bytes] = []
        size = 0
        for line in self._queue:
            if parts and size + len(line.data) > CHUNK_BYTES:
                break
            parts.append(line.data)
            size += len(line.data)
        return b"".join(parts)

    def _give(self, line: Line) -> None:
        self._ledger.give(line)
        self._introduction.give(line)
        if line.cancels is not None:
            self._ledger.settle(line.cancels)

    def _pass_back(self, data: bytes) -> None:
        content = _json(data)
        if isinstance(content, dict) and "id" in content and "method" not in content:
            key = _key(content["id"]) or "null"
            if key in self._again_keys:
                self._again_keys.discard(key)
                if not self._again_keys:
                    self._sent = 0
                    self.state = State.OPEN
                return
            self._ledger.settle(key)
            self._introduction.settle(key, accepted="error" not in content)
        self.to_client += data + b"\n"

    def _refuse(self, line: Line, message: str, hint: str | None) -> None:
        if line.kind is not Kind.NOTIFICATION:
            self._answer(line.key or "null", ACTOR_RESTARTING, message, outcome="not_executed", hint=hint)

    def _answer(
        self, key: str, code: int, message: str, *, outcome: str, hint: str | None, retryable: bool = True
    ) -> None:
        data: dict[str, object] = {"outcome": outcome, "retryable": retryable}
        if retryable:
            data["actor"] = "daemon"
        if hint is not None:
            data["hint"] = hint
        error = json.dumps({"code": code, "message": message, "data": data})
        self.to_client += f'{{"jsonrpc":"2.0","id":{key},"error":{error}}}\n'.encode()


def _json(data: bytes) -> object:
    """Return what the line says, or None when it says nothing that can be read."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        return None


def _key(request_id: object) -> str | None:
    """Return the JSON text of a request id, None when it is none that a daemon would take."""
    if isinstance(request_id, bool) or not isinstance(request_id, str | int):
        return None
    return json.dumps(request_id)
