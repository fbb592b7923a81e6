"""The rough act: a rebuild, real SIGKILLs in the middle of it, and two clients that append and search all the while."""

import os
import signal
import time
from typing import Any

from bridge import Refused
from load import Load, Second
from narration import detail, headline, say, struck
from stage import Failed, Stage, expect

MAYHEM_S = 22  # how long the clients go on, at least
MAYHEM_S_MAX = 90  # … and at most, while waiting for a generation that was published after all the kills
CATCH_BUILD_S = 10.0  # how long a build may take until it is where we want to kill it
# What a search may do without in this act; anything else is worth a look.
FORESEEN = ("no_vectors", "no_generation", "search_worker_unavailable")


def make_it_rough(stage: Stage) -> None:
    """Rebuild the index and kill everything in turn, while two clients append and search without pause."""
    headline("Now it gets rough: a rebuild, real SIGKILLs, and two clients that never stop")
    detail("  Times in ms, the worst of each second. After an error a client tries again (same request_id).")
    say(f"  {'':>3} {'appends':>8} {'worst':>6} {'searches':>9} {'worst':>6} {'errors':>7}  answered by")
    stage.load = Load(stage.place.open_bridge)
    stage.load.start()
    deeds = [(3, kill_builder), (6, kill_searcher), (10, kill_all_three), (15, kill_daemon)]
    published_before = None
    rebuilt = False
    for second in range(1, MAYHEM_S_MAX + 1):
        time.sleep(1.0)
        _show_second(second, stage.load.take_second())
        status = stage.status()
        published = status["index"]["builds"]["published"]
        # Whoever was killed before is given the time to come back, however slow the machine is.
        if deeds and second >= deeds[0][0] and status["searcher"]["workers_ready"] == 2:
            deeds.pop(0)[1](stage)
        elif not deeds and published_before is None:
            published_before = published
        rebuilt = published_before is not None and published > published_before
        if stage.load.failure is not None or (rebuilt and second >= MAYHEM_S):
            break
    stage.load.stop()
    if stage.load.failure is not None:
        raise Failed(f"a client had to give up: {stage.load.failure}")
    expect(rebuilt, f"no generation was published within {MAYHEM_S_MAX} s in spite of the kills")
    status = stage.status()
    say(f"Generation {status['index']['generation']} was published since. {_states(status)}.")


def kill_builder(stage: Stage) -> None:
    """Ask for a rebuild, and kill the worker that builds in the middle of it."""
    building = _start_build(stage, until=("write events", "write documents", "test", "seal"))
    pid = _worker(stage.status(), "generation_builder")
    _sigkill(pid)
    struck(f"index.rebuild, {_where(building)}; SIGKILL of the worker that builds (pid {pid})")


def kill_searcher(stage: Stage) -> None:
    """Kill the process that answers searches."""
    searcher = stage.status()["actors"]["searcher"]
    _sigkill(searcher["pid"])
    struck(f"SIGKILL of the active search worker (pid {searcher['pid']}); the spare is {searcher['spare_pid']}")


def kill_all_three(stage: Stage) -> None:
    """Kill the builder in the middle of a build, and at the same moment both search workers: words alone remain."""
    building = _start_build(stage, until=("test", "seal"))
    status = stage.status()
    searcher = status["actors"]["searcher"]
    pids = [_worker(status, "generation_builder"), searcher["pid"], searcher["spare_pid"]]
    for pid in filter(None, pids):
        _sigkill(pid)
    struck(f"index.rebuild, {_where(building)}; SIGKILL of builder and both search workers {pids}")


def kill_daemon(stage: Stage) -> None:
    """Kill the daemon itself. The bridges find out, start another one, and go on."""
    pid = stage.status()["pid"]
    _sigkill(pid)
    struck(f"SIGKILL of the daemon itself (pid {pid})")
    begun = time.monotonic()
    # Whoever has a request in hand is told at once that its fate is unknown; a question is simply asked again.
    while (now := _pid_or_none(stage)) in (None, pid):
        time.sleep(0.01)
    say(f"      a bridge has started another one: pid {now} answered after {(time.monotonic() - begun) * 1000:.0f} ms")


def _pid_or_none(stage: Stage) -> int | None:
    try:
        return int(stage.status()["pid"])
    except Refused as error:
        if not error.retryable:
            raise
        return None


def _start_build(stage: Stage, *, until: tuple[str, ...]) -> dict[str, Any] | None:
    """Ask for a rebuild and wait until it has come so far; return what is being built, None when it was quicker."""
    build = stage.bridge.call("index.rebuild", reason="demo")["build"]
    expires = time.monotonic() + CATCH_BUILD_S
    while time.monotonic() < expires:
        index = stage.bridge.call("index.status")
        building: dict[str, Any] | None = index["building"]
        if building is not None and building["stage"] in until:
            return building
        if index["builds"]["published"] >= build:
            return None
        time.sleep(0.002)
    return None


def _worker(status: dict[str, Any], name: str) -> int | None:
    """Return the pid of an actor's worker of the same name."""
    workers = status["actors"][name]["workers"]
    return next((int(worker["pid"]) for worker in workers if worker["name"] == name), None)


def _sigkill(pid: int | None) -> None:
    expect(pid is not None, "there was no process to kill")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def _where(building: dict[str, Any] | None) -> str:
    if building is None:
        return "finished already"
    return f"now at {building['stage']!r}"


def _states(status: dict[str, Any]) -> str:
    states = {actor["state"] for actor in status["actors"].values()}
    return f"The {len(status['actors'])} actors are {' and '.join(sorted(states))}"


def _show_second(number: int, second: Second) -> None:
    answered_by = ", ".join(sorted("words only" if each is None else f"gen. {each}" for each in second.generations))
    others = ", ".join(f"{code} {count}×" for code, count in second.degraded.items() if code not in FORESEEN)
    answered_by = f"{answered_by or '–'}; without {others}" if others else answered_by or "–"
    say(
        f"  {number:>3} {second.appends:>8} {second.append_ms_max:>6.0f} {second.searches:>9}"
        f" {second.search_ms_max:>6.0f} {second.errors:>7}  {answered_by}"
    )
