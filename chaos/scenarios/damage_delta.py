"""Damage to deltas, to the generation kept for a rollback, and to the pointer at what serves (reliability.md §5.4, C5).

While the daemon is away: one life per case, from the same undamaged copy, which holds a generation, two deltas over it
and the generation before. While it runs: the delta that serves is damaged and `index.verify` is asked, as the scrub
does. Expected: what was damaged is never served once it has been looked at; its generation, the one before it, or the
keyword search of the truth answers everything that was acknowledged and says so; a new delta or generation is made
without anybody's help, and CURRENT names it.
"""

from pathlib import Path
from typing import Any, NamedTuple

import trio

from actors import generation
from chaos.book import Book
from chaos.client import RpcError
from chaos.damage import Copy
from chaos.harm import Harm, Pointing, folder_harms, pointers
from chaos.scenario import Run, Scenario, Verdict
from chaos.scenarios.damage_generation import publish_two
from chaos.scenarios.damage_truth import start, stop
from chaos.setup import write_config
from chaos.stage import Stage, staged

EVENTS = 8
BUILD_S = 60.0
SUSPECT = 1008
WAIT = ("append", "write", "read", "build", "cache")
# Full builds happen when they are asked for or when one is damaged; deltas that were replaced stay to be mistaken.
CONFIG = "[generation_builder]\nbuild_every_ms = 3600000\ncompact_after_ms = 3600000\nretire_grace_ms = 3600000\n"
# Here they go at once: so that there is one that is gone, and because no more than some are kept.
TIDY = CONFIG.replace("retire_grace_ms = 3600000", "retire_grace_ms = 100")


class Shelf(NamedTuple):
    """What the undamaged copy holds: the generation that serves, its deltas, the generation before."""

    generation: int
    delta: int
    older_delta: int
    before: int


async def published(stage: Stage) -> tuple[Book, Shelf]:
    """Publish two generations and two deltas over the second one."""
    stage.waive("I10", "deltas that were replaced are kept, to be mistaken for the one that serves")
    book = await publish_two(stage)
    deltas = [await next_delta(stage, book) for _ in range(2)]
    status = await stage.call("index.status")
    return book, Shelf(status["generation"], deltas[1], deltas[0], status["previous"][0])


async def next_delta(stage: Stage, book: Book) -> int:
    """Write something, and wait until a delta holds it."""
    before = (await stage.call("index.status"))["delta"]
    await book.fill(stage.client, stage.rng, EVENTS)
    status = await stage.until(lambda s: s["delta"] not in (None, before) and covered(s), BUILD_S, "index.status")
    return int(status["delta"])


def covered(status: dict[str, Any]) -> bool:
    """Say whether the index holds everything, and nothing is under way."""
    busy = status["building"] is not None or status["deltas"]["building"] is not None
    return status["generation"] is not None and not any(status["behind"].values()) and not busy


