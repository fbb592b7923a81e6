"""Damage to what is derived: each class of file of a generation, CURRENT, and the cache.

While the daemon is away: one life per case, from the same undamaged copy. While it runs: the generation that serves is
damaged and `index.verify` is asked, as the scrub does. Expected: a damaged generation is never served once it has been
looked at; the one before it, or the keyword search of the truth, answers and says so; a new one is built without
anybody's help. A damaged cache is made again and never gives a wrong vector.
"""

from typing import Any

import trio

from chaos.book import Book
from chaos.client import RpcError
from chaos.damage import KINDS, Case, Copy, damage, pick
from chaos.scenario import Run, Scenario, Verdict
from chaos.scenarios.damage_truth import spread, start, stop
from chaos.stage import Stage, staged

EVENTS = 30
BUILD_S = 60.0
SUSPECT = 1008
WAIT = ("append", "write", "read", "build", "cache")
# Builds happen when they are asked for, or when the one that serves turns out to be damaged.
CONFIG = "[generation_builder]\nbuild_every_ms = 3600000\n"
CLASSES = {
    "MANIFEST.json": "MANIFEST.json",
    "records": "*.msgpack",
    "term counts": "*.arrow",
    "lance data": "**/data/*",
    "lance manifest": "**/_versions/*",
    "lance transaction": "**/_transactions/*",
    "index": "**/_indices/**/*",
}
CACHE_FILES = ("cache.db", "cache.db-wal", "cache.db-shm")


def cases_of(number: int) -> list[Case]:
    """Return every case of a generation, CURRENT included."""
    folder = f"generation_builder/gen-{number:06d}"
    globs = {name: f"{folder}/{glob}" for name, glob in CLASSES.items()}
    globs["CURRENT"] = "generation_builder/CURRENT"
    return [Case(name=name, glob=glob, kind=kind) for name, glob in globs.items() for kind in KINDS]


# ------------------------------------------------------------ while it is away


async def while_stopped(given: Run) -> Verdict:
    """Damage one file per life of the daemon."""
    async with staged(given, "damage_generation_stopped", config=CONFIG, load=None, wait=WAIT) as stage:
        book = await publish_two(stage)
        damaged = (await stage.call("index.status"))["generation"]
        await stop(stage)
        copy = await trio.to_thread.run_sync(Copy, stage.data)
        cases = cases_of(damaged)
        outcomes: dict[str, Any] = {}
        for case in spread(cases, min(len(cases), given.size(2, 6, len(cases)))):
            outcomes[str(case)] = await one_stopped(stage, book, copy, case, damaged)
        stage.facts["outcomes"] = outcomes
        await trio.to_thread.run_sync(copy.restore)
        await start(stage)
    return stage.verdict()


