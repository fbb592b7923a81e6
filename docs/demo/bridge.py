"""One `bulkhead stdio` process and a conversation with it over its pipes, one request at a time.

This is all that a program needs in order to use Bulkhead: start the bridge, write a line of JSON, read a line of JSON.
The bridge starts the daemon when there is none, and starts it again when it was killed.
"""

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent
READ_BYTES = 256 * 1024
PATIENCE_S = 30.0


class Refused(Exception):
    """The answer was an error. `data` says whether something was done (`outcome`) and whether to try again."""

    def __init__(self, method: str, error: dict[str, Any]) -> None:
        super().__init__(f"{method}: {error.get('message')} (code {error.get('code')})")
        self.data: dict[str, Any] = error.get("data") or {}

    @property
    def retryable(self) -> bool:
        """Return whether the same request, with the same request_id, may succeed later."""
        return self.data.get("retryable") is True


class Bridge:
    """A started bridge for one data directory. Not for use by two threads at a time: start another one instead."""

    def __init__(self, data: Path, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisor", "stdio", "--data", str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, "PYTHONPATH": str(REPOSITORY)},
            # Ctrl+C is for the demo, which then ends its bridges in order.
            start_new_session=True,
        )
        self._buffer = b""
        self._last_id = 0

    def call(self, method: str, **params: object) -> Any:
        """Send a request and return its result; raise Refused, or OSError when the bridge itself is gone or silent."""
        assert self._process.stdin is not None
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        # The daemon answers by its own deadline, which is 10 s; the bridge speaks for it when it is dead.
        expires = time.monotonic() + PATIENCE_S
        while (answer := json.loads(self._line(method, expires))).get("id") != self._last_id:
            # A notification, or the late answer to a request that was interrupted.
            continue
        if "error" in answer:
            raise Refused(method, answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End the bridge by ending its input. The daemon goes on."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            self._process.kill()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _line(self, method: str, expires: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._process.stdout], [], [], max(0.0, expires - time.monotonic()))
            if not ready:
                raise TimeoutError(f"{method} was not answered in time")
            data = os.read(self._process.stdout.fileno(), READ_BYTES)
            if not data:
                raise ConnectionError("the bridge has ended")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line
