"""SIGKILL the active search worker again and again under a load of queries (A7).

No query may fail; those that were under way at a kill are answered by the spare. An answer is marked degraded only
when it was: a query of which both workers were gone is answered by keyword and says so.
"""

import random
import time
from collections import Counter
from typing import Any

import trio

from chaos.client import open_socket
from chaos.daemon import Daemon, kill, wait_until
from chaos.history import History
from chaos.load import Sample, append_until_acknowledged, percentile, search_steadily, sentence
from chaos.scenario import Run, Scenario, Verdict

SEARCHERS = 2
AFFECTED_S = 0.5
ALLOWED = {"search_worker_unavailable"}
EVENTS = 200
EMBEDDED_S = 300.0


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    kills = 3 if given.smoke else 20
    history, samples, wrong = History(), list[Sample](), list[str]()
    daemon = Daemon(given.data)
    daemon.start()
    await daemon.connected()
    instants: list[float] = []
    async with open_socket(daemon.socket_path) as client, trio.open_nursery() as nursery:
        for number in range(EVENTS):
            append = history.begin(f"r{number}", "s", f"{sentence(given.rng)} #{number}")
            wrong += await append_until_acknowledged(client, append, history)
        await wait_until(client, embedded, method="index.status", seconds=EMBEDDED_S)
        await wait_until(client, both_serve)
        for number in range(SEARCHERS):
            nursery.start_soon(search_steadily, client, samples, random.Random(given.seed + number))
        for _ in range(kills):
            status = await wait_until(client, both_serve)
            await trio.sleep(0.2 + given.rng.random())
            instants.append(time.monotonic())
            samples_before = len(samples)
            kill(status["actors"]["searcher"]["pid"])
            await trio.sleep(AFFECTED_S)
            if len(samples) == samples_before:
                wrong.append("no query was answered after a kill")
        await wait_until(client, both_serve)
        nursery.cancel_scope.cancel()
    await daemon.stop()
    wrong += [f"query failed: {sample.error}" for sample in samples if sample.error is not None]
    codes = {code for sample in samples for code in sample.degraded}
    if codes - ALLOWED:
        wrong.append(f"degraded for a reason that does not belong to this fault: {sorted(codes - ALLOWED)}")
    wrong += [
        "an answer without a generation was not marked degraded"
        for sample in samples
        if sample.error is None and sample.generation is None and not sample.degraded
    ]
    slow = [sample.seconds * 1000 for sample in samples]
    hit = [s.seconds * 1000 for s in samples if any(s.at <= at <= s.at + s.seconds for at in instants)]
    return Verdict(
        scenario=SCENARIO.name,
        seed=given.seed,
        violations=wrong,
        faults=len(instants),
        facts={
            "queries": len(samples),
            "degraded": Counter(code for sample in samples for code in sample.degraded),
            "affected": len(hit),
            "affected_ms_p99": round(percentile(hit, 0.99), 1),
            "ms_p50": round(percentile(slow, 0.5), 1),
            "ms_p99": round(percentile(slow, 0.99), 1),
            "ms_max": round(max(slow, default=0.0), 1),
        },
    )


def embedded(status: dict[str, Any]) -> bool:
    """Say whether everything is indexed and has its vector."""
    vectors = status["vectors"]
    return bool(status["building"] is None and EVENTS == vectors["want"] == vectors["have"])


def both_serve(status: dict[str, object]) -> bool:
    """Say whether both workers have the serving generation open."""
    searcher = status["searcher"]
    assert isinstance(searcher, dict)
    return bool(searcher["loaded"] == 2)


SCENARIO = Scenario("kill_searcher", "SIGKILL the active search worker under queries", run)
