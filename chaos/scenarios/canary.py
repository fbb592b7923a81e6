"""Lies and damage that the checker must notice. A run in which one of these passes is worthless.

`canary` pretends that an event was acknowledged. `canary_invariants` violates each of I1 to I13 once against a real
daemon: where a daemon would have to be broken for that, the notes about it are falsified instead.
"""

import signal
from typing import Any

import trio

from chaos.client import Client
from chaos.daemon import kill
from chaos.history import Append
from chaos.load import Recorder, append_params, read_event
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged
from chaos.timeline import Move

TRUTH = ("append", "write", "read")
QUIET = Load(appenders=1, searchers=0, writers=0, readers=0)
INVARIANTS = tuple(f"I{number}:" for number in range(1, 14))
DEADLINE_S = 0.5
STOPPED_S = 1.5


async def lose(given: Run) -> Verdict:
    """Pretend that an event was acknowledged that was never sent."""
    async with staged(given, "canary", load=QUIET, wait=TRUTH) as stage:
        pretend(stage, "r-lost")
        stage.mark("lost", "transcript_appender", "acknowledged, never stored")
    return stage.verdict()


def pretend(stage: Stage, request_id: str) -> Append:
    """Note an acknowledgement that no daemon gave."""
    lost = stage.history.begin(request_id, "s0", "never sent")
    stage.history.acknowledge(lost, {"seq": 1, "event_id": "never", "deduplicated": False})
    return lost


async def violate_all(given: Run) -> Verdict:
    """Violate each invariant once."""
    async with staged(given, "canary_invariants", load=QUIET, wait=TRUTH) as stage:
        await falsify_history(stage)
        await misuse(stage.recorder, stage.client)
        await read_event(stage.recorder, stage.client, pretend(stage, "r-lost"))  # I1, I5
        await be_late(stage)
        await damage_files(stage)
        stage.allow("append", 1002)
        ghost = Move(at=0.0, life=1, actor="ghost", epoch=1, before="ready", after="failed", cause="")
        stage.observer.moves += [
            ghost,
            Move(at=0.0, life=1, actor="ghost", epoch=3, before="new", after="ready", cause=""),
        ]
        stage.recorder.bad_lines += 1
        stage.quiet_s = 1.0
        stage.waive("lag", "the daemon was stopped")
    return stage.verdict()


async def falsify_history(stage: Stage) -> None:
    """Append three events and note other things about them (I2, I3, I4)."""
    for request_id, changed in (
        ("r-refused", {"outcome": "not_executed"}),
        ("r-moved", {"seq": 999_999}),
        ("r-changed", {"content": "other"}),
    ):
        append = stage.history.begin(request_id, "s0", f"event {request_id}")
        stage.history.acknowledge(append, await stage.call("event.append", append_params(append)))
        for name, value in changed.items():
            setattr(append, name, value)
        stage.mark("falsified", "transcript_appender", request_id)


async def misuse(recorder: Recorder, client: Client) -> None:
    """Make requests that are refused, where no refusal is allowed (I7, I8)."""
    wrong: dict[str, Any] = {"session_id": "s0"}
    await recorder.attempt(client, "append", "event.append", wrong)
    await recorder.attempt(client, "unit", "unit.put", wrong)


async def be_late(stage: Stage) -> None:
    """Stop the daemon over the deadline of a request (I6)."""
    pid = stage.daemon.pid()
    assert pid is not None
    async with trio.open_nursery() as nursery:
        kill(pid, signal.SIGSTOP)
        stage.mark("SIGSTOP", "daemon")
        nursery.start_soon(read_late, stage.recorder, stage.client)
        await trio.sleep(STOPPED_S)
        kill(pid, signal.SIGCONT)


async def read_late(recorder: Recorder, client: Client) -> None:
    """Read with a short deadline."""
    await recorder.attempt(client, "history", "session.history", {"session_id": "s0"}, deadline_s=DEADLINE_S)


async def damage_files(stage: Stage) -> None:
    """Leave a temporary file and a database that is none, and break CURRENT until it was seen (I9, I10, I12)."""
    stage.data.joinpath("left.tmp").touch()
    stage.data.joinpath("core_writer", "broken.db").write_bytes(b"SQLite format 3\0" + b"?" * 8192)
    current = stage.data / "generation_builder" / "CURRENT"
    with trio.move_on_after(10.0):
        while not stage.observer.violations:
            current.write_bytes(b"garbage")
            await trio.sleep(0.02)
    current.unlink(missing_ok=True)


SCENARIOS = (
    Scenario(
        "canary",
        "pretend that an event was acknowledged; the checker must say so",
        lose,
        must_fail=True,
        tiers=("smoke", "ci"),
        expect=("I1:",),
        beside=True,
    ),
    Scenario(
        "canary_invariants",
        "violate each of I1 to I13 once; the checker must name them all",
        violate_all,
        must_fail=True,
        tiers=("smoke", "ci"),
        expect=INVARIANTS,
        beside=True,
    ),
)
