"""SIGKILL before the n-th step by which sealing or restoring changes files.

A step makes something durable or gives it a name. Counting n up meets every place between two steps.
"""

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from actors.sql import meta, swap
from actors.transcript_appender import catalogue, restoring, segments


def die_at(step: int) -> None:
    """Let this process die before that step. For a child of a test only: nothing is put back."""
    steps = itertools.count(1)

    def counted(done: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            if next(steps) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return done(*args, **kwargs)

        return act

    for module in (segments, restoring):
        module.open_writer = counted(module.open_writer)  # type: ignore[attr-defined]
    for each in (catalogue, segments, restoring, swap):
        each.fsync_directory = counted(each.fsync_directory)  # type: ignore[attr-defined]
    meta.write = counted(meta.write)
    for name in ("replace", "rename", "unlink", "hardlink_to"):
        setattr(Path, name, counted(getattr(Path, name)))