async def publish_two(stage: Stage) -> Book:
    """Fill in two portions with a generation for each, so that there is one to fall back to."""
    stage.waive("I9", "generations are damaged on purpose; the scenario itself looks at what is served")
    book = Book()
    for _ in range(2):
        await book.fill(stage.client, stage.rng, EVENTS // 2)
        await rebuilt(stage, (await stage.call("index.status"))["generation"] or 0)
    return book


async def rebuilt(stage: Stage, before: int) -> None:
    """Ask for a build and wait until it serves."""
    await stage.call("index.rebuild")
    await stage.until(
        lambda s: (s["generation"] or 0) > before and s["building"] is None, BUILD_S, method="index.status"
    )


async def one_stopped(stage: Stage, book: Book, copy: Copy, case: Case, number: int) -> dict[str, Any]:
    """Damage one file of an undamaged copy, start, and judge what is served."""
    await trio.to_thread.run_sync(copy.restore)
    path = pick(stage.data, case.glob, stage.rng)
    if path is None:
        return {"skipped": "no such file"}
    stage.mark("damage", case.name, damage(path, case.kind, stage.rng))
    await start(stage)
    await stage.ready("append", "write", "read", "build", seconds=BUILD_S)
    wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
    status = await stage.call("index.status")
    # CURRENT is only a pointer: the generation that it named is sound, and still the highest one that verifies.
    sound = case.name == "CURRENT"
    if not sound and number in (status["generation"], found["generation"]):
        wrong.append(f"generation {number} is damaged and serves: {status['generation']}, {found['generation']}")
    if found["generation"] is None and not found["degraded"]:
        wrong.append("an answer without a generation does not say so")
    for text in wrong:
        stage.violate(f"{case}: {text}")
    await stop(stage)
    codes = sorted({each["code"] for each in found["degraded"]})
    return {"serves": status["generation"], "answered_by": found["generation"], "degraded": codes}


# ------------------------------------------------------------ while it runs


async def while_running(given: Run) -> Verdict:
    """Damage the generation that serves, again and again, in one life of the daemon."""
    async with staged(given, "damage_generation_running", config=CONFIG, load=None) as stage:
        book = await publish_two(stage)
        outcomes: dict[str, Any] = {}
        cases = [case for case in cases_of(0) if case.name != "CURRENT"]
        for case in spread(cases, min(len(cases), given.size(2, 6, len(cases)))):
            outcomes[str(case)] = await one_running(stage, book, case)
        stage.facts["outcomes"] = outcomes
    return stage.verdict()


async def one_running(stage: Stage, book: Book, case: Case) -> dict[str, Any]:
    """Damage a file of the generation that serves, verify, judge what is served then, wait for the next one."""
    number = (await stage.call("index.status"))["generation"]
    glob = next(each.glob for each in cases_of(number) if (each.name, each.kind) == (case.name, case.kind))
    path = pick(stage.data, glob, stage.rng)
    if path is None:
        return {"skipped": "no such file"}
    stage.rolled_back()
    stage.mark("damage", case.name, damage(path, case.kind, stage.rng))
    noticed = None
    try:
        await stage.call("index.verify")
    except RpcError as error:
        noticed = error.code
    if noticed != SUSPECT:
        stage.violate(f"{case}: index.verify answered {noticed} for a damaged {path.name}")
    wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
    if found["generation"] == number:
        wrong.append(f"generation {number} was found damaged and still answers")
    for text in wrong:
        stage.violate(f"{case}: {text}")
    await stage.until(
        lambda s: (s["generation"] or 0) > number and s["building"] is None, BUILD_S, method="index.status"
    )
    return {"answered_by": found["generation"], "noticed": noticed}


# ------------------------------------------------------------ the cache


async def cache(given: Run) -> Verdict:
    """Damage each file of the cache, stopped and running; it is made again, and nobody else notices."""
    cases = [Case(name=name, glob=f"cache_manager/{name}", kind=kind) for name in CACHE_FILES for kind in KINDS]
    async with staged(given, "damage_cache", load=None, wait=WAIT) as stage:
        book = Book()
        await book.fill(stage.client, stage.rng, 10)
        await stop(stage)
        copy = await trio.to_thread.run_sync(Copy, stage.data)
        outcomes: dict[str, Any] = {}
        for case in spread(cases, min(len(cases), given.size(2, 4, len(cases)))):
            await trio.to_thread.run_sync(copy.restore)
            outcomes[str(case)] = await one_cache(stage, book, case)
            await stop(stage)
        stage.facts["outcomes"] = outcomes
        await trio.to_thread.run_sync(copy.restore)
        await start(stage)
    return stage.verdict()


async def one_cache(stage: Stage, book: Book, case: Case) -> dict[str, Any]:
    """Damage a file of the cache, start, delete its folder while it runs."""
    path = pick(stage.data, case.glob, stage.rng)
    if path is None:
        return {"skipped": "no such file"}
    stage.mark("damage", case.name, damage(path, case.kind, stage.rng))
    await start(stage)
    await stage.ready("append", "write", "read", "cache", seconds=BUILD_S)
    stats = await stage.call("cache.stats")
    for wrong, missing in (await book.compare_events(stage.client), await book.compare_units(stage.client)):
        for text in [*wrong, *(f"{each} is missing" for each in missing)]:
            stage.violate(f"{case}: {text}")
    return {"recreated": stats["recreated"]}


SCENARIOS = (
    Scenario(
        name="damage_generation_stopped",
        purpose="damage to each class of file of a generation and to CURRENT, then a start: never served",
        run=while_stopped,
        tiers=("ci", "soak"),
        faults=("corrupt generation × searcher", "delete and truncate CURRENT and manifest × searcher"),
        watchdog_s=900.0,
        beside=True,
    ),
    Scenario(
        name="damage_generation_running",
        purpose="damage to the generation that serves: found by index.verify, replaced, the one before it answers",
        run=while_running,
        tiers=("ci", "soak"),
        faults=("corrupt generation × generation_builder",),
        watchdog_s=900.0,
        beside=True,
    ),
    Scenario(
        name="damage_cache",
        purpose="damage to the files of the embedding cache: made again, nobody else notices",
        run=cache,
        tiers=("ci", "soak"),
        faults=("corrupt bytes × cache_manager", "delete and truncate × cache_manager"),
        watchdog_s=600.0,
        beside=True,
    ),
)
