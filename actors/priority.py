"""How a worker gives way: CPU, I/O, and when memory runs out. Child side; preferences, never promises.

A worker is a session of its own. With Linux' autogroups a nice value counts only inside of its session: two sessions
on one CPU shared it evenly although one of them had nice 19 and SCHED_IDLE, and 12 to 1 once its group had 19 as well.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

AUTOGROUP = Path("/proc/self/autogroup")
GROUP_TRIES = 50
GENTLE_NICE = 5


def lower(*, nice: int, idle_class: bool, oom_score_adj: int) -> None:
    """Lower the priority of this process for good."""
    if nice:
        os.nice(nice)
        set_group_nice(nice)
    if sys.platform != "linux":
        return
    if idle_class:
        import psutil

        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    if oom_score_adj:
        # Some containers forbid it.
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(oom_score_adj))


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """Give way to other sessions for a while, where the kernel schedules sessions against each other."""
    before = group_nice()
    if before is None:
        yield
        return
    set_group_nice(max(before, GENTLE_NICE))
    try:
        yield
    finally:
        set_group_nice(before)


def group_nice() -> int | None:
    """Return the nice value of our session's group, None where there are no groups."""
    try:
        return int(AUTOGROUP.read_text().rsplit(" ", 1)[-1])
    except (OSError, ValueError):
        return None


def set_group_nice(nice: int) -> None:
    """Set it, as well as it can be done: the kernel takes ten of these a second from all processes together."""
    for _ in range(GROUP_TRIES):
        try:
            AUTOGROUP.write_text(str(nice))
            return
        except BlockingIOError:
            time.sleep(0.1)
        except OSError:
            return
