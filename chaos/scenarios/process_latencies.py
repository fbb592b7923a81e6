"""How fast is known what a death means: the three numbers of B3, measured one at a time on an otherwise idle daemon.

* A worker with calls in hand is killed: when has every caller its typed error? (50 ms, p99)
* A storage worker is killed: when does its actor serve again? (500 ms, p99)
* The active search worker is killed with queries in hand: when has the spare answered them? (100 ms, p99)

The worker is stopped for a moment before it is killed, so that the calls are in its hands for certain. The machine of
the tests is shared, so a run is only red far beyond these numbers; they are judged in docs, from a quiet run.
"""

import random
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import trio

from chaos.client import Client, open_socket
from chaos.daemon import kill
from chaos.deaths import CALM, DEATH_CODES, Death, Watch, slowness, strike_many, summary_ms, watching
from chaos.load import sentence
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Load, Stage, staged
from chaos.targets import CACHE_WRITE, CORE_READ, TRANSCRIPT_READ, Answer, Target, ask, attempt

CALLERS = 20
QUERIES = 2  # as many as a search worker does at a time: the others would wait for their turn, not for the failover
# Below what a restart takes at least: these calls cannot be given to the next worker, so their callers are told.
IMPATIENT_S = 0.3
IN_HAND_S = 0.03
QUERY_S = 5.0
ERROR_MS, READY_MS, FAILOVER_MS = 50.0, 500.0, 100.0
GENEROUS = 4
TOO_SLOW = 3.0  # then the calls are late before the worker is killed, and nothing can be said
LOADED_S = 90.0
LIGHT = Load(appenders=1, searchers=1, writers=0, readers=0, pause_s=0.1)


async def run(given: Run) -> Verdict:
    """Measure all three."""
    async with (
        staged(given, "process_latencies", config=CALM, load=LIGHT) as stage,
        watching(stage.daemon.socket_path) as watch,
        open_socket(stage.daemon.socket_path) as client,
    ):
        for operation in ("append", "history", "unit"):
            stage.allow(operation, *DEATH_CODES)
        errors, deaths, failovers = await _measure(stage, watch, client, given)
        stage.facts["typed_error_ms"] = summary_ms(errors)
        stage.facts["ready_ms"] = {
            actor: summary_ms([death.ready_s for death in deaths if death.actor == actor and death.phase != "starting"])
            for actor in sorted({death.actor for death in deaths})
        }
        stage.facts["failover_ms"] = summary_ms(failovers)
        slow = stage.facts["slowness"] = round(await slowness(), 1)
        _limit(stage, "the typed error after a death", errors, ERROR_MS, slow)
        _limit(stage, "a storage worker's return", [death.ready_s for death in deaths], READY_MS, slow)
        _limit(stage, "the failover of a query", failovers, FAILOVER_MS, slow)
    return stage.verdict()


def _limit(stage: Stage, what: str, seconds: list[float], promised_ms: float, slow: float) -> None:
    if not seconds and slow < TOO_SLOW:
        stage.violate(f"{what} was not measured once")
    p50 = summary_ms(seconds)["p50"]
    if p50 > promised_ms * slow * GENEROUS:
        stage.violate(
            f"{what} took {p50} ms (median of {len(seconds)}), limit here {promised_ms * slow * GENEROUS:.0f} ms"
        )


async def _measure(
    stage: Stage, watch: Watch, client: Client, given: Run
) -> tuple[list[float], list[Death], list[float]]:
    rounds = given.size(2, 7, 100)
    errors: list[float] = []
    deaths: list[Death] = []
    for target in (CORE_READ, TRANSCRIPT_READ, CACHE_WRITE):
        for number in range(rounds):
            errors += await _typed_errors(stage, watch, client, target, number)
        rng = random.Random(given.seed)
        await strike_many(watch, target.actor, rng, rounds, hit=_note(stage, deaths), spread_s=0.3)
    failovers: list[float] = []
    for _ in range(given.size(1, 5, 50)):
        failovers += await _failover(stage, watch, client)
    return errors, deaths, failovers


def _note(stage: Stage, deaths: list[Death]) -> Callable[[Death], None]:
    def note(death: Death) -> None:
        deaths.append(death)
        stage.mark("SIGKILL", death.actor, death.phase)

    return note


async def _typed_errors(stage: Stage, watch: Watch, client: Client, target: Target, number: int) -> list[float]:
    """Kill a worker that has calls in hand; return how long after that each caller had its typed error."""
    await watch.look()
    row = await watch.up(target.actor)
    assert row.pid is not None

    async def one(index: int) -> Answer:
        return await ask(stage, client, target, f"late{number}x{index}x{stage.run.seed}", deadline_s=IMPATIENT_S)

    kill(row.pid, signal.SIGSTOP)
    at, answers = await _with_calls_in_hand(row.pid, one, CALLERS)
    stage.mark("SIGKILL", target.actor, f"{CALLERS} calls waiting")
    await watch.up(target.actor, after_epoch=row.epoch)
    told = [answer for answer in answers if answer.outcome in {"1002", "1003"}]
    if len(told) < CALLERS // 2 and await slowness() < TOO_SLOW:
        outcomes = dict(Counter(answer.outcome for answer in answers))
        stage.violate(f"of {CALLERS} callers of a killed {target.actor} only {len(told)} were told of it: {outcomes}")
    return [answer.at + answer.seconds - at for answer in told]


async def _with_calls_in_hand(
    pid: int, one: Callable[[int], Awaitable[Answer]], count: int
) -> tuple[float, list[Answer]]:
    """Make calls, kill the process once they are on their way, and return when that was and what came of them."""
    answers: list[Answer] = []

    async def keep(index: int) -> None:
        answers.append(await one(index))

    async with trio.open_nursery() as nursery:
        for index in range(count):
            nursery.start_soon(keep, index)
        await trio.sleep(IN_HAND_S)
        at = time.monotonic()
        kill(pid)
    return at, answers


async def _failover(stage: Stage, watch: Watch, client: Client) -> list[float]:
    """Kill the active search worker with queries in hand; return how long after that each was answered."""
    await watch.look()
    await watch.until(lambda: watch.searcher["loaded"] >= 2, "two loaded search workers", LOADED_S)
    pid: int = watch.searcher["active_pid"]

    async def one(index: int) -> Answer:
        query: dict[str, object] = {"query": sentence(stage.rng), "limit": 5}
        return await attempt(client, "memory.search", query, deadline_s=QUERY_S)

    at, answers = await _with_calls_in_hand(pid, one, QUERIES)
    stage.mark("SIGKILL", "searcher", f"pid {pid}")
    failed = [answer.outcome for answer in answers if not answer.ok]
    if failed:
        stage.violate(f"queries failed because their search worker was killed: {failed}")
    await watch.until(lambda: watch.searcher["active_pid"] != pid, "the other search worker to take over", LOADED_S)
    return [after for answer in answers if (after := answer.at + answer.seconds - at) > 0]


SCENARIOS = (
    Scenario(
        name="process_latencies",
        purpose="typed error, return of a storage worker, failover of a query: how fast (B3)",
        run=run,
        tiers=("ci", "soak"),
        faults=("SIGKILL worker × core_writer", "SIGKILL worker × transcript_appender", "SIGKILL worker × searcher"),
    ),
)
