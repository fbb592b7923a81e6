"""Another embedding model while everybody goes on, its rebuilder and embedder killed in between (C6).

The model is changed as people do it: another name in the configuration, and a restart. The old generation serves with
its own vectors until the new one is embedded; then both are compared, and one command goes back and another one forth.
Twice: to a model of the same dimensions, whose vectors could be taken for the old ones, and to one of other dimensions.

The oracle: events that are looked for by their meaning alone, with their own text. In one space a text is nearest to
itself, whatever the model; across two it is near nothing. So a single answer from mixed spaces shows.
"""

import time
from typing import Any

import trio

from chaos.client import Client, Disconnected, open_socket
from chaos.daemon import kill
from chaos.endpoint import endpoint
from chaos.load import new_token, sentence
from chaos.scenario import Run, Scenario, Verdict
from chaos.setup import write_config
from chaos.stage import Load, Stage, staged

NAME = "change_model"
LOAD = Load(appenders=1, searchers=2, writers=1, readers=1, pause_s=0.05)
APPEND = 200
SHOWN = 5
ORACLES = 20  # answers by meaning that each phase waits for
ROLLBACK_MS = 1000.0
LOOKED_AT = 200
ROLLBACK_FACTOR = 5  # beyond this it is no matter of a busy machine any more
VICTIMS = ("rebuilder", "embedder")
KILL_S_MIN, KILL_S_MAX = 0.2, 1.5
IDLE_S = 0.05
MARK_S = 0.005


def config(port: int, model: str, dimensions: int) -> str:
    """Return the configuration for a model.

    New vectors are published once the list of what lacks one is at its end, so every event that the oracle knows has
    one by the flip. What is appended while that generation is built has none yet: hence not 100 %, which would be
    chased for ever.
    """
    return f"""
[embedding]
provider = "openai-compatible"
base_url = "http://127.0.0.1:{port}/v1"
model = "{model}"
dimensions = {dimensions}
batch_max = 64
[generation_builder]
vectors_publish_ms = 600000
embed_texts_per_call = 64
model_change_coverage_percent = 50
"""


