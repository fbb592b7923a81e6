"""What this machine can run: the engine of the default model was compiled for AVX2 and has no other path inside.

Calling it on an older processor would end the process with SIGILL, so this is asked before it is loaded.
"""

import os
import platform
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
_NEEDED = frozenset({"avx2", "fma"})


def cores() -> int:
    """Return how many processors this process may use."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    return len(os.sched_getaffinity(0))


def runs_avx2() -> bool:
    """Say whether code compiled for AVX2 runs here; True where the engine is compiled for another architecture.

    A Linux that does not tell what its processor can do counts as one that cannot.
    """
    if sys.platform != "linux" or platform.machine().lower() not in ("x86_64", "amd64"):
        return True
    try:
        with CPUINFO.open() as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return _NEEDED.issubset(flags.split())
