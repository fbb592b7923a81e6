"""Damage to the truth while the daemon is away: core.db, the transcript's segments, their WAL, -shm and keyword index.

One life of the daemon per case, each from the same undamaged copy. Expected: nothing wrong is ever served. A row is
right, or refused with a typed error, or missing from an actor that says in system.status that it is not whole. Damaged
core holds up neither appends nor searches; a damaged segment is sealed and appends go on; a keyword index is made
again.
"""

import time

import trio

from chaos.book import Book
from chaos.client import RpcError
from chaos.daemon import wait_gone
from chaos.damage import Case, Copy, Kind, damage, pick
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Stage, staged

EVENTS = 40
SETTLE_S = 30.0
PENDING = frozenset({"new", "starting", "failed", "backoff", "wedged"})
TRUTHS = ("core_writer", "transcript_appender")
# Nothing is built while the truth is damaged and put back: an index that knows more than its truth is another case.
CONFIG = "[generation_builder]\nsettle_ms = 3600000\n"
MAIN: tuple[Kind, ...] = ("zero", "truncate", "bit", "block", "header", "delete")
SIDE: tuple[Kind, ...] = ("zero", "truncate", "bit", "block", "delete")
FILES = {
    "core_writer": {"database": "core.db", "WAL": "core.db-wal", "shm": "core.db-shm", "keywords": "keywords.db"},
    "transcript_appender": {
        "database": "[0-9]*.db",
        "WAL": "[0-9]*.db-wal",
        "shm": "[0-9]*.db-shm",
        "keywords": "keywords.db",
    },
}


def cases_of(actor: str) -> list[Case]:
    """Return every case of an actor."""
    return [
        Case(name=f"{actor} {file}", glob=f"{actor}/{glob}", kind=kind)
        for file, glob in FILES[actor].items()
        for kind in (MAIN if file == "database" else SIDE)
    ]


async def run(given: Run, actor: str) -> Verdict:
    """Run the cases of an actor."""
    cases = cases_of(actor)
    count = given.size(3, 9, 200)
    chosen = [cases[number % len(cases)] for number in range(count)] if count > len(cases) else spread(cases, count)
    wait = ("append", "write", "read")
    async with staged(given, f"damage_{actor}", config=CONFIG, load=None, wait=wait) as stage:
        book = Book()
        await book.fill(stage.client, stage.rng, EVENTS)
        # A search brings the keyword indexes up to date. They are the only witness of a WAL that is gone: without
        # one, a truth that was never written to looks the same.
        wrong, _ = await book.compare_search(stage.client, stage.rng, complete=True)
        stage.violations += wrong
        stage.waive("I11", "actors end in quarantine on purpose")
        await stop(stage)
        copy = await trio.to_thread.run_sync(Copy, stage.data)
        outcomes: dict[str, str] = {}
        for case in chosen:
            outcomes[str(case)] = await one(stage, book, copy, case, actor)
        stage.facts["outcomes"] = outcomes
        await trio.to_thread.run_sync(copy.restore)
        await start(stage)
        await stage.ready(*wait)
        for wrong, missing in (await book.compare_events(stage.client), await book.compare_units(stage.client)):
            for text in [*wrong, *(f"missing after the files were put back: {each}" for each in missing)]:
                stage.violate(text)
    return stage.verdict()


def spread(cases: list[Case], count: int) -> list[Case]:
    """Return so many of the cases, spread over all of them."""
    return [cases[number * len(cases) // count] for number in range(count)]


async def one(stage: Stage, book: Book, copy: Copy, case: Case, actor: str) -> str:
    """Damage one file of an undamaged copy, start, and judge what is said; return what became of it."""
    await trio.to_thread.run_sync(copy.restore)
    path = pick(stage.data, case.glob, stage.rng)
    if path is None:
        return "no such file"
    stage.mark("damage", case.name, damage(path, case.kind, stage.rng))
    await start(stage)
    state, reason = await settled(stage, actor)
    await judge(stage, book, case, actor, whole=state == "ready" and reason is None)
    await stop(stage)
    return state if reason is None else f"{state}: {reason[:160]}"


async def settled(stage: Stage, actor: str) -> tuple[str, str | None]:
    """Wait until the actor has decided what it is; return its state and the reason that it gives."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        row = (await stage.status())["actors"][actor]
        if row["state"] not in PENDING or time.monotonic() > give_up:
            return row["state"], row.get("reason")
        await trio.sleep(0.05)


async def judge(stage: Stage, book: Book, case: Case, actor: str, *, whole: bool) -> None:
    """Compare everything that can be read, and see that what is not damaged works."""
    events, lost_events = await book.compare_events(stage.client)
    units, lost_units = await book.compare_units(stage.client)
    found, _ = await book.compare_search(stage.client, stage.rng, complete=False)
    wrong = [*events, *units, *found]
    lost = lost_events if actor == "transcript_appender" else lost_units
    others = lost_units if actor == "transcript_appender" else lost_events
    if whole and lost:
        wrong.append(f"{actor} claims to be whole and lacks {len(lost)} acknowledged rows")
    if others:
        wrong.append(f"{len(others)} rows of the actor that was not damaged are missing")
    wrong += await append_probe(stage)
    for text in wrong:
        stage.violate(f"{case}: {text}")


async def append_probe(stage: Stage) -> list[str]:
    """Append once, within the time that an actor may need to settle: appends go on whatever is damaged."""
    give_up = time.monotonic() + SETTLE_S
    while True:
        try:
            await stage.client.call("event.append", {"session_id": "probe", "actor": "user", "content": "goes on"})
            return []
        except RpcError as error:
            if not error.data.get("retryable") or time.monotonic() > give_up:
                return [f"an append was refused: {error}"]
        await trio.sleep(0.1)


async def stop(stage: Stage) -> None:
    """End the daemon as a power cut does, so that its WAL stays."""
    pid = stage.daemon.pid()
    stage.daemon.kill()
    await wait_gone(pid, 10.0)
    with trio.fail_after(10.0):
        while stage.daemon.family():  # noqa: ASYNC110 - workers of a killed daemon leave by themselves
            await trio.sleep(0.02)


async def start(stage: Stage) -> None:
    """Start the daemon and wait until it answers."""
    stage.daemon.start()
    await stage.daemon.connected()
    await stage.connected()


def _scenario(actor: str) -> Scenario:
    async def both(given: Run) -> Verdict:
        return await run(given, actor)

    return Scenario(
        name=f"damage_{actor}",
        purpose=f"damage to each class of file of {actor}: nothing wrong is served, the others go on",
        run=both,
        tiers=("ci", "soak"),
        faults=(f"corrupt bytes × {actor}", f"delete and truncate × {actor}"),
        watchdog_s=1800.0,
        beside=True,
    )


SCENARIOS = tuple(_scenario(actor) for actor in TRUTHS)
