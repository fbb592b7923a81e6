"""The worker's side of `fired.jsonl`: each fault that happens is written down before it does its harm.

The file is opened once, so that a worker that has run out of descriptors can still say so. Lines are appended in one
write each, so that several workers can share the file.
"""

import os
import time
from pathlib import Path

import msgspec

from chaos.faults import places
from chaos.faults.kinds import Fired


class Ledger:
    """Writes down what happens in this process."""

    def __init__(self, data: Path, worker: str) -> None:
        self._worker = worker
        places.folder(data).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._fd = os.open(places.fired_file(data), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def record(self, fault: str, detail: str = "") -> None:
        """Write down that a fault happens now."""
        line = Fired(at=time.monotonic(), worker=self._worker, pid=os.getpid(), fault=fault, detail=detail)
        os.write(self._fd, msgspec.json.encode(line) + b"\n")