class Oracle:
    """Looks for known events by their meaning alone, all the time, over a connection of its own."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.texts: dict[str, str] = {}  # by event_id
        self.answers = 0
        self.without = 0  # answers that made do without vectors
        self.generations: set[int] = set()
        self.wrong: list[str] = []

    async def fill(self, count: int) -> None:
        """Append so many events."""
        stage = self._stage
        ids = [f"memo-{number}" for number in range(count)]
        self.texts = {each: f"{new_token(stage.rng)} {sentence(stage.rng)}" for each in ids}
        for start in range(0, count, APPEND):
            events = [
                {"session_id": "memos", "actor": "user", "content": self.texts[each], "event_id": each}
                for each in ids[start : start + APPEND]
            ]
            await stage.client.call("event.append_many", {"events": events}, deadline_s=60)

    async def wait_searchable(self, seconds: float) -> None:
        """Wait until what is looked for has its vectors, and not others instead: all of it, or an even share."""
        ids = list(self.texts)
        for event_id in ids[:: max(1, len(ids) // LOOKED_AT)]:
            state: dict[str, Any] = {}
            with trio.fail_after(seconds):
                while state.get("meaning") != "searchable":
                    await trio.sleep(IDLE_S if state else 0)
                    state = await self._stage.call("index.item", {"id": event_id})

    async def run(self) -> None:
        """Ask until cancelled; connect anew whenever the daemon was away."""
        while True:
            try:
                async with open_socket(self._stage.daemon.socket_path) as client:
                    while not client.closed:
                        await self._ask(client)
            except (OSError, Disconnected, trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            await trio.sleep(IDLE_S)

    async def wait_answers(self, count: int, seconds: float) -> None:
        """Wait until so many more questions were answered by meaning."""
        wanted = self.answers + count
        with trio.fail_after(seconds):
            while self.answers < wanted:  # noqa: ASYNC110 - a counter, not an event
                await trio.sleep(IDLE_S)

    async def _ask(self, client: Client) -> None:
        event_id, text = self._stage.rng.choice(list(self.texts.items()))
        attempt = await self._stage.recorder.attempt(
            client, "oracle", "memory.search", {"query": text, "limit": 3, "mode": "vector"}
        )
        if attempt.result is None:
            return
        self._check(event_id, attempt.result)

    def _check(self, event_id: str, found: dict[str, Any]) -> None:
        if found["mode"] != "vector":
            self.without += 1
            return
        self.answers += 1
        self.generations.add(found["generation"])
        hits = [hit["id"] for hit in found["hits"]]
        if hits[:1] != [event_id]:
            self.wrong.append(f"mixed space: the text of {event_id} finds {hits} in {found['generation']}")


async def run(given: Run) -> Verdict:
    """Change the model twice, and go back and forth each time."""
    dimensions = given.size(32, 64, 1536)
    patience_s = given.size(120, 240, 3600)
    with endpoint(dimensions) as port:
        async with staged(given, NAME, config=config(port, "first", dimensions), load=LOAD) as stage:
            oracle = Oracle(stage)
            await oracle.fill(given.size(60, 100, 17_395))
            await stage.until(
                lambda s: serves(s, "first") and embedded(s, len(oracle.texts)), patience_s, "index.status"
            )
            await oracle.wait_searchable(patience_s)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(oracle.run)
                await oracle.wait_answers(ORACLES, patience_s)
                changes = [("second", dimensions), ("third", dimensions // 2)]
                stage.facts["changes"] = [
                    await change(stage, oracle, port, model=model, dimensions=size, patience_s=patience_s)
                    for model, size in changes[: given.size(1, 1, 2)]
                ]
                nursery.cancel_scope.cancel("every change was made")
            judge(stage, oracle)
    return stage.verdict()


def serves(status: dict[str, Any], model: str) -> bool:
    """Say whether a generation of this model serves."""
    return status["identity"] is not None and status["identity"]["model"] == model


def embedded(status: dict[str, Any], count: int) -> bool:
    """Say whether so many rows at least have their vectors."""
    return bool(status["vectors"]["have"] >= count)


async def change(
    stage: Stage, oracle: Oracle, port: int, *, model: str, dimensions: int, patience_s: float
) -> dict[str, Any]:
    """Configure another model, restart, kill what works on it, wait for the flip, roll back, come back to it."""
    old = (await stage.call("index.status"))["identity"]["model"]
    began = time.monotonic()
    stage.mark("another model", "generation_builder", f"{old} to {model}, {dimensions} dimensions")
    await trio.to_thread.run_sync(
        lambda: write_config(stage.config_path, config(port, model, dimensions), launcher=False)
    )
    await stage.restart("append", "write", "read", "search", "build")
    with stage.window("change"):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill_builders, stage, stage.run.size(1, 3, 10))
            status = await stage.until(lambda s: serves(s, model), patience_s, "index.status")
            nursery.cancel_scope.cancel("the new model serves")
        took_s = time.monotonic() - began
        await oracle.wait_answers(ORACLES, patience_s)
    compared = status["comparison"]
    if compared is None or not compared["queries"]:
        stage.violate(f"nothing was compared before {model} served: {compared}")
        return {"to": model, "seconds": round(took_s, 1)}
    with stage.window("rollback"):
        rollback_ms = await roll_back(stage, compared["earlier"])
        await stage.until(lambda s: serves(s, old) and s["successor"] is None, patience_s, "index.status")
        await oracle.wait_answers(ORACLES, patience_s)
    with stage.window("rebuild"):
        await stage.call("index.rebuild")
        await stage.until(lambda s: serves(s, model), patience_s, "index.status")
        await oracle.wait_answers(ORACLES, patience_s)
    return {
        "to": model,
        "dimensions": dimensions,
        "seconds": round(took_s, 1),
        "rollback_ms": round(rollback_ms, 1),
        "comparison": compared,
    }


async def kill_builders(stage: Stage, count: int) -> None:
    """Kill so many of the processes that build and embed, one now and then."""
    while count:
        await trio.sleep(stage.rng.uniform(KILL_S_MIN, KILL_S_MAX))
        workers = (await stage.status())["actors"]["generation_builder"]["workers"]
        pids = {each["name"]: each["pid"] for each in workers if each["name"] in VICTIMS}
        if not pids:
            continue
        name = stage.rng.choice(sorted(pids))
        if kill(pids[name]):
            stage.mark("SIGKILL", name, f"pid {pids[name]}")
            count -= 1


async def roll_back(stage: Stage, earlier: int) -> float:
    """Roll back, whatever is being built; return how long that took, in ms."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(either_may_serve, stage)
        began = time.monotonic()
        await stage.call("index.rollback", {"generation": earlier})
        took_ms = (time.monotonic() - began) * 1000
        nursery.cancel_scope.cancel("it has answered")
    if took_ms > ROLLBACK_FACTOR * ROLLBACK_MS:
        stage.violate(f"the rollback took {took_ms:.0f} ms, promised are {ROLLBACK_MS:.0f} ms")
    return took_ms


async def either_may_serve(stage: Stage) -> None:
    """Say again and again that an older generation may serve from now on: nobody tells when it really does."""
    while True:
        stage.rolled_back()
        await trio.sleep(MARK_S)


def judge(stage: Stage, oracle: Oracle) -> None:
    """See that each question got an answer from one space."""
    stage.facts["oracle"] = {
        "answers": oracle.answers,
        "without_vectors": oracle.without,
        "generations": len(oracle.generations),
        "wrong": len(oracle.wrong),
    }
    for text in oracle.wrong[:SHOWN]:
        stage.violate(text)


SCENARIOS = (
    Scenario(
        name=NAME,
        purpose="another embedding model under load, its builders killed: no error, no mixed space, and back again",
        run=run,
        tiers=("ci", "soak"),
        faults=("another embedding model × generation_builder", "another embedding model × searcher"),
        watchdog_s=7200.0,
        beside=True,
    ),
)
