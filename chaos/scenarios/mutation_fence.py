"""A writer that was stopped, replaced and woken up again must not commit: with the fence (green), without it (red).

Without a daemon, since a daemon kills a stopped worker: two real workers on the same file. The older one is SIGSTOPped
with an append in its pipe; the newer one opens the file and writes; then the older one goes on.
"""

import os
import signal

import psutil
import trio

from actors.errors import BulkheadError
from actors.messages.base import Message, Row, Rows
from actors.messages.core_writer import PutUnit, UnitHistory
from actors.messages.transcript_appender import AppendEvents, AppendResult, EventDraft, SessionHistory
from actors.worker import Worker, WorkerDied
from chaos.faults import control
from chaos.faults.bare import bare_worker, call
from chaos.faults.cases import noticed
from chaos.scenario import Run, Scenario, Verdict

NAME, TWIN = "mutation_fence", "zombie_writer"
COMMITTED = r"the zombie's .* was committed"
SESSION, UNIT = "s", "u"
STOPPED_S = 10.0
ROOMS = ("transcript_appender", "core_writer")


async def zombies(given: Run, name: str, *, mutated: bool) -> Verdict:
    """Wake up so many zombies in each room."""
    violations, woken = list[str](), 0
    outcomes: dict[str, int] = {}
    for room in ROOMS:
        if mutated:
            control.at_start(given.data, room, {"fault": "mutation", "name": "fence_off"})
        for number in range(given.size(1, 5, 50)):
            wrong, outcome = await one_zombie(given, room, number)
            violations += wrong
            outcomes[f"{room}: {outcome}"] = outcomes.get(f"{room}: {outcome}", 0) + 1
            woken += 1
    return Verdict(
        scenario=name,
        seed=given.seed,
        tier=given.tier,
        violations=violations,
        faults=woken,
        facts={"outcomes": outcomes},
    )


async def one_zombie(given: Run, room: str, number: int) -> tuple[list[str], str]:
    """Stop a writer with a write in its pipe, let the next one write, wake the first; return what is wrong."""
    send, receive = trio.open_memory_channel[str](1)
    async with bare_worker(given.data, room, epoch=1) as older:
        await write(older, room, text_of("before", number))
        os.kill(older.pid, signal.SIGSTOP)
        await stopped(older.pid)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_as_zombie, older, room, text_of("zombie", number), send)
            async with bare_worker(given.data, room, epoch=2, name=room) as newer:
                await write(newer, room, text_of("newer", number))
                os.kill(older.pid, signal.SIGCONT)
                with trio.fail_after(STOPPED_S):
                    told = await receive.receive()
                await write(newer, room, text_of("after", number))
                texts = await read(newer, room)
    wrong = [
        f"{room}: the newer writer's {kind} {number!r} is missing"
        for kind in ("before", "newer", "after")
        if text_of(kind, number) not in texts
    ]
    if text_of("zombie", number) in texts:
        wrong.append(f"{room}: the zombie's write {number} was committed ({told})")
    elif told == "acknowledged":
        wrong.append(f"{room}: the zombie's write {number} was acknowledged, but it is not there")
    return wrong, told


def text_of(who: str, number: int) -> str:
    """Return what a writer writes; no such text is a part of another."""
    return f"<{who} {number}>"


async def stopped(pid: int) -> None:
    """Wait until the kernel has stopped a process."""
    with trio.fail_after(STOPPED_S):
        while psutil.Process(pid).status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - the kernel has no event for it
            await trio.sleep(0.005)


async def write_as_zombie(worker: Worker, room: str, text: str, told: trio.MemorySendChannel[str]) -> None:
    """Send a write to a worker that is stopped, and note what it says when it was woken."""
    try:
        await write(worker, room, text)
        await told.send("acknowledged")
    except BulkheadError as error:
        await told.send(f"{type(error).__name__}, {error.outcome}")
    except WorkerDied:
        await told.send("died")


async def write(worker: Worker, room: str, text: str) -> None:
    """Write a text to a truth."""
    if room == "transcript_appender":
        draft = EventDraft(session_id=SESSION, actor="user", content=text, request_id=text)
        await call(worker, AppendEvents(events=(draft,)), AppendResult)
    else:
        await call(worker, PutUnit(unit_id=UNIT, type="skill", scope="global", text=text, request_id=text), Row)


async def read(worker: Worker, room: str) -> str:
    """Return everything that a truth holds, as text."""
    message: Message
    if room == "transcript_appender":
        message = SessionHistory(session_id=SESSION, limit=500)
    else:
        message = UnitHistory(unit_id=UNIT, limit=500)
    return (await call(worker, message, Rows)).rows.decode()


async def green(given: Run) -> Verdict:
    """Run it as the house is."""
    return await zombies(given, TWIN, mutated=False)


async def red(given: Run) -> Verdict:
    """Run it without the fence."""
    return noticed(await zombies(given, NAME, mutated=True), COMMITTED)


SCENARIOS = (
    Scenario(
        name=TWIN,
        purpose="a writer that was stopped and replaced is woken up: it commits nothing",
        run=green,
        tiers=("smoke", "ci", "soak"),
        faults=("zombie writer × core_writer", "zombie writer × transcript_appender"),
        beside=True,
    ),
    Scenario(
        name=NAME,
        purpose="the same without the fence: must be noticed as a commit of the zombie",
        run=red,
        must_fail=True,
        tiers=("ci",),
        beside=True,
    ),
)
