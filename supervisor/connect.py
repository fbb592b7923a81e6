"""Find the daemon of a data directory, or start it: the one way in for bridges and the command line.

Any number of processes may look at the same time; exactly one daemon results. Whoever gets the start lock looks
again and only then starts one; the others wait for it. The daemon's own LOCK stays the last word: a daemon that
finds it taken ends with ALREADY_RUNNING and the one that runs is used.

A daemon takes connections before it has read its configuration, so a connection is not yet a daemon: it counts once
it has answered a first request. Thus nothing is handed to one that is about to fail, or that is leaving.

A Connector never blocks: it is asked to `attempt()` again and again, so that a bridge can serve its other
descriptors meanwhile. Standard library only; subprocess is imported when there is something to start.
"""
# ruff: noqa: PTH100, PTH103, PTH105, PTH116, PTH120, PTH123

import contextlib
import fcntl
import json
import os
import socket
import sys
import time

from supervisor import credentials, paths

TIMEOUT_S = 10.0
PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.1
RESPAWN_PAUSE_MIN_S = 0.25
# Exit code of a daemon that found LOCK held: the other one is used, or waited for while it drains.
ALREADY_RUNNING = 75
GREETING = b'{"jsonrpc":"2.0","id":"bulkhead-connect","method":"system.health"}\n'
GREETING_BYTES_MAX = 64 * 1024
STDERR_BYTES_MAX = 1024 * 1024
HINT_LINES = 5
HINT_BYTES = 2048

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

# Children outlive the connector that started them; kept here, they are reaped and never reported as forgotten.
_children: "list[subprocess.Popen[bytes]]" = []


