"""accepted = searchable + pending + failed, to the item, in every answer of index.status: under load and kills.

The numbers are compared at the end with an independent count: what was sent, and what the provider was made to refuse.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client, Disconnected, RpcError, open_socket
from chaos.daemon import Daemon, kill, wait_until
from tests.integration.conftest import Serve, embedding_by, running
from tests.unit.actors.embedding.fake_endpoint import Answer, FakeEndpoint, refused, vectors

CORPORA = ("events", "units", "documents")
PACE_S = 0.05  # between two changes: each text is embedded by a call of its own, and all must be through at the end
LOAD_S = 12.0
SEED = 20_261_201


def check(items: dict[str, Any]) -> None:
    """Check the equation of each corpus, both ways."""
    for corpus in CORPORA:
        counts = items[corpus]
        for way in ("words", "meaning"):
            states = counts[way]
            parts = (states["searchable"], states["pending"], states["failed"])
            assert min(parts) >= 0, (corpus, way, items)
            assert sum(parts) == counts["accepted"], (corpus, way, items)
            assert sum(states["reasons"].values()) == states["failed"], (corpus, way, items)


def refuse_some(texts: list[str]) -> Answer:
    """Take everything but what says so."""
    return refused() if any("unspeakable" in text for text in texts) else vectors(texts)


class Truth:
    """What was acknowledged, as the client knows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.events: set[str] = set()
        self.units: dict[str, str] = {}  # active ones: text
        self.settled = trio.Event()

    def failing(self, texts: list[str]) -> int:
        return sum("unspeakable" in text for text in texts)


async def change(daemon: Daemon, truth: Truth, rng: random.Random) -> None:
    """Append, put, deprecate, write and delete notes, until the time is up."""
    number = 0
    ends = trio.current_time() + LOAD_S
    while trio.current_time() < ends:
        try:
            async with open_socket(daemon.socket_path) as client:
                while trio.current_time() < ends:
                    await step(client, truth, rng, number)
                    number += 1
                    await trio.sleep(PACE_S)
        except (OSError, Disconnected, RpcError):
            await trio.sleep(0.05)
    truth.settled.set()


async def step(client: Client, truth: Truth, rng: random.Random, number: int) -> None:
    word = "unspeakable" if number % 17 == 0 else "ordinary"
    choice = rng.random()
    if choice < 0.6:
        events = [
            {
                "session_id": "s",
                "actor": "user",
                "content": f"{word} event {number} {part}" if part else "   ",
                "event_id": f"e-{number}-{part}",
            }
            for part in range(3)
        ]
        await client.call("event.append_many", {"events": events})
        truth.events |= {str(event["event_id"]) for event in events}
    elif choice < 0.9:
        unit_id = f"u{rng.randrange(12)}"
        status = "deprecated" if rng.random() < 0.2 else "active"
        text = f"{word} unit {number}"
        params = {"unit_id": unit_id, "type": "plan", "scope": "global", "text": text, "status": status}
        await client.call("unit.put", {**params, "request_id": f"put-{number}"})
        truth.units.pop(unit_id, None)
        if status == "active":
            truth.units[unit_id] = text
    else:
        path = truth.folder / f"note-{rng.randrange(6)}.md"
        if path.exists() and rng.random() < 0.4:
            path.unlink()
        else:
            path.write_text(f"# Note {number}\n\n{word} note {number}\n", encoding="utf-8")


async def read_all_the_time(daemon: Daemon, truth: Truth, readings: list[dict[str, Any]]) -> None:
    """Read the status again and again, and check each answer; a fresh one holds all that was acknowledged before."""
    while not truth.settled.is_set():
        try:
            async with open_socket(daemon.socket_path) as client:
                while not truth.settled.is_set():
                    known = len(truth.events)
                    items = (await client.call("index.status"))["items"]
                    if items is not None:
                        check(items)
                        readings.append(items)
                        assert items["stale"] or items["events"]["accepted"] >= known, (items, known)
        except (OSError, Disconnected, RpcError):
            await trio.sleep(0.05)


async def hurt(daemon: Daemon, client_path: str, truth: Truth, rng: random.Random) -> int:
    """Kill a worker now and then."""
    kills = 0
    while not truth.settled.is_set():
        with trio.move_on_after(0.8 + rng.random()):
            await truth.settled.wait()
        try:
            async with open_socket(client_path) as client:
                actors = (await client.call("system.status"))["actors"]
        except (OSError, Disconnected, RpcError):
            continue
        name = rng.choice(
            ["generation_builder", "generation_builder", "core_writer", "transcript_appender", "searcher"]
        )
        pids = [worker["pid"] for worker in actors[name]["workers"]]
        if pids:
            kills += kill(rng.choice(pids))
    return kills


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "notes"
    path.mkdir()
    (path / "first.md").write_text("# First\n\na first note\n", encoding="utf-8")
    return path


async def test_the_parts_are_the_whole_in_every_answer(data: Path, config: Path, folder: Path) -> None:
    rng, readings, truth = random.Random(SEED), list[dict[str, Any]](), Truth(folder)
    print(f"seed {SEED}")
    with FakeEndpoint(refuse_some) as endpoint:
        extra = "scan_every_ms = 500\n[supervision]\nrestarts_max = 1000\nbuilder_backoff_ms_min = 50\n"
        async with running(data, config, embedding_by(endpoint, batch_max=1) + extra) as (daemon, client):
            await client.call("source.add", {"path": str(folder), "name": "notes"})
            async with trio.open_nursery() as nursery:
                nursery.start_soon(change, daemon, truth, rng)
                nursery.start_soon(read_all_the_time, daemon, truth, readings)
                kills = await hurt(daemon, daemon.socket_path, truth, random.Random(SEED + 1))
            await agree(client, truth)
    fresh = sum(items["stale"] is None for items in readings)
    print(f"{len(readings)} readings, {fresh} fresh, {kills} kills, {len(truth.events)} events")
    assert kills >= 3 and fresh >= 10
    assert any(items["events"]["meaning"]["pending"] for items in readings)


