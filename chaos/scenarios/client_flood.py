"""One client at its cap on eight connections, and mailboxes that run over.

client_flood: the flooder asks for all it can; the others have not one error and go on in their turn.
mailbox_flood: every actor is made slow and gets ten times what its mailbox holds. Expected: whoever does not fit is
refused with `retry_after_ms`, nobody hangs, memory does not grow with what was refused, a rebuild that is asked for a
hundred times is a few builds at most. (An append waits 250 ms for room, and can still give way to a more modest client
after that; how long refusals took is in the facts.)
"""

from typing import Any

import trio

from chaos.faults import control
from chaos.flooder import Plan, Told, flood_apart
from chaos.memory import measured
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged

OVERLOADED = "1001"
AT_THE_DEADLINE = ("1004", "1018")
APPEND: tuple[str, dict[str, Any]] = ("event.append", {"session_id": "flood", "actor": "user", "content": "flood {n}"})
SEARCH: tuple[str, dict[str, Any]] = ("memory.search", {"query": "flood {n}", "limit": 5})
PUT: tuple[str, dict[str, Any]] = ("unit.put", {"type": "plan", "scope": "global", "text": "flood {n}"})
# A tenth of the usual sizes: what is ten times as much then fits into the connections that there may be.
SMALL = """
[mailboxes]
core_writer_messages = 24
transcript_appender_messages = 48
cache_manager_reads = 24
searcher_messages = 24
generation_builder_messages = 8
"""
SIZES = {"core_writer": 24, "transcript_appender": 48, "cache_manager": 24, "searcher": 24}
FLOODS: dict[str, tuple[tuple[str, dict[str, Any]], str]] = {
    "core_writer": (PUT, "PutUnit"),
    "transcript_appender": (APPEND, "AppendBatch"),
    "cache_manager": (("cache.stats", {}), "CacheStats"),
    "searcher": (SEARCH, "Query"),
}
SLOW_S = 0.1
GROWTH_MIB = 48
REBUILDS = 100


async def flood_beside_others(given: Run) -> Verdict:
    """Flood appends and searches; compare with windows without a flood."""
    seconds = given.size(2, 4, 10)
    rounds = given.size(1, 1, 10)
    async with staged(given, "client_flood") as stage:
        plan = Plan(seconds=seconds, calls=[APPEND, SEARCH])
        floods: list[Told] = []
        for _ in range(rounds):
            with stage.window("idle"):
                await trio.sleep(seconds)
            with stage.window("flood"):
                floods.append(await flood_apart(stage.data, stage.daemon.socket_path, plan))
            stage.mark("flood", "client", f"{floods[-1].outcomes}")
        for told in floods:
            judge_flooder(stage, told)
        for op in ("append", "search", "history", "unit"):
            stage.facts[f"{op}_p99_ms"] = {name: stage.p99(name, op) for name in ("idle", "flood")}
    return stage.verdict()


def judge_flooder(stage: Stage, told: Told) -> None:
    """The flooder itself may be refused, with a hint; it is never left without an answer."""
    if told.count("hung"):
        stage.violate(f"I6: {told.count('hung')} requests of the flooder were not answered")
    if told.without_hint:
        stage.violate(f"{told.without_hint} refusals came without retry_after_ms")
    strange = {code for counts in told.outcomes.values() for code in counts} - {"ok", OVERLOADED, *AT_THE_DEADLINE}
    if strange:
        stage.violate(f"the flooder was told {sorted(strange)}: {told.outcomes}")


async def flood_mailboxes(given: Run) -> Verdict:
    """Make each actor slow in turn and send ten times the size of its mailbox."""
    async with staged(given, "mailbox_flood", config=SMALL, launcher=True, load=Load(appenders=1)) as stage:
        for op in ("append", "unit", "search", "history"):
            stage.allow(op, OVERLOADED, *AT_THE_DEADLINE)  # mailboxes are full, and slow on purpose
        facts: dict[str, object] = {}
        for actor in FLOODS:
            facts[actor] = await flood_actor(stage, actor)
        facts["generation_builder"] = await flood_builder(stage)
        stage.facts["floods"] = facts
    return stage.verdict()


async def flood_actor(stage: Stage, actor: str) -> dict[str, object]:
    """Flood one actor while each of its calls takes long; return what was told and measured."""
    call, message = FLOODS[actor]
    status = await stage.status()
    pids = [status["actors"][actor]["pid"]]
    if actor == "searcher":
        pids = [status["searcher"]["active_pid"], status["searcher"]["spare_pid"]]
    for pid in pids:
        await control.inject(stage.data, actor, pid=pid, fault="slow", message=message, seconds=SLOW_S)
    connections = 10 * SIZES[actor] // 32 + 1
    async with measured(status["pid"]) as memory:
        plan = Plan(seconds=2, connections=connections, in_flight=32, calls=[call], deadline_ms=3000)
        told = await flood_apart(stage.data, stage.daemon.socket_path, plan)
    for pid in pids:
        await control.clear(stage.data, actor, pid=pid)
    judge_flooder(stage, told)
    if not told.count(OVERLOADED):
        stage.violate(f"the mailbox of {actor} never ran over: {told.outcomes}")
    else:
        stage.mark("mailbox flood", actor, f"{told.outcomes}")
    if memory.peak > memory.before + GROWTH_MIB:
        stage.violate(f"the flood of {actor} cost {memory.peak - memory.before:.0f} MiB")
    return {
        "told": told.outcomes,
        "refusal_s_max": {name: round(value, 3) for name, value in told.refusal_s_max.items()},
        "memory_mib": [round(memory.before, 1), round(memory.peak, 1)],
    }


async def flood_builder(stage: Stage) -> dict[str, object]:
    """Ask for a rebuild again and again while one is under way: they become one."""
    before = (await stage.status())["index"]["builds"]["started"]
    refused = 0
    for _ in range(REBUILDS):
        answer = await stage.call("index.rebuild")
        refused += answer is None
    stage.mark("mailbox flood", "generation_builder", f"{REBUILDS} rebuilds asked for")
    await stage.until(lambda s: s["index"]["building"] is None and s["index"]["builds"]["started"] > before, 60)
    started = (await stage.status())["index"]["builds"]["started"] - before
    # The load goes on, so the truth moves and asks for builds of its own.
    if started > REBUILDS // 4:
        stage.violate(f"{REBUILDS} requests for a rebuild became {started} builds")
    return {"asked": REBUILDS, "started": started}


SCENARIOS = (
    Scenario(
        name="client_flood",
        purpose="one client floods appends and searches over 8 connections; the others get their turns",
        run=flood_beside_others,
        tiers=("ci", "soak"),
        faults=("flood at the cap × client",),
    ),
    Scenario(
        name="mailbox_flood",
        purpose="ten times what a mailbox holds for each actor in turn: refused with a hint, memory flat",
        run=flood_mailboxes,
        tiers=("ci", "soak"),
        faults=tuple(f"mailbox flood × {actor}" for actor in (*FLOODS, "generation_builder")),
    ),
)
