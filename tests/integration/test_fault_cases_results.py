"""Fault cases B, R and W: large files, wrong or empty results, files that are not plain files.

The ids are those of docs/FAULT-CASES.md. Each goes through a real daemon.
"""

from pathlib import Path
from typing import Any

import pytest

from chaos.client import Client
from chaos.daemon import wait_until
from tests.integration.conftest import CONFIG, Serve, embedding_by, indexed, running
from tests.integration.test_fault_cases_embedding import embedded
from tests.unit.actors.embedding.fake_endpoint import Answer, FakeEndpoint, data_of

MIB = 1024 * 1024
FILLER = "The lighthouse keeper noted wind, tide and passing ships in plain words, as every day before. "


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


async def searched(client: Client, query: str, **members: object) -> list[dict[str, Any]]:
    """Return the hits of a search in the generation, by words or better."""
    found = await client.call("memory.search", {"query": query, "limit": 10, **members})
    hits: list[dict[str, Any]] = found["hits"]
    return hits


async def with_notes(client: Client, notes: Path, files: int) -> dict[str, Any]:
    await client.call("source.add", {"path": str(notes)})
    status = await indexed(client, lambda s: s["files"] == files and s["rows"]["documents"] > 0)
    await wait_until(
        client, lambda s: s["searcher"]["loaded"] >= 1 and s["searcher"]["serving"] == status["generation"]
    )
    return status


# ---------------------------------------------------------------- B


