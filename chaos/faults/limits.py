"""Limits of the process as faults: descriptors and the size of files. Taken back by `restore`."""

import os
import resource

from chaos.faults.kinds import Descriptors, FileSize


class Limits:
    """The limits of this process that were lowered."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, int]] = {}

    def lower(self, fault: Descriptors | FileSize) -> None:
        """Lower a limit from now on."""
        if isinstance(fault, Descriptors):
            highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - names are numbers
            self._set(resource.RLIMIT_NOFILE, highest + fault.headroom)
        else:
            self._set(resource.RLIMIT_FSIZE, fault.limit)

    def restore(self) -> None:
        """Put every limit back."""
        for which, before in self._before.items():
            resource.setrlimit(which, before)
        self._before.clear()

    def _set(self, which: int, soft: int) -> None:
        before = resource.getrlimit(which)
        self._before.setdefault(which, before)
        resource.setrlimit(which, (soft, before[1]))
