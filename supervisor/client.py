"""A small synchronous client of the daemon, for the command line and for scripts: one request at a time.

Finds the daemon, or starts it, as a bridge does. Promises that every request ends by its deadline, with a result or
a typed error, and that a broken connection is opened again for the next request. Never repeats a request by itself:
what is safe to repeat, only the caller knows.
"""

import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Self

import msgspec

from supervisor import paths
from supervisor.connect import Connector, DaemonAbsent, DaemonUnavailable
from supervisor.credentials import TokenRefused, hello_line

__all__ = ["Client", "DaemonAbsent", "DaemonUnavailable", "Progress", "RequestFailed"]

DEADLINE_S = 30.0
CONNECT_S = 10.0
# A daemon answers by its own deadlines; ours is the last resort.
ANSWER_BYTES_MAX = 64 * 1024 * 1024
READ_BYTES = 256 * 1024

ACTOR_DIED = 1002
DEADLINE_EXCEEDED = 1004
PERMISSION_DENIED = 1020
CLIENT_NAME = "bulkhead"

Progress = Callable[[dict[str, object]], None]


class RequestFailed(Exception):
    """The daemon answered with an error, or the answer did not come.

    `code` and `data` are the error's; `outcome` is "unknown" when the request may have been carried out.
    """

    def __init__(self, code: int, message: str, data: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = dict(data or {})

    @property
    def retryable(self) -> bool:
        """Return whether the same request may succeed later."""
        return self.data.get("retryable") is True

    @property
    def outcome(self) -> str:
        """Return "not_executed", "committed" or "unknown"."""
        return str(self.data.get("outcome", "not_executed"))

    @property
    def hint(self) -> str | None:
        """Return what the daemon advises, if it does."""
        hint = self.data.get("hint")
        return hint if isinstance(hint, str) else None


class _Error(msgspec.Struct):
    code: int
    message: str
    data: dict[str, object] | None = None


class _Incoming(msgspec.Struct):
    id: int | str | None = None
    method: str | None = None
    params: dict[str, object] | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Incoming)


class Client:
    """A connection to the daemon of one data directory, opened at the first request. Also a context manager."""

    def __init__(self, data: str | None = None, config: str | None = None, *, start: bool = True) -> None:
        self.data = paths.data_directory(data)
        self._config = paths.config_file(config)
        self._start = start
        self._socket: socket.socket | None = None
        self._buffer = bytearray()
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The daemon goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._buffer.clear()

    def connect(self, timeout_s: float = CONNECT_S) -> socket.socket:
        """Return the connection, opened if there is none.

        Raises DaemonUnavailable when there can be none, RequestFailed when our token is not taken.
        """
        if self._socket is None:
            connector = Connector(self.data, self._config, start=self._start, timeout_s=timeout_s)
            try:
                while (found := connector.attempt()) is None:
                    greeted = connector.fileno()
                    select.select([] if greeted is None else [greeted], [], [], connector.pause_s)
            finally:
                connector.close()
            self._socket = found
            self._introduce(found, time.monotonic() + timeout_s)
        return self._socket

    def _introduce(self, connection: socket.socket, expires: float) -> None:
        """Prove who we are, where the environment has a token; raise RequestFailed when it is not taken."""
        self._last_id += 1
        try:
            line = hello_line(self._last_id, CLIENT_NAME)
            if line:
                _limit(connection, expires)
                connection.sendall(line)
                self._answer(connection, self._last_id, expires, None)
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self.close()
            raise _failed(ACTOR_DIED, f"hello failed: the connection to the daemon broke: {error}", None) from error
        except TokenRefused as error:
            self.close()
            raise RequestFailed(PERMISSION_DENIED, str(error)) from error
        except RequestFailed:
            self.close()
            raise

    def request(
        self,
        method: str,
        params: Mapping[str, object] | None = None,
        deadline_s: float = DEADLINE_S,
        on_progress: Progress | None = None,
    ) -> object:
        """Send a request and return its result.

        Raises RequestFailed with the daemon's error; with code 1002 (outcome "unknown") when the daemon was lost
        meanwhile and 1004 when `deadline_s` passed; DaemonUnavailable when there is none. `on_progress` is given
        the params of every progress notification that comes before the answer.
        """
        expires = time.monotonic() + deadline_s
        connection = self.connect(min(CONNECT_S, deadline_s))
        self._last_id += 1
        line = msgspec.json.encode(
            {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": dict(params or {})}
        )
        try:
            _limit(connection, expires)
            connection.sendall(line + b"\n")
            return self._answer(connection, self._last_id, expires, on_progress)
        except TimeoutError:
            self.close()
            raise _failed(
                DEADLINE_EXCEEDED, f"{method} was not answered within {deadline_s:g} s", "look at: bulkhead status"
            ) from None
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            self.close()
            raise _failed(ACTOR_DIED, f"{method} failed: the connection to the daemon broke: {error}", None) from error

    def _answer(
        self, connection: socket.socket, request_id: int, expires: float, on_progress: Progress | None
    ) -> object:
        while True:
            incoming = _decoder.decode(self._read_line(connection, expires))
            if incoming.method == "notifications/progress" and on_progress is not None:
                on_progress(incoming.params or {})
            # There is one request at a time, so a refusal of a line that could not be read is about ours.
            mine = incoming.id == request_id or (incoming.id is None and incoming.error is not None)
            if incoming.method is not None or not mine:
                continue
            if incoming.error is not None:
                raise RequestFailed(incoming.error.code, incoming.error.message, incoming.error.data)
            return msgspec.json.decode(incoming.result)

    def _read_line(self, connection: socket.socket, expires: float) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > ANSWER_BYTES_MAX:
                raise EOFError(f"an answer is over {ANSWER_BYTES_MAX} bytes")
            _limit(connection, expires)
            data = connection.recv(READ_BYTES)
            if not data:
                raise EOFError("the daemon closed it")
            self._buffer += data
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line


def _limit(connection: socket.socket, expires: float) -> None:
    remaining = expires - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    connection.settimeout(remaining)


def _failed(code: int, message: str, hint: str | None) -> RequestFailed:
    data: dict[str, object] = {"actor": "daemon", "outcome": "unknown", "retryable": True}
    if hint is not None:
        data["hint"] = hint
    return RequestFailed(code, message, data)