class DaemonUnavailable(Exception):
    """No daemon answers on this data directory and none could be started. `hint` says what to look at."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class DaemonAbsent(DaemonUnavailable):
    """No daemon is running, and none was to be started."""


class Connector:
    """One search for the daemon. Call `attempt()` every `pause_s` until it returns a socket or raises."""

    def __init__(self, data: str, config: str | None, *, start: bool = True, timeout_s: float = TIMEOUT_S) -> None:
        self.pause_s = PAUSE_MIN_S
        self._data = data
        self._config = config
        self._start = start
        self._timeout_s = timeout_s
        self._give_up_at = time.monotonic() + timeout_s
        self._lock_fd: int | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._stderr_offset = 0
        self._spawn_not_before = 0.0
        self._respawn_pause_s = 0.0
        self._greeted: socket.socket | None = None
        self._heard = b""

    def fileno(self) -> int | None:
        """Return the descriptor whose readability is worth an attempt before `pause_s` is over, if there is one."""
        return None if self._greeted is None else self._greeted.fileno()

    def attempt(self) -> socket.socket | None:
        """Return a non-blocking socket to a daemon that answers, or None for "not yet".

        Raises DaemonUnavailable when the time is up, when the daemon that was started ended with an error, or at
        once when there is no daemon and `start` is false.
        """
        try:
            found = self._step()
        except (OSError, ValueError) as error:
            self.close()
            raise DaemonUnavailable(f"connection to the daemon of {_shown(self._data)!r} failed: {error}") from error
        except DaemonUnavailable:
            self.close()
            raise
        if found is not None:
            self.close()
        return found

    def close(self) -> None:
        """Give up what is held: the start lock, a connection that has not answered. A started daemon goes on."""
        self._drop_greeted()
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _step(self) -> socket.socket | None:
        if self._greeted is None:
            self._greet(self._find_or_start())
        answered = self._hear()
        if answered is None and time.monotonic() >= self._give_up_at:
            raise self._too_late()
        self.pause_s = min(self.pause_s * 1.5, PAUSE_MAX_S)
        return answered

    def _too_late(self) -> DaemonUnavailable:
        message = f"daemon of {_shown(self._data)!r} did not answer within {self._timeout_s:g} s"
        if self._respawn_pause_s and self._child is None:
            return DaemonUnavailable(message, "one holds LOCK and is starting, draining or stuck; see bulkhead status")
        return DaemonUnavailable(message, self._hint())

    def _find_or_start(self) -> socket.socket | None:
        connected, refused = self._connect()
        if connected is not None or not refused:
            return connected
        if not self._start:
            raise DaemonAbsent(f"no daemon is running on {_shown(self._data)!r}")
        return self._start_daemon()

    def _greet(self, connected: socket.socket | None) -> None:
        if connected is None:
            return
        self._greeted, self._heard = connected, b""
        try:
            connected.send(GREETING)
        except OSError:
            # It died between the two calls; the next attempt finds out what became of it.
            self._drop_greeted()

    def _hear(self) -> socket.socket | None:
        """Return the connection once its daemon has answered and may be used."""
        if self._greeted is None:
            return None
        try:
            data = self._greeted.recv(GREETING_BYTES_MAX)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._heard += data
        if not data:
            # It took the connection and ended: while starting, or leaving.
            self._drop_greeted()
        elif self._heard.endswith(b"\n"):
            return self._use_or_drop(self._heard)
        return None

    def _use_or_drop(self, line: bytes) -> socket.socket | None:
        answer = json.loads(line)
        if not isinstance(answer, dict) or not isinstance(answer.get("result"), dict):
            raise DaemonUnavailable(f"daemon of {_shown(self._data)!r} refused: {line.decode('utf-8', 'replace')}")
        if self._start and answer["result"].get("draining"):
            # It takes nothing new. When it has ended, another one is started.
            self._drop_greeted()
            return None
        connected, self._greeted = self._greeted, None
        return connected

    def _drop_greeted(self) -> None:
        if self._greeted is not None:
            self._greeted.close()
            self._greeted = None

    def _connect(self) -> tuple[socket.socket | None, bool]:
        """Return the connection, or None and whether nobody listens (else: a daemon is there but too busy)."""
        refused = True
        computed = paths.socket_path(self._data)
        for path in dict.fromkeys((computed, paths.advertised_socket(self._data) or computed)):
            candidate = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            candidate.setblocking(False)
            try:
                candidate.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                candidate.close()
            except BlockingIOError:
                # Its backlog is full. It must not be taken for absent: a second daemon would not help.
                candidate.close()
                refused = False
            except OSError:
                candidate.close()
                if path == computed:
                    raise
            else:
                return candidate, False
        return None, refused

    def _start_daemon(self) -> socket.socket | None:
        if self._child is not None:
            self._check_child()
            return None
        if time.monotonic() < self._spawn_not_before or not self._take_lock():
            return None
        # Between our failure to connect and the lock, another one may have started it.
        connected, refused = self._connect()
        if connected is None and refused:
            self._child = self._spawn()
        return connected

    def _check_child(self) -> None:
        assert self._child is not None
        code = self._child.poll()
        if code is None:
            return
        self._child = None
        if code == ALREADY_RUNNING or code < 0:
            # Another one is there, or will have gone in a moment; or this one was killed, which is not its fault.
            self._respawn_pause_s = max(RESPAWN_PAUSE_MIN_S, self._respawn_pause_s * 2)
            self._spawn_not_before = time.monotonic() + self._respawn_pause_s
            return
        raise DaemonUnavailable(
            f"daemon of {_shown(self._data)!r} ended with exit code {code} while starting", self._hint()
        )

    def _take_lock(self) -> bool:
        if self._lock_fd is not None:
            return True
        fd = os.open(paths.start_lock_path(self._data), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except OSError:
            os.close(fd)
            raise
        self._lock_fd = fd
        return True

    def _spawn(self) -> "subprocess.Popen[bytes]":
        import subprocess

        reap()
        paths.make_data_directory(self._data)
        command = [sys.executable, "-P", "-m", "supervisor", "serve", "--data", self._data]
        if self._config is not None:
            command += ["--config", self._config]
        with open(_open_stderr(paths.daemon_stderr_path(self._data)), "ab") as stderr:
            self._stderr_offset = os.fstat(stderr.fileno()).st_size
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                close_fds=True,
            )
        _children.append(child)
        return child

    def _hint(self) -> str:
        path = paths.daemon_stderr_path(self._data)
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(self._stderr_offset, size - HINT_BYTES))
                lines = file.read(HINT_BYTES).decode("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        said = "; ".join(line.strip() for line in lines[-HINT_LINES:])
        return f"it said: {said} (whole text: {_shown(path)})" if said else f"see {_shown(path)}"


def reap() -> None:
    """Collect daemons that this process started and that have ended, so that none stays a zombie."""
    _children[:] = [child for child in _children if child.poll() is None]


def _open_stderr(path: str) -> int:
    """Open the daemon's stderr file for appending; a large one is put aside first, so two of them are the most."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path).st_size > STDERR_BYTES_MAX:
            os.replace(path, f"{path}.1")
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def _environment() -> dict[str, str]:
    """Return the environment for the daemon: it must find `supervisor` and `actors` from any folder."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {name: value for name, value in os.environ.items() if name not in credentials.SECRETS}
    others = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path and path != root]
    environment["PYTHONPATH"] = os.pathsep.join([root, *others])
    return environment


def _shown(path: str) -> str:
    # A path may hold bytes that are not UTF-8; a message that goes into JSON must not.
    return os.fsencode(path).decode("utf-8", "replace")
