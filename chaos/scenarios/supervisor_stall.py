"""The daemon's own event loop stands still: for a moment, and for ever with the GIL held.

Expected: a short stall leaves its stacks in `incidents/` and nothing else happens. A loop that is dead ends the
process, although no Python code can run any more; a bridge starts the next one, and nothing acknowledged is lost.
"""

import time
from pathlib import Path

import trio

from chaos.client import Disconnected, Hung, RpcError, open_socket
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import RESTART_CODES, Load, Stage, staged

STALL_S = 0.4
LOOP_DEAD_MS = 2000
HOLD_S = 12.0
GONE_S = 8.0
EXIT_LOOP_DEAD, EXIT_GIL_HELD = 75, 1
INCIDENT_S = 10.0


async def stall_a_moment(given: Run) -> Verdict:
    """Stall the loop for 0.4 s; look for the stacks."""
    async with staged(given, "supervisor_stall") as stage:
        for _ in range(given.size(1, 3, 30)):
            known = _incidents(stage.data)
            await stage.call("debug.stall_loop", {"seconds": STALL_S})
            stage.mark("stall", "supervisor", f"{STALL_S} s")
            await _wait_for_stacks(stage, known)
            await trio.sleep(0.5)
        # The stalls themselves are in the loop's lag; the promise about it does not hold for a daemon that is hurt so.
        stage.facts["incidents"] = len(_incidents(stage.data))
    return stage.verdict()


async def _wait_for_stacks(stage: Stage, known: set[Path]) -> None:
    with trio.move_on_after(INCIDENT_S):
        while not (new := _incidents(stage.data) - known):  # noqa: ASYNC110 - a file of another process
            await trio.sleep(0.05)
        text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in new)
        if "stall" not in text:
            stage.violate(f"the incident of a stalled loop does not show where it stood: {text[:500]}")
        return
    stage.violate(f"a loop that stood still for {STALL_S} s left no incident within {INCIDENT_S} s")


def _incidents(data: Path) -> set[Path]:
    return {path for path in (data / "incidents").glob("*") if path.is_file() and "loop" in path.name}


async def stall_for_ever(given: Run, name: str, *, hold_gil: bool) -> Verdict:
    """Stall the loop for longer than it may, and see the process end and the next one serve."""
    load = Load(bridges=True, searchers=0)
    config = f"[supervision]\nloop_dead_ms = {LOOP_DEAD_MS}\n"
    async with staged(given, name, config=config, load=load) as stage:
        for operation in ("append", "unit", "history"):
            stage.allow(operation, *(code for code in RESTART_CODES if code != "lost"))
        for _ in range(given.size(1, 1, 5)):
            await _stall_once(stage, hold_gil)
    return stage.verdict()


async def _stall_once(stage: Stage, hold_gil: bool) -> None:
    daemon = stage.daemon
    pid, process = daemon.pid(), daemon.process
    began = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stall, stage, hold_gil)
        with trio.move_on_after(GONE_S):
            while daemon.pid() == pid and (process is None or process.poll() is None):  # noqa: ASYNC110
                await trio.sleep(0.02)
        gone_s = time.monotonic() - began
        nursery.cancel_scope.cancel()
    stage.mark("stall", "supervisor", f"GIL held: {hold_gil}, gone after {gone_s:.2f} s")
    stage.facts["gone_s"] = round(gone_s, 2)
    if gone_s >= GONE_S:
        stage.violate(f"a daemon whose loop is dead did not end within {GONE_S} s (loop_dead_ms {LOOP_DEAD_MS})")
        daemon.kill()
    if process is not None and process.pid == pid:
        # A daemon that a bridge started is the bridge's child; of our own one we know the status.
        status = process.wait(5)
        daemon.process = None
        stage.facts["exit_status"] = status
        if status not in ((EXIT_GIL_HELD,) if hold_gil else (EXIT_LOOP_DEAD, EXIT_GIL_HELD)):
            stage.violate(f"a daemon whose loop is dead ended with status {status}")
    await stage.until(lambda s: s["pid"] != pid and all(s["ready"].values()), seconds=90)
    stage.facts["next_ready_s"] = round(time.monotonic() - began - gone_s, 2)


async def _stall(stage: Stage, hold_gil: bool) -> None:
    try:
        async with open_socket(stage.daemon.socket_path) as client:
            await client.call("debug.stall_loop", {"seconds": HOLD_S, "hold_gil": hold_gil}, deadline_s=HOLD_S)
    except (OSError, Disconnected, Hung, RpcError):
        return  # the connection ends with the daemon, which is the point


async def _hold_gil(given: Run) -> Verdict:
    return await stall_for_ever(given, "supervisor_gil", hold_gil=True)


async def _hang(given: Run) -> Verdict:
    return await stall_for_ever(given, "supervisor_hang", hold_gil=False)


SCENARIOS = (
    Scenario(
        name="supervisor_stall",
        purpose="the event loop stands still for 0.4 s; its stacks are in incidents/",
        run=stall_a_moment,
        tiers=("ci", "soak"),
        faults=("loop stalls × supervisor",),
    ),
    Scenario(
        name="supervisor_gil",
        purpose="something in the daemon holds the GIL for ever; the process ends by itself, a bridge starts the next",
        run=_hold_gil,
        tiers=("ci", "soak"),
        faults=("C loop that holds the GIL × supervisor",),
    ),
    Scenario(
        name="supervisor_hang",
        purpose="the event loop hangs for ever; the process ends by itself, a bridge starts the next",
        run=_hang,
        tiers=("soak",),
        faults=("hang in a C call × supervisor",),
    ),
)
