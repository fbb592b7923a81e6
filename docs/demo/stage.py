"""What the acts of the demo share: the place, a bridge into it, and what they expect of it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bridge import Bridge
from load import Load
from narration import Progress
from place import DEMO, Place

POLL_S = 0.2


class Failed(Exception):
    """A promise did not hold; the text says which."""


class Stage:
    """One run of the demo."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.bridge: Bridge
        self.load: Load | None = None
        self.conversation: list[dict[str, Any]] = _read_lines(DEMO / "conversation.jsonl")

    def status(self) -> dict[str, Any]:
        """Ask the daemon how it is; the processes it names are remembered, so that none is left behind."""
        status: dict[str, Any] = self.bridge.call("system.status")
        self.place.watch(status)
        return status

    def wait_for_index(
        self, seconds: float, is_reached: Callable[[dict[str, Any]], bool], describe: Callable[[dict[str, Any]], str]
    ) -> dict[str, Any]:
        """Return index.status as soon as it is as wanted, or as it is when the time is over. Shows the progress."""
        progress, expires = Progress(), time.monotonic() + seconds
        while True:
            index: dict[str, Any] = self.bridge.call("index.status")
            if is_reached(index) or time.monotonic() >= expires:
                progress.end()
                return index
            progress.show(describe(index))
            time.sleep(POLL_S)


def expect(holds: bool, otherwise: str) -> None:
    """Raise Failed unless it holds."""
    if not holds:
        raise Failed(otherwise)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
