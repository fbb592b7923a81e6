"""The same ids are written again and again: 10,000 upserts of 1,000 ids (C3).

Expected: the index does not keep what was replaced (less than twice the live data on disk), descriptors and memory do
not grow with the number of upserts, no old version is ever answered, and the view that has grown by deltas answers as a
fresh generation of the same truth does: the same hits in the same order, up to ties, by words, by vectors and by both.
"""

import itertools
import random
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import psutil
import trio

from chaos.client import open_socket
from chaos.endpoint import hashing
from chaos.load import sentence
from chaos.scenario import Run, Scenario, Verdict
from chaos.stage import Stage, staged

NAME = "churn_upserts"
MIB = 1 << 20
WRITERS = 4
QUERIES = 12
LIMIT = 15
MODES = ("keyword", "vector", "hybrid")
SETTLED_S = 180.0
SAMPLES = 24
DISK_FACTOR = 2.0
# What a process may have more at the end than in the beginning, when it was warm already.
DAEMON_MIB, WORKER_MIB, DESCRIPTORS = 12, 96, 12
SCORE_DIGITS = 5
# No generation is kept for a rollback, so that the folder holds the live data and what is being replaced.
CONFIG = """
[generation_builder]
generations_kept = 1
retire_grace_ms = 200
compact_after_ms = 3600000
"""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What the daemon holds at a moment: bytes of its index folder; MiB and descriptors by process."""

    upserts: int
    index_bytes: int
    mib: dict[str, float]
    descriptors: dict[str, int]


async def run(given: Run) -> Verdict:
    """Run the scenario."""
    ids = [f"unit-{number:04}" for number in range(given.size(40, 300, 1000))]
    upserts = given.size(200, 900, 10_000)
    with hashing() as embedding:
        async with staged(given, NAME, load=None, files=3, config=embedding + CONFIG) as stage:
            latest: dict[str, str] = {}
            await put_all(stage, ids, latest)
            await settled(stage)
            await stage.take_census(("append", "write", "read", "search", "build", "cache"))
            samples = [await sample(stage, 0)]
            rounds = [ids[number % len(ids)] for number in range(upserts)]
            stage.rng.shuffle(rounds)
            for start in range(0, upserts, step := max(1, upserts // SAMPLES)):
                await put_all(stage, rounds[start : start + step], latest)
                stage.mark("upserts", "core_writer", f"{step} more")
                samples.append(await sample(stage, start + step))
            if (await settled(stage))["delta"] is None:  # it has just become part of a generation
                await put_all(stage, ids[:20], latest)
            grown = await bytes_at_rest(stage)
            await compare(stage, latest)
            await judge_disk(stage, samples, grown)
            judge_growth(stage, samples)
    return stage.verdict()


async def put_all(stage: Stage, ids: list[str], latest: dict[str, str]) -> None:
    """Put a new version of each of these units, by several clients; those of one unit in order."""
    by_writer: list[list[str]] = [[] for _ in range(WRITERS)]
    for unit_id in ids:
        by_writer[hash_of(unit_id)].append(unit_id)
    numbers = itertools.count(len(latest))

    async def write(own: list[str], rng: random.Random) -> None:
        async with open_socket(stage.daemon.socket_path) as client:
            for unit_id in own:
                text = f"{sentence(rng)} {sentence(rng)} {next(numbers)} {rng.randrange(10**9)}"
                params = {"unit_id": unit_id, "type": "plan", "scope": "global", "text": text}
                await client.call("unit.put", params)
                latest[unit_id] = text

    async with trio.open_nursery() as nursery:
        for own in by_writer:
            nursery.start_soon(write, own, random.Random(stage.rng.random()))


def hash_of(unit_id: str) -> int:
    """Return which writer a unit belongs to."""
    return int(unit_id.rpartition("-")[2]) % WRITERS


async def settled(stage: Stage) -> dict[str, Any]:
    """Wait until everything is in the view that serves, with its vectors, and both search workers have it open."""
    status: dict[str, Any] = await stage.until(
        lambda s: (
            s["generation"] is not None
            and s["building"] is None
            and s["deltas"]["building"] is None
            and not any(s["behind"].values())
            and s["vectors"]["have"] == s["vectors"]["want"] > 0
        ),
        SETTLED_S,
        method="index.status",
    )
    view = status["generation"], status["delta"]
    await stage.until(
        lambda s: s["searcher"]["loaded"] == 2 and (s["searcher"]["serving"], s["searcher"]["delta"]) == view, SETTLED_S
    )
    return status


# ------------------------------------------------------------ the same answers


async def compare(stage: Stage, latest: dict[str, str]) -> None:
    """Ask the view that has grown, build a fresh generation, and ask that."""
    grown = await settled(stage)
    if grown["delta"] is None:
        stage.violate("the view that was to be compared with a fresh generation has no delta")
    queries = [" ".join(sentence(stage.rng).split()[:3]) for _ in range(QUERIES)]
    # A text in full finds itself first by its vector; an old version must not be found at all.
    queries += stage.rng.sample(sorted(latest.values()), 3)
    before = {(query, mode): await ask(stage, query, mode, latest) for query in queries for mode in MODES}
    await stage.call("index.rebuild", {})
    await stage.until(
        lambda s: s["generation"] > grown["generation"] and s["building"] is None, SETTLED_S, method="index.status"
    )
    fresh = await settled(stage)
    after = {(query, mode): await ask(stage, query, mode, latest) for query in queries for mode in MODES}
    for key, hits in before.items():
        if not same(hits, after[key]):
            stage.violate(f"{key}: the grown view answered {hits[:6]}, a fresh generation {after[key][:6]}")
    counts = grown["rows"]["units"], fresh["rows"]["units"], len(latest)
    if len(set(counts)) != 1:
        stage.violate(f"rows of units: {counts[0]} in the grown view, {counts[1]} in a fresh one, {counts[2]} units")
    stage.facts["compared"] = {"questions": len(before), "delta_rows": grown["deltas"]["rows"]}


async def ask(stage: Stage, query: str, mode: str, latest: dict[str, str]) -> list[tuple[float, str]]:
    """Return score and id of the hits, and see that none of them is an old version."""
    found = await stage.call("memory.search", {"query": query, "mode": mode, "limit": LIMIT})
    if found["degraded"] or found["mode"] != mode:
        stage.violate(f"{query!r} by {mode}: answered by {found['mode']}, degraded {found['degraded']}")
    for hit in found["hits"]:
        text = latest.get(hit["id"])
        words = hit["snippet"].strip("… ")
        if hit["corpus"] == "units" and (text is None or words[:20] not in text):
            stage.violate(f"{query!r} by {mode}: {hit['id']} is answered as {hit['snippet']!r}, is {text!r}")
    return [(round(hit["score"], SCORE_DIGITS), hit["id"]) for hit in found["hits"]]


def same(one: list[tuple[float, str]], other: list[tuple[float, str]]) -> bool:
    """Say whether two answers have the same hits in the same order, up to ties; of the last score some are cut off."""
    if [score for score, _ in one] != [score for score, _ in other]:
        return False
    last = one[-1][0] if len(one) == LIMIT else None
    kept = [sorted(hit for hit in hits if hit[0] != last) for hits in (one, other)]
    return kept[0] == kept[1]


# ------------------------------------------------------------ what it costs


async def sample(stage: Stage, upserts: int) -> Sample:
    """Look at the folder and the processes."""
    status = await stage.status()
    pids = {"daemon": int(status["pid"])}
    for actor in status["actors"].values():
        pids |= {worker["name"]: int(worker["pid"]) for worker in actor["workers"] if worker["pid"]}
    mib: dict[str, float] = {}
    descriptors: dict[str, int] = {}
    for name, pid in pids.items():
        try:
            process = psutil.Process(pid)
            mib[name], descriptors[name] = round(process.memory_info().rss / MIB, 1), process.num_fds()
        except psutil.NoSuchProcess:
            continue
    size = await trio.to_thread.run_sync(folder_bytes, stage.data / "generation_builder")
    return Sample(upserts=upserts, index_bytes=size, mib=mib, descriptors=descriptors)


def folder_bytes(folder: Path) -> int:
    """Return the size of all files below a folder; what vanishes meanwhile does not count."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