def spread_harms(harms: list[Harm], count: int) -> list[Harm]:
    """Return so many of the harms, spread over all of them."""
    return [harms[number * len(harms) // count] for number in range(count)]


async def rest(stage: Stage, copy: Copy) -> None:
    """Start over the undamaged copy once more, with what is not served deleted at once, as the leak check expects."""
    await trio.to_thread.run_sync(copy.restore)
    await trio.to_thread.run_sync(lambda: write_config(stage.config_path, TIDY, launcher=False))
    await start(stage)


# ---------------------------------------------------------------- deltas, while it is away


async def deltas_stopped(given: Run) -> Verdict:
    """Harm the delta that CURRENT names, one harm per life of the daemon."""
    async with staged(given, "damage_delta_stopped", config=CONFIG, load=None, wait=WAIT) as stage:
        book, shelf = await published(stage)
        await stop(stage)
        copy = await trio.to_thread.run_sync(Copy, stage.data)
        outcomes: dict[str, Any] = {}
        harms = folder_harms()
        for harm in spread_harms(harms, given.size(3, 5, len(harms))):
            await trio.to_thread.run_sync(copy.restore)
            outcomes[harm.name] = await one_delta(stage, book, harm, shelf)
            await stop(stage)
        stage.facts["outcomes"] = outcomes
        await rest(stage, copy)
    return stage.verdict()


async def one_delta(stage: Stage, book: Book, harm: Harm, shelf: Shelf) -> dict[str, Any]:
    """Harm the delta, start, judge what is served at once and what in the end."""
    index = stage.data / "generation_builder"
    folder = generation.delta_path(index, shelf.generation, shelf.delta)
    other = generation.delta_path(index, shelf.generation, shelf.older_delta)
    detail = harm.do(folder, other, stage.rng)
    if detail is None:
        return {"skipped": "no such file"}
    stage.mark("damage", harm.name, detail)
    await start(stage)
    await stage.ready("append", "write", "read", "build", seconds=BUILD_S)
    wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
    replaced = not folder.is_dir()  # its number is free again: what bears it then is another one
    if not replaced and (found["generation"], found["delta"]) == (shelf.generation, shelf.delta):
        wrong.append(f"delta {shelf.delta} is damaged and answers")
    healed, status = await heal(stage, book)
    wrong += healed
    if not replaced and (status["generation"], status["delta"]) == (shelf.generation, shelf.delta):
        wrong.append(f"delta {shelf.delta} is damaged and serves")
    for text in wrong:
        stage.violate(f"{harm.name}: {text}")
    return {"answered_by": name_of(found), "then": name_of(status), "degraded": codes(found)}


async def heal(stage: Stage, book: Book) -> tuple[list[str], dict[str, Any]]:
    """Wait until the index holds everything again by itself; return what is wrong then, and its status."""
    status = await stage.until(covered, BUILD_S, "index.status")
    await stage.until(
        lambda s: (
            (s["searcher"]["serving"], s["searcher"]["delta"]) == (status["generation"], status["delta"])
            and s["searcher"]["loaded"]
        ),
        BUILD_S,
    )
    wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
    if found["generation"] is None or found["degraded"]:
        wrong.append(f"it does not come to rest: {found['generation']}, degraded {found['degraded']}")
    pointer = await trio.to_thread.run_sync(generation.read_current, stage.data / "generation_builder")
    if pointer is None or (pointer.generation, pointer.delta) != (status["generation"], status["delta"]):
        wrong.append(f"CURRENT says {pointer}, served is {name_of(status)}")
    return wrong, status


def name_of(answer: dict[str, Any]) -> str:
    """Return what serves, as one word."""
    return "none" if answer["generation"] is None else f"{answer['generation']}-{answer['delta']}"


def codes(found: dict[str, Any]) -> list[str]:
    """Return why an answer is degraded."""
    return sorted({each["code"] for each in found["degraded"]})


# ---------------------------------------------------------------- deltas, while it runs


async def deltas_running(given: Run) -> Verdict:
    """Harm the delta that serves, again and again, in one life of the daemon."""
    async with staged(given, "damage_delta_running", config=TIDY, load=None) as stage:
        book, _ = await published(stage)
        outcomes: dict[str, Any] = {}
        harms = folder_harms()
        for harm in spread_harms(harms, given.size(2, 4, len(harms))):
            outcomes[harm.name] = await one_running(stage, book, harm)
        stage.facts["outcomes"] = outcomes
    return stage.verdict()


async def one_running(stage: Stage, book: Book, harm: Harm) -> dict[str, Any]:
    """Harm the delta that serves, have it verified, judge what is served then. What is exchanged is its generation."""
    if (await stage.call("index.status"))["delta"] is None:
        await next_delta(stage, book)
    status = await stage.call("index.status")
    number, delta = status["generation"], status["delta"]
    index = stage.data / "generation_builder"
    folder = generation.delta_path(index, number, delta)
    detail = harm.do(folder, generation.generation_path(index, number), stage.rng)
    if detail is None:
        return {"skipped": "no such file"}
    stage.rolled_back()
    stage.mark("damage", harm.name, detail)
    noticed = await verified(stage)
    now = await stage.call("index.status")
    wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
    # Names and sizes are looked at every second, so the builder may have been faster than the order to verify.
    if noticed != SUSPECT and (now["generation"], now["delta"]) == (number, delta):
        wrong.append(f"index.verify answered {noticed}")
    if (found["generation"], found["delta"]) == (number, delta):
        wrong.append(f"delta {number}-{delta} was found damaged and still answers")
    healed, status = await heal(stage, book)
    for text in [*wrong, *healed]:
        stage.violate(f"{harm.name}: {text}")
    return {"noticed": noticed, "answered_by": name_of(found), "then": name_of(status)}


async def verified(stage: Stage) -> int | None:
    """Ask for a verification of what serves; return the code of the error, None when it was found sound."""
    try:
        await stage.call("index.verify")
    except RpcError as error:
        return error.code
    return None


# ---------------------------------------------------------------- CURRENT


async def current(given: Run) -> Verdict:
    """Put other contents into CURRENT, one per life of the daemon."""
    async with staged(given, "damage_current", config=TIDY, load=None, wait=WAIT) as stage:
        book, shelf = await published(stage)
        gone = generation.delta_path(stage.data / "generation_builder", shelf.generation, shelf.older_delta)
        with trio.fail_after(BUILD_S):
            while gone.exists():  # noqa: ASYNC110 - the file system tells nobody
                await trio.sleep(0.05)
        await stop(stage)
        copy = await trio.to_thread.run_sync(Copy, stage.data)
        contents = list(pointers(shelf.generation, shelf.delta, before=shelf.before, gone=shelf.older_delta))
        outcomes: dict[str, Any] = {}
        for pointing in spread_pointers(contents, given.size(3, 4, len(contents))):
            await trio.to_thread.run_sync(copy.restore)
            outcomes[pointing.name] = await one_pointer(stage, book, pointing)
            await stop(stage)
        stage.facts["outcomes"] = outcomes
        await rest(stage, copy)
    return stage.verdict()


def spread_pointers(contents: list[Pointing], count: int) -> list[Pointing]:
    """Return so many of the contents, spread over all of them."""
    return [contents[number * len(contents) // count] for number in range(count)]


async def one_pointer(stage: Stage, book: Book, pointing: Pointing) -> dict[str, Any]:
    """Replace CURRENT, start, judge."""
    path = stage.data / "generation_builder" / generation.CURRENT
    path.write_bytes(pointing.content)
    stage.mark("damage", f"CURRENT: {pointing.name}", repr(pointing.content[:40]))
    await start(stage)
    await stage.ready("append", "write", "read", "build", seconds=BUILD_S)
    wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
    healed, status = await heal(stage, book)
    for text in [*wrong, *healed]:
        stage.violate(f"CURRENT, {pointing.name}: {text}")
    return {"answered_by": name_of(found), "then": name_of(status), "degraded": codes(found)}


# ---------------------------------------------------------------- the generation before


async def previous(given: Run) -> Verdict:
    """Harm the generation that is kept for a rollback; roll back; then damage the one that serves as well."""
    async with staged(given, "damage_previous", config=CONFIG, load=None, wait=WAIT) as stage:
        book, shelf = await published(stage)
        await stop(stage)
        copy = await trio.to_thread.run_sync(Copy, stage.data)
        outcomes: dict[str, Any] = {}
        harms = [harm for harm in folder_harms() if not harm.name.startswith("MASK")]
        for harm in spread_harms(harms, given.size(2, 4, len(harms))):
            await trio.to_thread.run_sync(copy.restore)
            outcomes[harm.name] = await one_previous(stage, book, harm, shelf)
            await stop(stage)
        stage.facts["outcomes"] = outcomes
        await rest(stage, copy)
    return stage.verdict()


async def one_previous(stage: Stage, book: Book, harm: Harm, shelf: Shelf) -> dict[str, Any]:
    """A damaged generation is no way back, and no refuge when the one that serves is damaged too.

    The way may lead to an older one that is whole, where that has not been deleted yet.
    """
    index = stage.data / "generation_builder"
    before = generation.generation_path(index, shelf.before)
    other = generation.delta_path(index, shelf.generation, shelf.older_delta)
    detail = harm.do(before, other, stage.rng)
    if detail is None:
        return {"skipped": "no such file"}
    stage.mark("damage", f"generation before: {harm.name}", detail)
    await start(stage)
    await stage.ready("append", "write", "read", "build", "search", seconds=BUILD_S)
    refused = await rolled_back(stage)
    wrong, found = await book.compare_search(stage.client, stage.rng, complete=True)
    serving = (await stage.call("index.status"))["generation"]
    if shelf.before in (found["generation"], serving):
        wrong.append(f"generation {shelf.before} is damaged, and index.rollback served it")
    if (refused is None) is (serving == shelf.generation):
        wrong.append(f"index.rollback answered {refused}, and generation {serving} serves")
    _flip_bit(generation.generation_path(index, serving))
    stage.mark("damage", "generation that serves", "a bit of its data")
    if (noticed := await verified(stage)) != SUSPECT:
        wrong.append(f"index.verify answered {noticed} for the generation that serves")
    left, found = await book.compare_search(stage.client, stage.rng, complete=True)
    if found["generation"] in (shelf.before, serving):
        wrong.append(f"generation {found['generation']} is damaged and answers")
    if found["generation"] is None and not found["degraded"]:
        wrong.append("an answer without a generation does not say so")
    healed, status = await heal(stage, book)
    if status["generation"] in (shelf.before, serving):
        wrong.append(f"generation {status['generation']} is damaged and serves")
    for text in [*wrong, *left, *healed]:
        stage.violate(f"{harm.name}: {text}")
    return {"rollback": refused, "answered_by": name_of(found), "then": name_of(status), "degraded": codes(found)}


def _flip_bit(folder: Path) -> None:
    path = max((path for path in folder.glob("**/data/*")), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


async def rolled_back(stage: Stage) -> int | None:
    """Ask for a rollback; return the code of the error, None when it was done."""
    try:
        await stage.call("index.rollback")
    except RpcError as error:
        return error.code
    return None


SCENARIOS = (
    Scenario(
        name="damage_delta_stopped",
        purpose="damage to each class of file of a delta, files more and less, deltas exchanged; then a start",
        run=deltas_stopped,
        tiers=("ci", "soak"),
        faults=("corrupt delta × searcher",),
        watchdog_s=1800.0,
        beside=True,
    ),
    Scenario(
        name="damage_delta_running",
        purpose="damage to the delta that serves: found by index.verify, its generation answers, replaced",
        run=deltas_running,
        tiers=("ci", "soak"),
        faults=("corrupt delta × generation_builder",),
        watchdog_s=1800.0,
        beside=True,
    ),
    Scenario(
        name="damage_current",
        purpose="CURRENT empty, garbage, huge, or naming what is old, gone or never was; then a start",
        run=current,
        tiers=("ci", "soak"),
        faults=("corrupt CURRENT × generation_builder",),
        watchdog_s=1800.0,
        beside=True,
    ),
    Scenario(
        name="damage_previous",
        purpose="damage to the generation kept for a rollback, then to both: neither is served, the truth answers",
        run=previous,
        tiers=("ci", "soak"),
        faults=("corrupt generation before × generation_builder",),
        watchdog_s=1800.0,
        beside=True,
    ),
)
