"""The control door of a worker: a unix socket that takes one command a connection and answers it, both a line of JSON.

Served by a thread of its own, one connection after the other, so that a hanging lane does not shut it. It keeps a
spare descriptor, so that a worker that has run out of them can still be told to stop.
"""

import contextlib
import errno
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from chaos.faults import places
from chaos.faults.kinds import Command

CONNECTION_S = 2.0
COMMAND_BYTES_MAX = 65536


class Door:
    """The door of this process."""

    def __init__(self, data: Path, worker: str, obey: Callable[[Command], dict[str, object]]) -> None:
        self._obey = obey
        self._decoder = msgspec.json.Decoder(Command)
        path = places.door(data, worker, os.getpid())
        _remove_dead(data, worker)
        path.unlink(missing_ok=True)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(os.fspath(path))
        self._listening.listen(8)
        self._spare = os.open(os.devnull, os.O_RDONLY)
        threading.Thread(target=self._serve, name="faults", daemon=True).start()

    def _serve(self) -> None:
        while True:
            with contextlib.suppress(OSError), self._accept() as connection:
                connection.settimeout(CONNECTION_S)
                connection.sendall(msgspec.json.encode(self._answer(connection)) + b"\n")
            if self._spare < 0:
                with contextlib.suppress(OSError):
                    self._spare = os.open(os.devnull, os.O_RDONLY)

    def _accept(self) -> socket.socket:
        try:
            return self._listening.accept()[0]
        except OSError as error:
            if error.errno != errno.EMFILE or self._spare < 0:
                raise
            os.close(self._spare)
            self._spare = -1
            return self._listening.accept()[0]

    def _answer(self, connection: socket.socket) -> dict[str, object]:
        line = b""
        while not line.endswith(b"\n") and len(line) < COMMAND_BYTES_MAX:
            data = connection.recv(COMMAND_BYTES_MAX)
            if not data:
                break
            line += data
        try:
            return {"ok": True, **self._obey(self._decoder.decode(line))}
        except (msgspec.MsgspecError, ValueError, OSError) as error:
            return {"ok": False, "error": str(error)}


def _remove_dead(data: Path, worker: str) -> None:
    """Remove the doors that killed incarnations left."""
    alive = places.doors(data, worker).values()
    for path in places.folder(data).glob(f"{worker}.*.sock"):
        if path not in alive:
            path.unlink(missing_ok=True)
