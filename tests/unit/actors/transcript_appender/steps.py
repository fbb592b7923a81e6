"""SIGKILL before the n-th step by which sealing, rotating or restoring changes files.

A step makes something durable or gives it a name. Counting n up meets every place between two steps.
"""

import itertools
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.sql import meta, swap
from actors.transcript_appender import catalogue, restoring, rotation, segments

NO_DEATH = 0


def die_at(step: int) -> None:
    """Let this process die before that step. For a child of a test only: nothing is put back."""
    steps = itertools.count(1)

    def counted(done: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return done(*args, **kwargs)

        return act

    for module in (segments, restoring, rotation):
        module.open_writer = counted(module.open_writer)  # type: ignore[attr-defined]
    for each in (catalogue, segments, restoring, swap):
        each.fsync_directory = counted(each.fsync_directory)  # type: ignore[attr-defined]
    meta.write = counted(meta.write)
    for name in ("replace", "rename", "unlink", "hardlink_to"):
        setattr(Path, name, counted(getattr(Path, name)))


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do the work in a child that is killed before its n-th step; return whether it was."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside the thread of the test's timeout
        pid = os.fork()
    if pid == 0:
        try:
            die_at(step)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert status in (NO_DEATH, signal.SIGKILL), f"it failed in another way: status {status}"
    return status != NO_DEATH
