"""The clock that leases are measured with, and which boot of the machine it belongs to."""

import time
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def monotonic_ns() -> int:
    """Return CLOCK_MONOTONIC in ns."""
    return time.monotonic_ns()


@cache
def boot() -> str:
    """Return what tells this boot from another; empty where the system does not say."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
