"""`bulkhead stdio`: one client's pipes on one side, the daemon's socket on the other, and a loop between them.

Owns its stdin and stdout, and starts the daemon when there is none. Promises that stdout carries protocol lines
only, that every request gets one answer even when the daemon dies, that buffers are bounded both ways, and that it
leaves: at the end of stdin once the answers are out, when stdout is closed, when its parent is gone, on a signal.
What the lines mean is relay.py's; it reads no database and knows no method beyond the greeting.

One thread, no blocking call: a thread that sits in a read cannot be made to leave. Standard library only.
"""

import contextlib
import os
import select
import signal
import socket
import time
from types import FrameType

from supervisor.connect import Connector, DaemonUnavailable, reap
from supervisor.credentials import TokenRefused, hello_line
from supervisor.relay import CREDENTIALS_ID, Relay, State

READ_BYTES = 64 * 1024
# Answers that are still awaited when stdin ends: a script may pipe its requests in and close.
ANSWERS_WAIT_S = 30.0
# When the parent is gone nobody may be reading any more.
ORPHAN_WAIT_S = 1.0
PARENT_POLL_S = 1.0
CONNECT_S = 10.0
REPLAY_WAIT_S = 5.0
BACKOFF_MIN_S = 0.1
BACKOFF_MAX_S = 2.0
# A connection that held for so long starts the backoff afresh.
STEADY_S = 5.0
# The exit code when the file with the token cannot be used: the command has failed.
TOKEN_REFUSED = 1

_BROKEN = select.POLLERR | select.POLLHUP | select.POLLNVAL


def main(data: str, config: str | None, token_file: str | None = None) -> int:
    """Serve the client on file descriptors 0 and 1 until it leaves; return the exit code."""
    _occupy_standard_descriptors()
    try:
        credentials = hello_line(CREDENTIALS_ID, "bridge", token_file)
    except TokenRefused as error:
        os.write(2, f"bulkhead: {error}\n".encode("utf-8", "backslashreplace"))
        return TOKEN_REFUSED
    # Whatever prints from here on, C code included, prints to stderr.
    stdout = os.dup(1)
    os.dup2(2, 1)
    modes = [(fd, os.get_blocking(fd)) for fd in (0, stdout)]
    try:
        for fd, _ in modes:
            os.set_blocking(fd, False)
        return Bridge(data, config, stdin=0, stdout=stdout, credentials=credentials).run()
    finally:
        # The mode belongs to the open file, which a terminal shares with the shell.
        for fd, blocking in modes:
            with contextlib.suppress(OSError):
                os.set_blocking(fd, blocking)


