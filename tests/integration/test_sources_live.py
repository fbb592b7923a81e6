"""Sources live: changes are noticed by events, and by polling where that cannot be; no root is in another one's way.

A real daemon on real folders. Where events are meant, both clocks are set to an hour: nothing is found by polling.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client
from chaos.daemon import POLL_S, READY_S, kill, wait_until
from tests.hung_mount import can_hang, hung_mount
from tests.integration.conftest import Serve, embedding_by, running
from tests.integration.test_fault_cases_embedding import embedded
from tests.unit.actors.embedding.fake_endpoint import FakeEndpoint

FAST = "watch_debounce_ms = 200\nwatch_debounce_ms_max = 1000\n"
EVENTS = f"{FAST}scan_every_ms = 3600000\nreconcile_every_ms = 3600000\n"
POLLED = f"{FAST}scan_every_ms = 300\nreconcile_every_ms = 3600000\n"
MIB = 1024 * 1024
WORDS = ("alpaca", "beaver", "condor", "dingo", "ermine", "falcon", "gecko", "hyena")
FILLER = "The lighthouse keeper noted wind, tide and passing ships in plain words, as every day before. "


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    for number, word in enumerate(WORDS):
        (folder / f"first-{number}.md").write_text(f"about the {word}")
    return folder


async def add(client: Client, *folders: Path) -> None:
    """Register folders; a search worker looks at them first."""
    await wait_until(client, lambda s: s["searcher"]["workers_ready"] >= 1)
    for folder in folders:
        await client.call("source.add", {"path": str(folder)})


async def watched(client: Client, mode: str = "events", *, count: int = 1) -> list[dict[str, Any]]:
    """Wait until every source is watched, or polled for a known reason, and was walked; return them."""

    def holds(answer: Any) -> bool:
        sources = answer["sources"]
        return len(sources) == count and all(
            each["watching"] == mode and each["files"] is not None and "set up" not in str(each["reason"])
            for each in sources
        )

    answer: dict[str, Any] = await wait_until(client, holds, method="source.list")
    sources: list[dict[str, Any]] = answer["sources"]
    return sources


async def paths(client: Client, query: str) -> list[str]:
    """Return the paths below their roots of the notes that a search finds by words."""
    request = {"query": query, "limit": 20, "corpora": ["documents"], "mode": "keyword"}
    found = await client.call("memory.search", request)
    return sorted({hit["path"].partition("/")[2] for hit in found["hits"]})


async def until_found(client: Client, query: str, expected: list[str]) -> None:
    """Wait until a search by words finds exactly these notes."""
    give_up = time.monotonic() + READY_S
    while (found := await paths(client, query)) != expected:
        assert time.monotonic() < give_up, f"{query!r} finds {found}, not {expected}"
        await trio.sleep(POLL_S)


async def index_until(client: Client, holds: Callable[[Any], bool]) -> dict[str, Any]:
    status: dict[str, Any] = await wait_until(client, holds, method="index.status")
    return status


def held(status: dict[str, Any]) -> dict[str, str]:
    return {Path(each["path"]).name: each["reason"] for each in status["held"]}


async def test_edits_new_notes_new_folders_and_deletions_are_found_without_polling(serve: Serve, notes: Path) -> None:
    async with serve(EVENTS) as (_, client):
        await add(client, notes)
        (source,) = await watched(client)
        assert source["reason"] is None and source["held"] is None
        await until_found(client, "dingo", ["first-3.md"])
        (notes / "first-3.md").write_text("giraffe instead")
        await until_found(client, "giraffe", ["first-3.md"])
        assert await paths(client, "dingo") == []
        (notes / "sub" / "deep" / "deeper").mkdir(parents=True)
        (notes / "sub" / "deep" / "deeper" / "late.md").write_text("okapi in a new folder")
        await until_found(client, "okapi", ["sub/deep/deeper/late.md"])
        (notes / "sub" / "deep" / "deeper" / "late.md").write_text("tapir, written where the watch was made anew")
        await until_found(client, "tapir", ["sub/deep/deeper/late.md"])
        (notes / ".gitignore").write_text("deep/\n")
        await until_found(client, "tapir", [])
        (notes / "first-4.md").unlink()
        await until_found(client, "ermine", [])
        assert await paths(client, "falcon") == ["first-5.md"]
        status = await client.call("index.status")
        assert status["sources"][0]["watching"] == "events" and status["files"] == 7


async def test_the_default_debounce_lets_a_burst_end_and_the_reader_need_not_wait_for_the_clock(
    serve: Serve, notes: Path
) -> None:
    """The debounce of the product, and its polling every 15 s beside it."""
    async with serve() as (_, client):
        await add(client, notes)
        await watched(client)
        await until_found(client, "alpaca", ["first-0.md"])
        before = (await client.call("index.status"))["deltas"]["published"]
        for turn in range(10):
            (notes / "first-0.md").write_text(f"heron, turn {turn}")
        await until_found(client, "heron", ["first-0.md"])
        after = (await client.call("index.status"))["deltas"]["published"]
        assert after - before <= 2, "ten writes in a row are one burst"


async def test_a_note_that_is_renamed_is_always_found_and_keeps_its_vectors(
    data: Path, config: Path, notes: Path
) -> None:
    with FakeEndpoint() as endpoint:
        async with running(data, config, embedding_by(endpoint) + EVENTS) as (_, client):
            await add(client, notes)
            await watched(client)
            await embedded(client, 8)
            await until_found(client, "gecko", ["first-6.md"])
            asked = [text for texts in endpoint.texts for text in texts if "gecko" in text]
            (notes / "first-6.md").rename(notes / "sub" / "moved.md")
            while (found := await paths(client, "gecko")) != ["sub/moved.md"]:
                assert found == ["first-6.md"], "in neither place, or in both, for a moment"
            status = await embedded(client, 8)
            assert status["vectors"]["have"] == 8
        again = [text for texts in endpoint.texts for text in texts if "gecko" in text]
        assert len(asked) == 1 and again == asked, "what was embedded is not embedded again under another name"


async def test_a_mass_disappearance_is_held_and_ends_with_it(serve: Serve, notes: Path, tmp_path: Path) -> None:
    async with serve(POLLED) as (_, client):
        await add(client, notes)
        await watched(client)
        await until_found(client, "beaver", ["first-1.md"])
        away = tmp_path / "away"
        away.mkdir()
        for note in notes.glob("*.md"):
            note.rename(away / note.name)
        status = await index_until(client, lambda s: s["held"])
        assert held(status) == {"notes": "emptied"} and status["files"] == 8
        (source,) = (await client.call("source.list"))["sources"]
        assert source["held"]["reason"] == "emptied"
        (notes / "sub" / "tickle.txt").touch()
        assert await paths(client, "beaver") == ["first-1.md"]
        for note in away.glob("*.md"):
            note.rename(notes / note.name)
        await index_until(client, lambda s: not s["held"])
        assert await paths(client, "beaver") == ["first-1.md"]


async def test_a_root_that_vanishes_and_comes_back_is_polled_meanwhile_and_watched_again(
    serve: Serve, notes: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.md").write_text("badger beside it")
    async with serve(POLLED) as (_, client):
        await add(client, notes, other)
        await watched(client, count=2)
        await until_found(client, "condor", ["first-2.md"])
        notes.rename(tmp_path / "unplugged")
        answer = await wait_until(
            client, lambda a: a["sources"][0]["watching"] == "polling" and a["sources"][0]["held"], method="source.list"
        )
        gone, there = answer["sources"]
        assert gone["held"]["reason"] == "vanished" and gone["reason"].startswith("vanished")
        assert there["watching"] == "events" and there["held"] is None
        (other / "b.md").write_text("wombat beside it")
        await until_found(client, "wombat", ["b.md"])
        assert await paths(client, "condor") == ["first-2.md"]
        (tmp_path / "unplugged").rename(notes)
        await watched(client, count=2)
        (notes / "first-2.md").write_text("lynx after its return")
        await until_found(client, "lynx", ["first-2.md"])


async def test_a_root_that_is_no_folder_any_more_does_not_touch_the_others(
    serve: Serve, notes: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.md").write_text("cobra")
    async with serve(POLLED) as (_, client):
        await add(client, notes, bad)
        await watched(client, count=2)
        await until_found(client, "cobra", ["a.md"])
        shutil.rmtree(bad)
        bad.write_text("a file in its place")
        await index_until(client, lambda s: held(s) == {"bad": "not_a_folder"})
        (notes / "first-0.md").write_text("ibis meanwhile")
        await until_found(client, "ibis", ["first-0.md"])
        assert await paths(client, "cobra") == ["a.md"]


@pytest.mark.skipif(not can_hang(), reason="needs root and FUSE")
async def test_a_mount_that_hangs_holds_its_root_and_nothing_else(serve: Serve, notes: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "a.md").write_text("cobra")
    async with serve(POLLED + "root_hang_ms = 1500\n") as (_, client):
        await add(client, notes, bad)
        await watched(client, count=2)
        await until_found(client, "cobra", ["a.md"])
        with hung_mount(bad):
            await index_until(client, lambda s: held(s) == {"bad": "does_not_answer"})
            epoch = (await client.call("system.status"))["actors"]["generation_builder"]["epoch"]
            (notes / "first-0.md").write_text("ibis meanwhile")
            await until_found(client, "ibis", ["first-0.md"])
            await client.call("event.append", {"session_id": "s", "actor": "user", "content": "newt"})
            await index_until(client, lambda s: s["behind"]["events"] == 0)
            build = (await client.call("index.rebuild"))["build"]
            await index_until(client, lambda s: s["builds"]["published"] >= build)
            assert await paths(client, "cobra") == ["a.md"]
            assert (await client.call("system.status"))["actors"]["generation_builder"]["epoch"] == epoch
        (bad / "a.md").write_text("viper after its return")
        await until_found(client, "viper", ["a.md"])
        await index_until(client, lambda s: not s["held"])


async def test_links_in_circles_are_watched_once(serve: Serve, notes: Path) -> None:
    (notes / "sub" / "up").symlink_to(notes)
    (notes / "sub" / "self").symlink_to("self")
    (notes / "here").symlink_to(".")
    (notes / "away").symlink_to("/")
    async with serve(EVENTS) as (_, client):
        await add(client, notes)
        await watched(client)
        await until_found(client, "hyena", ["first-7.md"])
        (notes / "sub" / "in.md").write_text("stoat in the circle")
        await until_found(client, "stoat", ["sub/in.md"])


async def test_without_watches_to_be_had_a_root_is_polled_and_the_reason_shown(serve: Serve, notes: Path) -> None:
    async with serve(f"{POLLED}watch_folders_max = 1\n") as (_, client):
        await add(client, notes)
        (source,) = await watched(client, "polling")
        assert "2 folders" in source["reason"] and "watch_folders_max" in source["reason"]
        await until_found(client, "alpaca", ["first-0.md"])
        (notes / "first-0.md").write_text("bison by polling")
        await until_found(client, "bison", ["first-0.md"])


async def test_what_changed_while_nobody_was_there_is_found_at_the_start(serve: Serve, notes: Path) -> None:
    async with serve(EVENTS) as (_, client):
        await add(client, notes)
        await until_found(client, "alpaca", ["first-0.md"])
    (notes / "first-0.md").write_text("crane between two lives")
    (notes / "first-1.md").unlink()
    async with serve(EVENTS) as (_, client):
        await until_found(client, "crane", ["first-0.md"])
        assert await paths(client, "beaver") == []


async def test_the_death_of_the_watcher_is_no_death_of_the_actor(serve: Serve, notes: Path) -> None:
    async with serve(POLLED) as (_, client):
        await add(client, notes)
        await watched(client)
        builder = (await client.call("system.status"))["actors"]["generation_builder"]
        (watcher,) = [each["pid"] for each in builder["workers"] if each["name"] == "source_watcher"]
        kill(watcher)
        answer = await wait_until(client, lambda a: a["sources"][0]["watching"] == "polling", method="source.list")
        assert "watches was lost" in answer["sources"][0]["reason"]
        (notes / "first-0.md").write_text("egret meanwhile")
        await until_found(client, "egret", ["first-0.md"])
        await watched(client)
        after = (await client.call("system.status"))["actors"]["generation_builder"]
        assert (after["epoch"], after["pid"]) == (builder["epoch"], builder["pid"])


async def test_large_notes_do_not_delay_small_ones(serve: Serve, notes: Path) -> None:
    """Beside a generation and before there is one: the small ones are found first, the large one waits, and says so."""
    large = "\n\n".join(f"part {number} {FILLER * 8}" for number in range(4000))
    assert len(large) > 2 * MIB
    async with serve(f"{EVENTS}delta_note_bytes_max = {MIB}\n") as (_, client):
        await client.call("debug.hold_build", {"stage": "documents"})
        await add(client, notes)
        await watched(client)
        await client.call("debug.hold_build", {"stage": None})
        await until_found(client, "alpaca", ["first-0.md"])
        await client.call("debug.hold_build", {"stage": "documents"})
        (notes / "0-large.md").write_text(large + "\n\nwalrus at its end")
        (notes / "small.md").write_text("penguin beside it")
        await until_found(client, "penguin", ["small.md"])
        await index_until(client, lambda s: s["files_waiting"] == 1)
        await index_until(client, lambda s: held(s) == {"0-large.md": "waits"})
        await index_until(client, lambda s: s["building"] is not None and s["building"]["stage"] == "documents")
        (notes / "small.md").write_text("puffin beside it, while the large one is read")
        await until_found(client, "puffin", ["small.md"])
        assert await paths(client, "walrus") == []
        await client.call("debug.hold_build", {"stage": None})
        await until_found(client, "walrus", ["0-large.md"])
        status = await index_until(client, lambda s: s["files_waiting"] == 0 and not s["held"])
        assert status["files"] == 10


async def test_a_first_generation_leaves_large_notes_to_the_second(serve: Serve, notes: Path) -> None:
    (notes / "0-large.md").write_text("walrus " + FILLER * 2000)
    assert (notes / "0-large.md").stat().st_size > 100_000
    async with serve(f"{EVENTS}delta_note_bytes_max = 100000\n") as (_, client):
        await add(client, notes)
        await until_found(client, "alpaca", ["first-0.md"])
        await until_found(client, "walrus", ["0-large.md"])
        status = await index_until(client, lambda s: s["files_waiting"] == 0)
        assert status["builds"]["published"] >= 2