async def agree(client: Client, truth: Truth) -> None:
    """Wait until nothing is pending, and compare with the independent count."""
    status = await wait_until(
        client,
        lambda s: (
            s["items"] is not None
            and s["items"]["stale"] is None
            and not any(s["items"][corpus][way]["pending"] for corpus in CORPORA for way in ("words", "meaning"))
        ),
        60,  # with the load before it within the time of a test
        method="index.status",
    )
    items = status["items"]
    check(items)
    # The events of a step that failed half-way may be there without an acknowledgement: ask for their number.
    stored = (await client.call("session.get", {"session_id": "s"}))["events"]
    notes = [path.read_text(encoding="utf-8") for path in truth.folder.glob("*.md")]
    assert items["events"]["accepted"] == stored >= len(truth.events)
    bare = items["events"]["meaning"]["reasons"]["nothing_to_embed"]
    assert bare == stored // 3
    units = await client.call("unit.list", {"limit": 50})
    assert {unit["unit_id"] for unit in units["units"]} >= truth.units.keys()
    assert items["units"]["accepted"] == len(units["units"])
    assert items["documents"]["accepted"] == len(notes)
    for corpus, texts in (("units", [unit["text"] for unit in units["units"]]), ("documents", notes)):
        assert items[corpus]["meaning"]["reasons"].get("refused", 0) == truth.failing(texts)
        assert items[corpus]["meaning"]["searchable"] == len(texts) - truth.failing(texts)
    failed = items["events"]["meaning"]["reasons"].get("refused", 0)
    page = await client.call("session.history", {"session_id": "s", "limit": 100, "after_seq": 0})
    contents = [event["content"] for event in page["events"]]
    while page["more"]:
        last = page["events"][-1]["seq"]
        page = await client.call("session.history", {"session_id": "s", "limit": 100, "after_seq": last})
        contents += [event["content"] for event in page["events"]]
    assert len(contents) == stored
    assert failed == truth.failing(contents)
    assert items["events"]["meaning"]["searchable"] == stored - failed - bare


async def test_each_item_has_its_state(data: Path, config: Path, folder: Path) -> None:
    with FakeEndpoint(refuse_some) as endpoint:
        async with running(data, config, embedding_by(endpoint, batch_max=1)) as (_, client):
            await client.call("source.add", {"path": str(folder), "name": "notes"})
            for name, content in (("good", "an ordinary event"), ("bad", "an unspeakable event"), ("bare", " ")):
                await client.call(
                    "event.append", {"session_id": "s", "actor": "user", "content": content, "event_id": name}
                )
            await client.call("unit.put", {"unit_id": "u", "type": "plan", "scope": "global", "text": "ordinary unit"})
            await wait_until(
                client,
                lambda s: (
                    s["items"] is not None
                    and s["items"]["documents"]["accepted"] == 1
                    and not any(s["items"][corpus]["meaning"]["pending"] for corpus in CORPORA)
                ),
                method="index.status",
            )
            found = {}
            for item in ("good", "bad", "bare", "u", "notes/first.md"):
                state = await client.call("index.item", {"id": item})
                found[item] = state["corpus"], state["words"], state["meaning"], state["reason"]
            assert found == {
                "good": ("events", "searchable", "searchable", None),
                "bad": ("events", "searchable", "failed", "refused"),
                "bare": ("events", "searchable", "failed", "nothing_to_embed"),
                "u": ("units", "searchable", "searchable", None),
                "notes/first.md": ("documents", "searchable", "searchable", None),
            }
            with pytest.raises(RpcError) as missing:
                await client.call("index.item", {"id": "nobody"})
            assert missing.value.code == 1013
            await client.call("debug.hold_build", {"stage": "delta begin"})
            await client.call("unit.put", {"unit_id": "u", "type": "plan", "scope": "global", "text": "changed"})
            state = await client.call("index.item", {"id": "u"})
            assert (state["words"], state["meaning"]) == ("searchable", "pending")
            items = (await client.call("index.status"))["items"]
            assert items["units"]["accepted"] == 1 and items["units"]["meaning"]["pending"] == 1
            await client.call("debug.hold_build", {"stage": None})


async def test_without_a_model_nothing_is_found_by_meaning_and_all_by_words(serve: Serve) -> None:
    async with serve() as (_, client):
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "hello"})
        items = (await client.call("index.status"))["items"]
        check(items)
        assert items["events"]["words"]["searchable"] == 1
        assert items["events"]["meaning"]["reasons"] == {"no_model": 1}


async def test_while_the_builder_is_away_the_last_count_is_told_as_such(serve: Serve) -> None:
    async with serve() as (_, client):
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "hello"})
        first = (await client.call("index.status"))["items"]
        assert first["stale"] is None and first["events"]["accepted"] == 1
        status = await client.call("system.status")
        workers = status["actors"]["generation_builder"]["workers"]  # there may be one that builds a generation
        (pid,) = [row["pid"] for row in workers if row["name"] == "generation_builder"]
        os.kill(pid, signal.SIGSTOP)
        try:
            await client.call("event.append", {"session_id": "s", "actor": "user", "content": "again"})
            away = (await client.call("index.status"))["items"]
            check(away)
            assert away["stale"] and away["events"]["accepted"] == 1
        finally:
            os.kill(pid, signal.SIGKILL)
