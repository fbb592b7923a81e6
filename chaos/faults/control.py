"""The scenario's side: tell a worker what to suffer, and read what really happened.

    await inject(data, "core_writer", fault="hang", lane="write", seconds=5)
    await clear(data, "core_writer")
    at_start(data, "transcript_appender", {"fault": "disk_volatile"})     # for incarnations that begin from now on
    fired(data, "transcript_appender")

Worker names are those of `Setup.actor`: core_writer, transcript_appender, cache_manager, searcher (two of them: give a
pid), generation_builder, embedder. What may be asked for is in kinds.py; anything else is refused here, unsent.
Every wait is bounded.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import trio

from chaos.faults import places
from chaos.faults.kinds import AnyFault, AtStart, Clear, Command, Fired, Inject, Status

ANSWER_S = 5.0
FIND_S = 30.0
POLL_S = 0.02

State = dict[str, object]


class FaultRefused(Exception):
    """The fault is unknown, or the worker can't have it."""


class WorkerSilent(Exception):
    """No worker of this name opened its door, or it did not answer."""


async def inject(data: Path, worker: str, *, pid: int | None = None, **fault: object) -> State:
    """Give a live worker a fault and return its state. Waits up to FIND_S seconds for a worker with that name.

    Raises FaultRefused, and WorkerSilent when there is no worker or no answer.
    """
    return await _ask(data, worker, pid, Inject(fault=decode(fault)))


async def clear(data: Path, worker: str, *, pid: int | None = None) -> State:
    """Take every fault back, also from incarnations to come, and return the worker's state."""
    forget_start(data, worker)
    return await _ask(data, worker, pid, Clear())


async def status(data: Path, worker: str, *, pid: int | None = None) -> State:
    """Return what a worker has armed and counted."""
    return await _ask(data, worker, pid, Status())


def at_start(data: Path, worker: str, *faults: Mapping[str, object], starts: int | None = None) -> None:
    """Give faults to the next incarnations before their rooms open anything, to `starts` of them (None: to all)."""
    given = AtStart(faults=[decode(fault) for fault in faults], starts=starts)
    path = places.start_file(data, worker)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(given))
    temporary.replace(path)


def forget_start(data: Path, worker: str) -> None:
    """Give nothing to the incarnations to come."""
    places.start_file(data, worker).unlink(missing_ok=True)


def fired(data: Path, worker: str | None = None, fault: str | None = None) -> list[Fired]:
    """Return the faults that happened, in order, of one worker and of one kind when these are given."""
    try:
        lines = places.fired_file(data).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = [msgspec.json.decode(line, type=Fired) for line in lines]
    return [each for each in found if worker in (None, each.worker) and fault in (None, each.fault)]


async def wait_fired(data: Path, worker: str, fault: str, *, times: int = 1, seconds: float = FIND_S) -> list[Fired]:
    """Wait until a fault happened so often in a worker (all its incarnations count); raise TimeoutError otherwise."""
    give_up = time.monotonic() + seconds
    while len(found := fired(data, worker, fault)) < times:
        if time.monotonic() > give_up:
            raise TimeoutError(f"{fault!r} happened {len(found)} times in {worker}, waited {seconds} s for {times}")
        await trio.sleep(POLL_S)
    return found


def decode(fault: Mapping[str, object]) -> AnyFault:
    """Return a fault from its members; raise FaultRefused for one that does not exist."""
    try:
        return msgspec.convert(dict(fault), AnyFault)  # type: ignore[no-any-return]
    except msgspec.ValidationError as error:
        raise FaultRefused(f"fault {fault!r} refused: {error}") from error


async def _ask(data: Path, worker: str, pid: int | None, command: Command) -> State:
    give_up = time.monotonic() + FIND_S
    while True:
        try:
            answer = await _exchange(_choose(data, worker, pid), command)
        except (OSError, EOFError, trio.BrokenResourceError) as error:
            # A door whose worker is just being killed, or not there yet.
            if time.monotonic() > give_up:
                raise WorkerSilent(f"{worker} opened no control door within {FIND_S} s: {error}") from error
            await trio.sleep(POLL_S)
            continue
        if not answer.pop("ok"):
            raise FaultRefused(str(answer["error"]))
        return answer


def _choose(data: Path, worker: str, pid: int | None) -> Path:
    doors = places.doors(data, worker)
    if pid is not None:
        if pid not in doors:
            raise WorkerSilent(f"{worker} with pid {pid} has no open control door; is it alive?")
        return doors[pid]
    if len(doors) == 1:
        return next(iter(doors.values()))
    # Two may also be a worker and the one before it, which is dead and not yet reaped: that is asked again.
    raise FileNotFoundError(f"there are {len(doors)} workers named {worker!r} (pids {sorted(doors)}): give a pid")


async def _exchange(path: Path, command: Command) -> State:
    with trio.move_on_after(ANSWER_S):
        async with await trio.open_unix_socket(str(path)) as stream:
            await stream.send_all(msgspec.json.encode(command) + b"\n")
            line = b""
            while not line.endswith(b"\n"):
                data = await stream.receive_some(65536)
                if not data:
                    raise EOFError(f"the worker behind {path.name} closed its door")
                line += data
            return msgspec.json.decode(line, type=State)
    raise WorkerSilent(f"the worker behind {path.name} did not answer within {ANSWER_S} s")
