"""`bulkhead stdio` as a host sees it: a process with pipes. What the tests of the bridge and of the daemon use."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 30.0


class BridgeClient:
    """A started bridge. Requests get ids from 1; answers are read in the order in which they come."""

    def __init__(
        self,
        data: Path,
        *,
        root: Path = ROOT,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        **popen: Any,
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "supervisor", "stdio", "--data", str(data), *arguments],
            env={**os.environ, **(environment or {}), "PYTHONPATH": str(root)},
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen},
        )
        self._buffer = b""
        self._last_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue

    def send(self, data: bytes) -> None:
        """Write bytes as they are."""
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def ask(self, method: str, **params: object) -> int:
        """Send a request and return its id."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self.send(json.dumps(message).encode() + b"\n")
        return self._last_id

    def tell(self, method: str, **params: object) -> None:
        """Send a notification."""
        self.send(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n")

    def read(self) -> dict[str, Any]:
        """Return the next line of stdout, which must be a JSON object; AssertionError when none comes."""
        line = self.read_line()
        message = json.loads(line)
        assert isinstance(message, dict), line
        return message

    def read_line(self) -> bytes:
        """Return the next line of stdout with its end, b"" at the end of stdout."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"no answer within {PATIENCE_S} s"
            data = os.read(self.process.stdout.fileno(), 1 << 20)
            if not data:
                rest, self._buffer = self._buffer, b""
                return rest
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def call(self, method: str, **params: object) -> Any:
        """Send a request, skip notifications, and return the answer (`result` or `error` in it)."""
        request_id = self.ask(method, **params)
        while (message := self.read()).get("id") != request_id:
            assert "method" in message, message
        return message

    def result(self, method: str, **params: object) -> Any:
        """Call and return the result; AssertionError when it is an error."""
        answer = self.call(method, **params)
        assert "result" in answer, answer
        return answer["result"]

    def close_stdin(self) -> None:
        """End the client's stream."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def wait(self) -> int:
        """Wait until the bridge has left; return its exit code."""
        return self.process.wait(PATIENCE_S)
