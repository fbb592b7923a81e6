"""What a daemon holds: processes, descriptors, threads, temporary files, sockets. Compared before and after (I10)."""

import os
import re
from collections import Counter
from pathlib import Path

import msgspec
import psutil

from actors.generation import TEMPORARY, sealed_deltas, sealed_numbers

DESCRIPTORS_MORE = 5
THREADS_MORE = 5
GENERATIONS_MAX = 4
DELTAS_MAX = 2  # the one that serves, and one that was replaced a moment ago
INDEX = "generation_builder"
PIPES = 3  # of a worker: stdin, stdout, stderr
# What may run at rest even if it had not started yet when the census was taken.
ROSTER = {
    "actors.core_writer.worker": 2,  # one at work, one that waits for its turn (actors/understudy.py)
    "actors.transcript_appender.worker": 2,
    "actors.cache_manager.worker": 2,
    "actors.generation_builder.worker": 2,  # one makes deltas, one may be making a generation
    "actors.generation_builder.embedder": 1,
    "actors.generation_builder.watcher": 1,
    "actors.searcher.worker": 2,
}
_MODULE = re.compile(r"actors\.\w+\.\w+|supervisor")


class Census(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon of a data directory holds at a moment."""

    processes: tuple[str, ...]  # what each of its processes runs, sorted
    descriptors: int  # without the three pipes of each process
    threads: int
    temporary: tuple[str, ...]
    generations: tuple[int, ...] = ()
    deltas: tuple[tuple[int, int], ...] = ()


def take_census(data: Path, pid: int, *, building: bool = False) -> Census:
    """Count what the daemon with this pid holds; the folder of a build under way is left out.

    Raises psutil.NoSuchProcess when it is gone.
    """
    daemon = psutil.Process(pid)
    children = daemon.children(recursive=True)
    return Census(
        processes=tuple(sorted(_runs(child) for child in children)),
        descriptors=daemon.num_fds() - PIPES * len(children),
        threads=daemon.num_threads(),
        temporary=tuple(name for name in temporary_files(data) if not (building and name.startswith(f"{INDEX}/"))),
        generations=tuple(sealed_numbers(data / INDEX)),
        deltas=tuple(sealed_deltas(data / INDEX)),
    )


def temporary_files(data: Path) -> tuple[str, ...]:
    """Return the temporary files and folders in a data directory, outermost names only."""
    found: list[str] = []
    # `walk` passes over folders that vanish meanwhile, which those of a build under way do.
    for folder, folders, files in os.walk(data):
        temporary = {name for name in (*folders, *files) if name.endswith(TEMPORARY)}
        folders[:] = [name for name in folders if name not in temporary]
        found += [str((Path(folder) / name).relative_to(data)) for name in temporary]
    return tuple(sorted(found))


def check_leaks(before: Census, after: Census) -> list[str]:
    """Return what is held after the faults that was not held in the quiet before (I10)."""
    wrong = []
    more = Counter(after.processes) - (Counter(before.processes) | Counter(ROSTER))
    if more:
        wrong.append(f"I10: processes too many: {dict(more)}, were {list(before.processes)}")
    if after.descriptors > before.descriptors + DESCRIPTORS_MORE:
        wrong.append(
            f"I10: the daemon holds {after.descriptors} descriptors besides its pipes, {before.descriptors} before"
        )
    if after.threads > before.threads + THREADS_MORE:
        wrong.append(f"I10: the daemon has {after.threads} threads, {before.threads} before")
    left = [name for name in after.temporary if name not in before.temporary]
    if left:
        wrong.append(f"I10: temporary files are left: {left}")
    if len(after.generations) > GENERATIONS_MAX:
        wrong.append(f"I10: {len(after.generations)} generations are on disk: {list(after.generations)}")
    if len(after.deltas) > DELTAS_MAX:
        wrong.append(f"I10: {len(after.deltas)} deltas are on disk: {list(after.deltas)}")
    return wrong


def check_gone(socket_path: str, family: list[str]) -> list[str]:
    """Return what is left of a daemon that was told to leave."""
    wrong = [f"I10: a process is left after the drain: {line}" for line in family]
    if Path(socket_path).exists():
        wrong.append(f"I10: the socket file is left after the drain: {Path(socket_path).name}")
    return wrong


def _runs(process: psutil.Process) -> str:
    try:
        line = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return "(gone)"
    match = _MODULE.search(line)
    return match[0] if match else line[:80]