class Bridge:
    """The loop: waits for whichever descriptor is ready and lets the relay say what comes of it."""

    def __init__(self, data: str, config: str | None, *, stdin: int, stdout: int, credentials: bytes = b"") -> None:
        self._data = data
        self._config = config
        self._stdin = stdin
        self._stdout = stdout
        self._relay = Relay(credentials=credentials)
        self._stdin_open = True
        self._leave_at: float | None = None
        self._signal = 0
        self._wake: int | None = None
        self._parent = os.getppid()
        self._parent_fd = _open_parent(self._parent)
        self._socket: socket.socket | None = None
        self._connector: Connector | None = None
        self._connect_at = 0.0
        self._connected_at = 0.0
        self._backoff_s = 0.0

    def run(self) -> int:
        """Run until there is a reason to leave; return the exit code."""
        self._wake = self._listen_for_signals()
        # Before a daemon is started for it: is there a client at all?
        self._wait_for_client(0)
        while (code := self._exit_code()) is None:
            self._connect()
            self._wait()
        if self._connector is not None:
            self._connector.close()
        return code

    # ------------------------------------------------------------ leaving

    def _exit_code(self) -> int | None:
        if self._signal:
            return 0 if self._signal == signal.SIGINT else 128 + self._signal
        if self._stdout < 0 or (not self._stdin_open and self._relay.finished):
            return 0
        if self._leave_at is not None and time.monotonic() >= self._leave_at:
            self._relay.give_up()
            self._write_client()
            return 0
        return None

    def _stdin_ended(self) -> None:
        self._stdin_open = False
        self._relay.client_ended()
        self._leave_within(ANSWERS_WAIT_S)

    def _parent_ended(self) -> None:
        if self._parent_fd is not None:
            os.close(self._parent_fd)
            self._parent_fd = None
        self._parent = 0
        # What it had written before is still in the pipe and is served; a pipe that others keep open is not waited on.
        self._leave_within(ORPHAN_WAIT_S)

    def _leave_within(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        self._leave_at = at if self._leave_at is None else min(self._leave_at, at)

    def _listen_for_signals(self) -> int:
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        # A daemon that was started here is a child, and is collected as soon as it ends.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        return reader

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number

    # ------------------------------------------------------------ waiting

    def _wait(self) -> None:
        """Wait until something is ready or due, and serve it."""
        interest = self._interest()
        poll = select.poll()
        for fd, events in interest.items():
            poll.register(fd, events)
        for fd, events in poll.poll(self._timeout_ms()):
            self._serve(fd, events)
        if self._parent_fd is None and self._parent and os.getppid() != self._parent:
            self._parent_ended()

    def _interest(self) -> dict[int, int]:
        """Return what to wait for. A descriptor that is not to be read now is left out: its hang-up would not wait."""
        relay = self._relay
        interest = {self._stdout: select.POLLOUT if relay.to_client else 0}
        if self._wake is not None:
            interest[self._wake] = select.POLLIN
        if self._parent_fd is not None:
            interest[self._parent_fd] = select.POLLIN
        if self._stdin_open and relay.accepts_client:
            interest[self._stdin] = interest.get(self._stdin, 0) | select.POLLIN
        if self._connector is not None and (greeted := self._connector.fileno()) is not None:
            interest[greeted] = select.POLLIN
        if self._socket is not None:
            events = (select.POLLIN if relay.accepts_daemon else 0) | (select.POLLOUT if relay.next_chunk() else 0)
            if events:
                interest[self._socket.fileno()] = events
        return interest

    def _timeout_ms(self) -> int | None:
        now = time.monotonic()
        due = [at for at in (self._leave_at, self._replay_until(), self._relay.next_expiry) if at is not None]
        if self._socket is None and self._relay.wants_connection:
            due.append(self._connect_at)
        if self._parent_fd is None and self._parent:
            due.append(now + PARENT_POLL_S)
        # Rounded up: rounded down it would be a busy loop for the last millisecond.
        return max(0, int((min(due) - now) * 1000) + 1) if due else None

    def _wait_for_client(self, timeout_ms: int) -> None:
        poll = select.poll()
        poll.register(self._stdin, select.POLLIN)
        if poll.poll(timeout_ms):
            self._read_client()

    def _serve(self, fd: int, events: int) -> None:
        if fd == self._wake:
            with contextlib.suppress(BlockingIOError):
                os.read(fd, READ_BYTES)
            reap()
        elif fd == self._parent_fd:
            self._parent_ended()
        elif self._connector is not None and fd == self._connector.fileno():
            self._connect_at = 0.0
        elif self._socket is not None and fd == self._socket.fileno():
            self._serve_daemon(events)
        else:
            if fd == self._stdin and events & (select.POLLIN | _BROKEN) and self._stdin_open:
                self._read_client()
            if fd == self._stdout:
                self._serve_stdout(events)

    # ------------------------------------------------------------ the client

    def _read_client(self) -> None:
        try:
            data = os.read(self._stdin, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            # EIO: the terminal is gone.
            data = b""
        if data:
            self._relay.client_said(data)
        else:
            self._stdin_ended()

    def _serve_stdout(self, events: int) -> None:
        if events & _BROKEN:
            self._stdout = -1
        elif events & select.POLLOUT:
            self._write_client()

    def _write_client(self) -> None:
        if self._stdout < 0 or not self._relay.to_client:
            return
        try:
            count = os.write(self._stdout, self._relay.to_client[:READ_BYTES])
        except BlockingIOError:
            return
        except OSError:
            # EPIPE: nobody reads what we answer, so there is nobody to serve.
            self._stdout = -1
            return
        self._relay.client_took(count)

    # ------------------------------------------------------------ the daemon

    def _connect(self) -> None:
        """Take one step towards a connection, when one is wanted and it is time."""
        self._relay.expire()
        now = time.monotonic()
        if (until := self._replay_until()) is not None and now >= until:
            self._lose()
        if self._socket is not None or not self._relay.wants_connection or now < self._connect_at:
            return
        if self._connector is None:
            self._connector = Connector(self._data, self._config, timeout_s=CONNECT_S)
        try:
            self._socket = self._connector.attempt()
        except DaemonUnavailable as error:
            self._connector = None
            self._connect_at = 0.0
            self._relay.unavailable(str(error), error.hint)
            return
        if self._socket is None:
            self._connect_at = time.monotonic() + self._connector.pause_s
            return
        self._connector = None
        self._connected_at = time.monotonic()
        self._relay.connected()

    def _replay_until(self) -> float | None:
        return self._connected_at + REPLAY_WAIT_S if self._relay.state is State.REPLAYING else None

    def _serve_daemon(self, events: int) -> None:
        try:
            if events & select.POLLOUT:
                self._write_daemon()
            if events & (select.POLLIN | _BROKEN):
                self._read_daemon()
        except (OSError, ValueError):
            self._lose()

    def _write_daemon(self) -> None:
        assert self._socket is not None
        try:
            count = self._socket.send(self._relay.next_chunk())
        except BlockingIOError:
            return
        except OSError:
            # Answers that it gave before it died are still to be read; the end of the stream comes after them.
            return
        self._relay.daemon_took(count)

    def _read_daemon(self) -> None:
        assert self._socket is not None
        try:
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._lose()
            return
        self._relay.daemon_said(data)

    def _lose(self) -> None:
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        self._relay.lost()
        now = time.monotonic()
        steady = now - self._connected_at >= STEADY_S
        self._backoff_s = 0.0 if steady else min(max(BACKOFF_MIN_S, self._backoff_s * 2), BACKOFF_MAX_S)
        self._connect_at = now + self._backoff_s


def _occupy_standard_descriptors() -> None:
    """Open what was closed: the socket must not become file descriptor 0, 1 or 2."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # The lowest free number is taken, which is `fd`.
            os.open(os.devnull, os.O_RDWR)


def _open_parent(parent: int) -> int | None:
    """Return a descriptor that becomes readable when the parent ends, None where the system has no such thing."""
    try:
        return os.pidfd_open(parent)
    except (AttributeError, OSError):
        return None
