"""A bug in a worker's handler, a bug in an actor's own code, a cancelled actor, and requests that are not valid.

Expected: a bug ends the incarnation, and the next one is there in a moment; the message that met the bug is given to it
once more and succeeds, if the bug is gone. What is wrong with a request is never a reason to restart anything.
"""

from collections.abc import Awaitable, Callable

import trio

from chaos.client import open_socket
from chaos.deaths import AFFECTED, DEATH_CODES, RAPID, Watch, see_back, summary_ms, watching
from chaos.faults import control
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Stage, staged
from chaos.targets import TARGETS, ask, attempt

ACTORS = ("core_writer", "transcript_appender", "cache_manager", "searcher", "generation_builder")
DEADLINE_S = 5.0
INVALID = -32602
BAD_REQUESTS: tuple[tuple[str, dict[str, object]], ...] = (
    ("event.append", {"session_id": "x", "actor": "nobody", "content": "x"}),
    ("event.append", {"session_id": "", "actor": "user", "content": "x"}),
    ("event.append", {"session_id": "x", "actor": "user", "content": "x", "tags": ["t"] * 1000}),
    ("event.append_many", {"events": []}),
    ("unit.put", {"type": "plan", "scope": "global", "text": ""}),
    ("unit.put", {"type": "plan", "scope": "global", "text": "x", "confidence": 7}),
    ("unit.put", {"type": "plan", "scope": "global", "text": "x", "unit_id": "u" * 300}),
    ("unit.history", {"unit_id": "u", "limit": 0}),
    ("session.history", {"session_id": "x", "limit": 100_000}),
    ("memory.search", {"query": "  "}),
    ("memory.search", {"query": "x", "limit": 100_000}),
    ("memory.search", {"query": "x", "filters": {"no_such_filter": 1}}),
    ("cache.trim", {"bytes_max": -1}),
    ("memory.get", {"id": "a", "path": "b"}),
)


async def raise_in_handler(given: Run) -> Verdict:
    """Let the handler of one call raise, once, on every road into a storage actor; the repetition succeeds."""
    roads = [road for road in TARGETS if road != "searcher"]
    async with staged(given, "process_raise_handler", config=RAPID, launcher=True) as stage:
        for actor in ("core_writer", "transcript_appender", "cache_manager"):
            _allow(stage, actor)
        ready: list[float] = []
        async with watching(stage.daemon.socket_path) as watch:
            for number in range(given.size(1, 2, 20)):
                for road in roads:
                    ready.append(await _raise_once(stage, watch, road, f"raise{number}{road}{given.seed}"))
        stage.facts["ready_ms"] = summary_ms(ready)
    return stage.verdict()


async def _raise_once(stage: Stage, watch: Watch, road: str, word: str) -> float:
    target = TARGETS[road]
    victim = await watch.up(target.actor)
    fault = target.fault(word)
    await control.inject(stage.data, target.actor, pid=None, fault="raise", **fault)
    async with open_socket(stage.daemon.socket_path) as client:
        answer = await ask(stage, client, target, word, deadline_s=DEADLINE_S)
    await control.wait_fired(stage.data, target.actor, "raise")
    stage.mark("raise", target.actor, target.method)
    if not answer.ok:
        stage.violate(f"{target.method}, of which the first worker died, was not repeated: {answer.outcome}")
    return (await see_back(watch, target.actor, victim, answer.at)).ready_s


async def fail_actors(given: Run, name: str, how: str) -> Verdict:
    """End incarnations from within the daemon: by an exception of the actor, or by cancelling its task."""
    async with staged(given, name, config=RAPID) as stage:
        for actor in ACTORS:
            _allow(stage, actor)
        async with watching(stage.daemon.socket_path) as watch:
            for _ in range(given.size(1, 2, 30)):
                for actor in ACTORS:
                    await trio.sleep(given.rng.random() * 0.2)
                    await _fail(stage, watch, actor, how)
    return stage.verdict()


async def _fail(stage: Stage, watch: Watch, actor: str, how: str) -> None:
    before = await watch.up(actor)
    if not (await stage.call("debug.fail_actor", {"actor": actor, "how": how}))["hurt"]:
        stage.violate(f"there was no incarnation of {actor} to hurt")
        return
    stage.mark(how, actor, f"epoch {before.epoch}")
    await watch.up(actor, after_epoch=before.epoch)


def _allow(stage: Stage, actor: str) -> None:
    # A search that the dead incarnation had in hand is given to the next one, so it is answered as well.
    for operation in AFFECTED[actor]:
        stage.allow(operation, *DEATH_CODES)


async def refuse_invalid(given: Run) -> Verdict:
    """Send requests that are not valid, and some that no worker accepts; nothing restarts."""
    async with staged(given, "process_invalid_requests", config=RAPID) as stage:
        async with watching(stage.daemon.socket_path) as watch, open_socket(stage.daemon.socket_path) as client:
            await watch.look()
            before = {name: (row.epoch, row.pid) for name, row in watch.rows.items()}
            accepted: list[str] = []
            for number in range(given.size(56, 210, 2100)):
                method, params = BAD_REQUESTS[number % len(BAD_REQUESTS)]
                answer = await attempt(client, method, params, deadline_s=DEADLINE_S, expected=INVALID)
                if not answer.ok or answer.error is None:
                    accepted.append(f"{method} {params!r}: {answer.outcome}"[:200])
            stage.mark("invalid requests", "every actor", f"{number + 1} requests")
            await watch.look()
            after = {name: (row.epoch, row.pid) for name, row in watch.rows.items()}
        stage.facts["requests"] = number + 1
        if before != after:
            stage.violate(f"invalid requests restarted an actor: {before} became {after}")
        if accepted:
            stage.violate(f"{len(accepted)} invalid requests were not refused as such, such as {accepted[:3]}")
    return stage.verdict()


def _failing(how: str, purpose: str, cell: str) -> Scenario:
    name = f"process_{how}_actor"

    async def run(given: Run) -> Verdict:
        return await fail_actors(given, name, how)

    return _scenario(name, purpose, run, tuple(f"{cell} × {actor}" for actor in ACTORS))


def _scenario(name: str, purpose: str, run: Callable[[Run], Awaitable[Verdict]], faults: tuple[str, ...]) -> Scenario:
    return Scenario(name=name, purpose=purpose, run=run, tiers=("ci", "soak"), faults=faults, beside=True)


SCENARIOS = (
    _scenario(
        "process_raise_handler",
        "a handler raises once: the worker is replaced, and the call is repeated and succeeds",
        raise_in_handler,
        tuple(f"raise in handler × {actor}" for actor in ("core_writer", "transcript_appender", "cache_manager")),
    ),
    _failing("raise", "an actor's own code raises; the next incarnation serves", "raise in actor"),
    _failing("cancel", "an actor's task is cancelled; the next incarnation serves", "cancel task"),
    _scenario(
        "process_invalid_requests",
        "invalid requests are refused and restart nothing",
        refuse_invalid,
        tuple(f"invalid request × {actor}" for actor in ACTORS[:4]),
    ),
)