async def bytes_at_rest(stage: Stage) -> int:
    """Return what the index folder takes once the view is complete, and what it replaced is gone after its grace."""
    folder = stage.data / "generation_builder"
    status = await settled(stage)
    wanted = 1 if status["delta"] is None else 2
    size = 0
    with trio.move_on_after(20):
        while True:
            size = await trio.to_thread.run_sync(folder_bytes, folder)
            names = await trio.to_thread.run_sync(lambda: sorted(folder.glob("gen-*")))
            if len(names) <= wanted:
                break
            await trio.sleep(0.2)
    return size


async def judge_disk(stage: Stage, samples: list[Sample], grown: int) -> None:
    """Compare the index folder after the upserts with what a fresh generation takes. While a generation is being made
    beside the one that serves there is more for a moment: the peak is told and not judged."""
    live = await bytes_at_rest(stage)
    peak = max(each.index_bytes for each in samples)
    stage.facts["index_bytes"] = {"fresh": live, "grown": grown, "peak": peak}
    if grown > DISK_FACTOR * live:
        stage.violate(f"the index takes {grown} bytes after the upserts, a fresh one {live}: more than {DISK_FACTOR} ×")


def judge_growth(stage: Stage, samples: list[Sample]) -> None:
    """Compare what each process held in the last third of the upserts with the second: by then all was warm."""
    third = len(samples) // 3
    series: dict[str, dict[str, list[float]]] = {}
    for name in samples[-1].mib:
        mib = [each.mib[name] for each in samples if name in each.mib]
        descriptors = [float(each.descriptors[name]) for each in samples if name in each.descriptors]
        series[name] = {"mib": mib, "descriptors": descriptors}
        if len(mib) < len(samples):
            continue  # it was replaced meanwhile, or began later
        allowed = DAEMON_MIB if name == "daemon" else WORKER_MIB
        grew = median(mib[-third:]) - median(mib[third : 2 * third])
        if grew > allowed:
            stage.violate(f"{name} grew by {grew:.0f} MiB over the last third of the upserts, {allowed} are allowed")
        more = max(descriptors[-third:]) - max(descriptors[third : 2 * third])
        if more > DESCRIPTORS:
            stage.violate(f"{name} held {more:.0f} descriptors more in the last third, {DESCRIPTORS} are allowed")
    stage.facts["series"] = {"upserts": [each.upserts for each in samples], **series}


SCENARIOS = (
    Scenario(
        NAME,
        "10,000 upserts of 1,000 ids: disk, memory and descriptors flat, the answers those of a fresh generation",
        run,
        tiers=("ci", "soak"),
        faults=("upserts without end × generation_builder",),
        watchdog_s=3600.0,
        beside=True,
    ),
)
