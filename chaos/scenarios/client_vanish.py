"""SIGKILL real bridges with requests under way (fault case M1): one daemon, no worker more, no memory more.

Each bridge is a process of its own, as a host starts it; some of its requests are reads that take a while, some are
writes. A write of a bridge that was killed is there once or not at all.
"""

import trio

from chaos.client import Client, Disconnected, RpcError, open_bridge
from chaos.daemon import kill
from chaos.history import again, refused
from chaos.load import append_params, new_token, sentence
from chaos.memory import measured
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Stage, staged

AT_ONCE = 5
KEPT_MIB = 16


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    clients = given.size(10, 50, 500)
    async with staged(given, "client_vanish") as stage:
        limit = trio.CapacityLimiter(AT_ONCE)
        before = await stage.status()
        async with measured(before["pid"]) as memory:
            async with trio.open_nursery() as nursery:
                for number in range(clients):
                    nursery.start_soon(one, stage, number, limit)
            after = await memory.settled(memory.before + KEPT_MIB)
        status = await stage.status()
        stage.facts["memory_mib"] = [round(value, 1) for value in (memory.before, memory.peak, after)]
        if after > memory.before + KEPT_MIB:
            stage.violate(f"the daemon keeps {after:.0f} MiB after {clients} clients, {memory.before:.0f} before")
        if status["pid"] != before["pid"]:
            stage.violate(f"the daemon is {status['pid']}, was {before['pid']}: a second one was started")
        await stage.until(lambda s: all(actor["mailbox"]["count"] == 0 for actor in s["actors"].values()))
    return stage.verdict()


async def one(stage: Stage, number: int, limit: trio.CapacityLimiter) -> None:
    """Start a bridge, ask for several things, and kill it while they are under way."""
    async with limit, open_bridge(stage.data, stage.config_path) as client:
        await client.call("hello", {"client": "vanishing"})
        async with trio.open_nursery() as nursery:
            for each in range(4):
                nursery.start_soon(search, client, f"{sentence(stage.rng)} {number}")
                nursery.start_soon(append, stage, client, f"v{number}", each)
            await trio.sleep(stage.rng.random() * 0.05)
            if client.pid is not None and kill(client.pid):
                stage.mark("SIGKILL", "bridge", f"pid {client.pid}")


async def search(client: Client, query: str) -> None:
    """Search; whatever comes of it is right."""
    try:
        await client.call("memory.search", {"query": query})
    except (Disconnected, RpcError):
        return


async def append(stage: Stage, client: Client, session_id: str, number: int) -> None:
    """Append once; the stage repeats what stays unknown."""
    token = new_token(stage.rng)
    event = stage.history.begin(f"{session_id}-{number}", session_id, f"vanishing {token}", token=token)
    again(event)
    try:
        result = await client.call("event.append", append_params(event))
    except Disconnected:
        refused(event, "unknown")
    except RpcError as error:
        refused(event, error.outcome)
    else:
        stage.violations += stage.history.acknowledge(event, result)


SCENARIOS = (
    Scenario(
        name="client_vanish",
        purpose="SIGKILL real bridges with requests under way; one daemon remains, nothing grows",
        run=run,
        tiers=("ci", "soak"),
        faults=("SIGKILL bridge × client",),
    ),
)
