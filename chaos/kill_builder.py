"""SIGKILL the builder's worker at each stage of a build, and at random (A8).

The old generation goes on serving, no temporary folder survives the next start, nothing acknowledged is lost, and a
build succeeds in the end.
"""

import random
from typing import Any

import trio

from chaos.client import Client, open_socket
from chaos.daemon import Daemon, kill, wait_until
from chaos.history import History
from chaos.load import Sample, append_steadily, search_steadily
from chaos.scenario import Run, Scenario, Verdict

STAGES = (
    "begin",
    "events",
    "units",
    "documents",
    "write events",
    "write units",
    "write documents",
    "index events",
    "index units",
    "index documents",
    "test",
    "seal",
    "prepare",
    "flip",
)
CONFIG = """
[chaos]
enabled = true
[supervision]
restarts_max = 1000
builder_backoff_ms_min = 10
builder_backoff_ms_max = 50
[embedding]
provider = "none"
"""


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    config = given.data.with_name("chaos.toml")
    config.write_text(CONFIG, encoding="utf-8")
    notes = given.data.with_name("notes")
    notes.mkdir()
    (notes / "a.md").write_text("# A note\n\nabout the builder 构建\n", encoding="utf-8")
    stages = given.rng.sample(STAGES, 4) if given.smoke else list(STAGES)
    history, samples, wrong = History(), list[Sample](), list[str]()
    daemon = Daemon(given.data, config)
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client, trio.open_nursery() as nursery:
        await client.call("source.add", {"path": str(notes)})
        await client.call("unit.put", {"type": "plan", "scope": "global", "text": "keep building"})
        nursery.start_soon(append_steadily, client, "s", history, list[Sample](), random.Random(given.seed))
        await wait_until(client, lambda s: s["generation"] and s["rows"]["documents"], method="index.status")
        nursery.start_soon(search_steadily, client, samples, random.Random(given.seed))
        for stage in stages:
            wrong += await kill_at(client, stage, given)
        await wait_until(client, lambda s: s["building"] is None, method="index.status")
        nursery.cancel_scope.cancel()
    await daemon.stop()
    daemon.start()
    await daemon.connected()
    async with open_socket(daemon.socket_path) as client:
        # A build that begins right away has a temporary folder too; what is left once it is idle is a remains.
        await wait_until(client, idle)
        wrong += [f"left behind: {path.name}" for path in (given.data / "generation_builder").glob("*.tmp")]
        wrong += await history.check(client)
    await daemon.stop()
    wrong += [f"query failed: {sample.error}" for sample in samples if sample.error is not None]
    wrong += [f"no generation answered: {sample.degraded}" for sample in samples if sample.generation is None]
    return Verdict(
        scenario=SCENARIO.name,
        seed=given.seed,
        violations=wrong,
        faults=len(stages),
        facts={"stages": stages, "queries": len(samples), "acknowledged": len(history.acknowledged())},
    )


def idle(status: dict[str, Any]) -> bool:
    """Say whether the builder is up and has nothing to do."""
    index = status["index"]
    return bool(status["ready"]["build"] and index["building"] is None and not any(index["behind"].values()))


async def kill_at(client: Client, stage: str, given: Run) -> list[str]:
    """Hold a build at a stage, kill the worker there, let the next build through."""
    before = (await client.call("index.status"))["generation"]
    await client.call("debug.hold_build", {"stage": stage})
    await client.call("index.rebuild", {})
    status = await wait_until(client, lambda s: (s["index"]["building"] or {}).get("stage") == stage)
    await trio.sleep(given.rng.random() * 0.05)
    pid = status["actors"]["generation_builder"]["pid"]
    kill(pid)
    await wait_until(
        client, lambda s: s["actors"]["generation_builder"]["pid"] not in (None, pid) and s["ready"]["build"]
    )
    wrong = []
    serving = (await client.call("memory.search", {"query": "builder 构建"}))["generation"]
    if serving is None or serving < before:
        wrong.append(f"after a kill at {stage!r} generation {serving} serves, {before} did before")
    await client.call("debug.hold_build", {"stage": None})
    await client.call("index.rebuild", {})
    await wait_until(client, lambda s: (s["generation"] or 0) > before and s["building"] is None, method="index.status")
    return wrong


SCENARIO = Scenario("kill_builder", "SIGKILL the builder at each stage of a build", run)