async def test_b1_a_note_over_the_limit_is_named_and_a_huge_one_within_it_starves_nobody(
    data: Path, config: Path, endpoint: FakeEndpoint, notes: Path
) -> None:
    (notes / "0-over.md").write_text(FILLER * (3 * MIB // len(FILLER)))
    (notes / "0-huge.md").write_text("\n\n".join(f"part {number} {FILLER * 8}" for number in range(400)))
    for number in range(100):
        (notes / f"small-{number}.md").write_text(f"small note zebra{number}")
    text = embedding_by(endpoint, batch_max=8) + f"file_bytes_max = {MIB}\n"
    async with running(data, config, text) as (_, client):
        status = await with_notes(client, notes, 101)
        (skipped,) = [each for each in status["skipped"] if each["path"].endswith("0-over.md")]
        assert skipped["reason"] == "too_large" and str(MIB) in skipped["detail"].replace(",", "").replace("_", "")
        for number in (0, 57, 99):
            assert (await searched(client, f"zebra{number}"))[0]["path"].endswith(f"small-{number}.md")
        want = status["vectors"]["want"]
        assert want > 400
        await embedded(client, want)
    order = [text for texts in endpoint.texts for text in texts if "zebra" in text or "part " in text]
    last_small = max(place for place, text in enumerate(order) if "zebra" in text)
    assert last_small < 200, "the pieces of a huge note and the small notes take turns in being embedded"


# ---------------------------------------------------------------- R


async def test_r1_an_exact_identifier_is_among_the_first_whatever_the_vectors_say(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    """The one that holds the identifier is as far from the question as can be, everything else is near."""

    def contrary(texts: list[str]) -> Answer:
        return data_of(
            *(
                {"index": index, "embedding": [-1, 0.1, 0, 0] if "holds POL-358" in text else [1, 0.1, 0, 0]}
                for index, text in enumerate(texts)
            )
        )

    endpoint.script = contrary
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        contents = [
            *(f"a policy of the house, number {number}" for number in range(40)),
            "the file holds POL-358 and no more",
        ]
        events = [{"session_id": "s", "actor": "user", "content": content} for content in contents]
        await client.call("event.append_many", {"events": events})
        await embedded(client, 41)
        found = await client.call("memory.search", {"query": "POL-358 policy", "limit": 10})
        assert found["mode"] == "hybrid"
        assert any("holds POL-358" in hit["snippet"] for hit in found["hits"][:3])


async def test_r4_what_stands_anywhere_in_a_long_note_or_event_is_found(serve: Serve, notes: Path) -> None:
    async with serve() as (_, client):
        tenth = FILLER * (MIB // 10 // len(FILLER))
        long = "".join(f"{tenth}\n\nneedle{place}marks is buried here.\n\n" for place in range(10))
        (notes / "long.md").write_text(long)
        event = long.replace("needle", "pin")
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": event, "event_id": "long"})
        await with_notes(client, notes, 1)
        await indexed(client)
        for place in range(10):
            hit = (await searched(client, f"needle{place}marks"))[0]
            assert hit["path"].endswith("long.md") and f"needle{place}marks" in hit["snippet"]
            assert (await searched(client, f"pin{place}marks"))[0]["id"] == "long"


async def test_r7_questions_and_documents_are_embedded_each_in_its_own_way(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    prefixes = 'query_prefix = "Q: "\ndocument_prefix = "D: "\n'
    async with running(data, config, embedding_by(endpoint, more=prefixes)) as (_, client):
        await client.call("event.append", {"session_id": "s", "actor": "user", "content": "green tea"})
        await embedded(client, 1)
        await client.call("memory.search", {"query": "which tea"})
    sent = {text for texts in endpoint.texts for text in texts}
    assert {"D: green tea", "Q: which tea"} <= sent and all(text.startswith(("D: ", "Q: ")) for text in sent)


async def test_r7_wildcards_in_names_are_ordinary_characters(serve: Serve) -> None:
    """Before the generation and in it: the truth and the index have each a compiler of filters."""
    names = ["a_b", "a%", "aXb", "a", "%", "_", "a\\_b", "A_B"]
    async with serve() as (_, client):
        await client.call("debug.hold_build", {"stage": "begin"})
        for name in names:
            event = {"session_id": name, "actor": "user", "content": f"oolong in {name}", "tags": [name]}
            await client.call("event.append", event)

        async def check() -> None:
            for name in names:
                for filters in ({"session_ids": [name]}, {"tags": [name]}):
                    hits = await searched(client, "oolong", filters=filters)
                    assert [hit["session_id"] for hit in hits] == [name], filters

        await check()
        await client.call("debug.hold_build", {"stage": None})
        status = await indexed(client, lambda s: s["rows"]["events"] == len(names))
        await wait_until(
            client, lambda s: s["searcher"]["loaded"] >= 1 and s["searcher"]["serving"] == status["generation"]
        )
        await check()


@pytest.mark.parametrize("provider", ["none", "local-use"])
async def test_r8_a_question_about_something_else_is_answered_with_little_confidence(
    data: Path, config: Path, provider: str
) -> None:
    text = CONFIG.replace('provider = "none"', f'provider = "{provider}"') + "vectors_publish_ms = 200\n"
    contents = [
        "We water the tomatoes every second morning.",
        "The bicycle needs a new chain before the trip to the coast.",
        "Anna prefers oolong tea without milk.",
        "The rent is due on the third of each month.",
        "安娜每天早上喝乌龙茶。",
    ]
    async with running(data, config, text) as (_, client):
        events = [{"session_id": "s", "actor": "user", "content": content} for content in contents]
        await client.call("event.append_many", {"events": events})
        status = await indexed(client, lambda s: s["vectors"]["have"] == s["vectors"]["want"])
        await wait_until(client, lambda s: s["searcher"]["serving"] == status["generation"])
        await wait_until(client, lambda s: s["searcher"]["loaded"] >= 1)
        for question in ("lattice quantum chromodynamics", "PostgreSQL replication slots", "量子色动力学的晶格计算"):
            found = await client.call("memory.search", {"query": question})
            assert found["hits"] == [] or found["low_confidence"], question
        found = await client.call("memory.search", {"query": "which tea does Anna drink"})
        assert "oolong" in found["hits"][0]["snippet"] and not found["low_confidence"]


# ---------------------------------------------------------------- W


async def test_w4_what_a_link_leads_to_is_indexed_or_named_with_the_reason(serve: Serve, notes: Path) -> None:
    outside = notes.parent / "outside"
    outside.mkdir()
    (outside / "far.md").write_text("zebra outside of the root")
    (notes / "real").mkdir()
    (notes / "real" / "near.md").write_text("zebra inside of the root")
    (notes / ".vault").mkdir()
    (notes / ".vault" / "linked.md").write_text("zebra behind a link")
    (notes / "inside").symlink_to(".vault")
    (notes / "away").symlink_to(outside)
    (notes / "gone.md").symlink_to("nowhere.md")
    async with serve() as (_, client):
        status = await with_notes(client, notes, 2)
        told = {Path(each["path"]).name: each["reason"] for each in status["skipped"]}
        assert told["away"] == "symlink_outside" and told["gone.md"] == "symlink_dangling"
        found = {hit["path"].partition("/")[2] for hit in await searched(client, "zebra")}
        assert found == {"real/near.md", "inside/linked.md"}
