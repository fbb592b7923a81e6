"""Fault cases E: a provider in trouble costs vectors and time, never an item, an answer or the meaning of a vector.

The ids are those of docs/FAULT-CASES.md. The provider is a real HTTP server, the daemon and its workers are real.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.embedding.space import CANARY
from chaos.client import Client, RpcError
from chaos.daemon import kill, wait_until
from tests.integration.conftest import CONFIG, embedding_by, indexed, running
from tests.unit.actors.embedding.fake_endpoint import (
    Answer,
    FakeEndpoint,
    data_of,
    named,
    other_vectors,
    refused,
    vector_of,
    vectors,
)

QUERY = {"query": "oolong tea 乌龙茶", "limit": 5}


def note(number: int) -> str:
    return f"note {number} about oolong tea 乌龙茶 and fsync"


async def fill(client: Client, count: int, *, first: int = 0) -> None:
    events = [
        {"session_id": "s", "actor": "user", "content": note(number), "event_id": f"event-{number}"}
        for number in range(first, first + count)
    ]
    await client.call("event.append_many", {"events": events}, deadline_s=30)


async def embedded(client: Client, count: int, *, model: str | None = None) -> dict[str, Any]:
    """Wait until so many rows have their vectors (of a certain model), and a worker has them open."""
    status = await indexed(
        client,
        lambda s: s["vectors"] == {"have": count, "want": count} and model in (None, s["identity"]["model"]),
    )
    await wait_until(
        client, lambda s: s["searcher"]["loaded"] >= 1 and s["searcher"]["serving"] >= status["generation"]
    )
    return status


async def search(client: Client, query: str = "oolong tea 乌龙茶") -> dict[str, Any]:
    found: dict[str, Any] = await client.call("memory.search", {"query": query, "limit": 5})
    assert found["hits"]
    return found


def codes(found: dict[str, Any]) -> list[str]:
    return [each["code"] for each in found["degraded"]]


def documents(endpoint: FakeEndpoint) -> Counter[str]:
    """Count the notes that the endpoint was sent, whole batches that it refused included."""
    return Counter(text for texts in endpoint.texts for text in texts if text.startswith("note "))


# ---------------------------------------------------------------- E1, E2: whose vectors


async def test_e1_a_provider_that_is_down_means_keywords_and_never_another_model(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await fill(client, 6)
        identity = (await embedded(client, 6))["identity"]
        endpoint.script = lambda texts: Answer(503, {})
        found = await search(client)
        assert found["mode"] == "keyword" and codes(found) == ["embedder_unavailable"]
        await fill(client, 3, first=6)
        status = await indexed(client, lambda s: s["embedding"]["state"] == "waiting")
        assert status["vectors"] == {"have": 6, "want": 9} and status["identity"] == identity
        assert status["embedding"]["pending"] == 3 and status["embedding"]["retry_at"] > time.time() * 1e6 - 6e7
        assert "503" in status["embedding"]["error"]
        assert (await search(client, "note 7"))["hits"][0]["snippet"] == note(7)
        endpoint.script = vectors
        status = await embedded(client, 9)
        assert status["identity"] == identity and status["embedding"]["error"] is None


@pytest.mark.parametrize("model", ["other", "fake"], ids=["it says so", "it does not say so"])
async def test_e2_another_model_of_the_same_size_behind_the_same_name_is_found_out(
    data: Path, config: Path, endpoint: FakeEndpoint, model: str
) -> None:
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await fill(client, 6)
        await embedded(client, 6)
        endpoint.script = lambda texts: other_vectors(texts, model)
        await fill(client, 2, first=6)
        status = await indexed(client, lambda s: s["embedding"]["foreign"])
        assert status["vectors"] == {"have": 6, "want": 8} and status["embedding"]["state"] == "waiting"
        found = await search(client, "note 3")
        assert found["mode"] == "keyword" and codes(found) == ["identity_mismatch"]
        endpoint.script = vectors
        await embedded(client, 8)
        found = await search(client)
        assert found["mode"] == "hybrid" and found["degraded"] == []


async def test_e2_a_question_is_not_compared_once_the_endpoint_names_another_model(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    """Nothing is being embedded, so nobody but the question can notice."""
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await fill(client, 6)
        await embedded(client, 6)
        await wait_until(client, lambda s: s["embedding"]["state"] == "idle", method="index.status")
        endpoint.script = other_vectors
        found = await search(client)
        assert found["mode"] == "keyword" and codes(found) == ["identity_mismatch"]
        endpoint.script = lambda texts: named(texts, "fake-replica-2")
        assert (await search(client))["mode"] == "hybrid", "a name alone proves nothing"


# ---------------------------------------------------------------- E4: what a provider accepts


@pytest.mark.parametrize("cap", [10, 16, 20, 64])
async def test_e4_a_provider_that_limits_its_inputs_gets_as_many_as_it_takes(
    data: Path, config: Path, endpoint: FakeEndpoint, cap: int
) -> None:
    endpoint.script = lambda texts: vectors(texts) if len(texts) <= cap else refused("too_many_inputs")
    async with running(data, config, embedding_by(endpoint, batch_max=64)) as (_, client):
        await fill(client, 150)
        status = await embedded(client, 150)
        assert status["embedding"]["failed"] == 0 and status["embedding"]["error"] is None
    sizes = Counter(len(texts) for texts in endpoint.texts if CANARY not in texts)
    assert sum(count for size, count in sizes.items() if size > cap) <= 3, "the size is found once"
    assert sizes[{10: 8, 16: 16, 20: 16, 64: 64}[cap]] >= 2


async def test_e4_one_bad_item_is_isolated_and_named_and_holds_up_nobody(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    endpoint.script = lambda texts: refused() if any("note 21 " in text for text in texts) else vectors(texts)
    async with running(data, config, embedding_by(endpoint, batch_max=16)) as (_, client):
        await fill(client, 40)
        status = await indexed(
            client,
            lambda s: s["vectors"] == {"have": 39, "want": 40} and s["embedding"]["state"] == "idle",
        )
        told = status["embedding"]
        assert (told["failed"], told["pending"]) == (1, 0), "counted once, however often it was listed"
        assert [each["path"] for each in told["refusals"]] == ["events/event-21"]
        assert "400" in told["refused"]["detail"]
        assert (await search(client, "note 21"))["hits"][0]["id"] == "event-21"


# Nothing of such an answer is used, be it for many texts or for one.
WRONG: dict[str, Callable[[list[str]], Answer]] = {
    "dimensions": lambda texts: data_of(*({"index": i, "embedding": [1, 2, 3]} for i in range(len(texts)))),
    "not a number": lambda texts: data_of(*({"index": i, "embedding": [float("nan")] * 4} for i in range(len(texts)))),
    "zero": lambda texts: data_of(*({"index": i, "embedding": [0, 0, 0, 0]} for i in range(len(texts)))),
    "one more": lambda texts: data_of(*({"embedding": vector_of(text)} for text in [*texts, "more"])),
}


@pytest.mark.parametrize("wrong", sorted(WRONG))
async def test_e4_wrong_answers_are_used_for_nothing_and_lose_nothing(
    data: Path, config: Path, endpoint: FakeEndpoint, wrong: str
) -> None:
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await fill(client, 4)
        await embedded(client, 4)
        endpoint.script = WRONG[wrong]
        await fill(client, 8, first=4)
        status = await indexed(client, lambda s: s["embedding"]["state"] == "waiting")
        assert status["vectors"] == {"have": 4, "want": 12} and "wrong answer" in status["embedding"]["error"]
        found = await search(client, "note 9")
        assert found["hits"][0]["snippet"] == note(9) and codes(found) == ["embedder_unavailable"]
        endpoint.script = lambda texts: data_of(
            *({"index": i, "embedding": vector_of(texts[i])} for i in reversed(range(len(texts))))
        )
        await embedded(client, 12)
        # In another order than asked for, and each vector with its text: a question that is a note finds that note.
        for number in (0, 5, 11):
            message = {"query": note(number), "limit": 1, "mode": "vector"}
            assert (await client.call("memory.search", message))["hits"][0]["id"] == f"event-{number}"


# ---------------------------------------------------------------- E5, E6: patience and progress


class Limiter:
    """Lets so many requests through, then says 429; notes when it was asked."""

    def __init__(self, every: int, headers: dict[str, str]) -> None:
        self._every = every
        self._headers = headers
        self._lock = threading.Lock()
        self._count = 0
        self.limited: list[float] = []
        self.next: list[float] = []  # when the request after a refusal came

    def __call__(self, texts: list[str]) -> Answer:
        with self._lock:
            self._count += 1
            if len(self.next) < len(self.limited):
                self.next.append(time.monotonic())
            if self._count % self._every == 0:
                self.limited.append(time.monotonic())
                return Answer(429, {"error": {"code": "rate_limit_exceeded"}}, self._headers)
        return vectors(texts)


@pytest.mark.parametrize(("headers", "told_s"), [({"Retry-After": "1"}, 1.0), ({"retry-after-ms": "300"}, 0.3)])
async def test_e5_a_rate_limit_is_obeyed_and_everything_is_indexed_in_the_end(
    data: Path, config: Path, endpoint: FakeEndpoint, headers: dict[str, str], told_s: float
) -> None:
    limiter = endpoint.script = Limiter(4, headers)
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await fill(client, 40)
        await wait_until(client, lambda s: s["embedding"]["state"] == "waiting", method="index.status")
        assert (await search(client, "note 3"))["hits"], "nobody who searches waits with it"
        status = await embedded(client, 40)
        assert status["embedding"]["failed"] == 0
    waited = [after - limited for limited, after in zip(limiter.limited, limiter.next, strict=False)]
    # The question above may have come in between, so one of them may be short.
    assert len(waited) >= 3 and sorted(waited)[1] >= told_s * 0.95
    assert endpoint.busy_max <= 2, "one request with documents at a time, and the question's"
    again = sum(count - 1 for count in documents(endpoint).values())
    assert again <= 4 * len(limiter.limited) + 4, "what had arrived is kept: only what was refused is asked for again"


async def test_e5_a_rate_limit_that_does_not_say_for_how_long_is_given_time(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    limiter = endpoint.script = Limiter(3, {})
    async with running(data, config, embedding_by(endpoint, batch_max=8)) as (_, client):
        await fill(client, 12)
        await embedded(client, 12)
    assert limiter.limited and limiter.next[0] - limiter.limited[0] >= 4.5


@pytest.mark.parametrize("victim", ["embedder", "builder", "daemon"])
async def test_e6_killed_at_half_of_the_list_it_embeds_nothing_twice(
    data: Path, config: Path, endpoint: FakeEndpoint, victim: str
) -> None:
    count, batch = 200, 4
    half = threading.Event()

    def slowly(texts: list[str]) -> Answer:
        if len(documents(endpoint)) >= count // 2:
            half.set()
        time.sleep(0.02)
        return vectors(texts)

    endpoint.script = slowly
    text = embedding_by(endpoint, batch_max=batch).replace("vectors_publish_ms = 200", "vectors_publish_ms = 600000")
    async with running(data, config, text) as (daemon, client):
        await fill(client, count)
        await trio.to_thread.run_sync(half.wait, 60, abandon_on_cancel=True)
        workers = (await client.call("system.status"))["actors"]["generation_builder"]["workers"]
        pids = {each["name"]: each["pid"] for each in workers}
        if victim == "daemon":
            daemon.kill()
        else:
            kill(pids["embedder" if victim == "embedder" else "generation_builder"])
            await embedded(client, count)
    if victim == "daemon":
        async with running(data, config, text) as (_, client):
            await embedded(client, count)
    sent = documents(endpoint)
    assert len(sent) == count
    again = sum(number - 1 for number in sent.values())
    print(f"killed: {victim}; embedded twice: {again} of {count}")
    assert again <= count // 100 + batch, f"{again} of {count} were embedded again"


async def test_the_background_embedding_lets_searches_go_first_and_tells_its_speed(data: Path, config: Path) -> None:
    """With a model of this machine, nothing is embedded while people search; it goes on when they stop."""
    limits = "embed_quiet_ms = 3000\nembed_yield_ms_max = 600000\nvectors_publish_ms = 200\n"
    local = CONFIG.replace('provider = "none"', 'provider = "local-use"') + limits
    async with running(data, config, local) as (_, client):
        stop = trio.Event()

        async def searching() -> None:
            while not stop.is_set():
                await client.call("memory.search", QUERY)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(searching)
            await wait_until(client, lambda s: s["searcher"]["searches"] >= 1)
            await fill(client, 12)
            status = await indexed(client, lambda s: s["embedding"]["pending"] == 12)
            searches = (await client.call("system.status"))["searcher"]["searches"]
            await wait_until(client, lambda s: s["searcher"]["searches"] >= searches + 20)
            status = await client.call("index.status")
            assert status["embedding"]["embedded"] == 0 and status["vectors"]["have"] == 0
            stop.set()
        status = await indexed(client, lambda s: s["vectors"] == {"have": 12, "want": 12})
        assert status["embedding"]["texts_per_s"] > 0 and status["embedding"]["pending"] == 0


# ---------------------------------------------------------------- E8: another model


async def test_e8_a_change_of_the_model_is_built_beside_the_old_one_and_rolled_back_in_one_command(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    async with running(data, config, embedding_by(endpoint, model="old")) as (_, client):
        await fill(client, 30)
        before = await embedded(client, 30)
    released = threading.Event()
    endpoint.scripts["new"] = lambda texts: other_vectors(texts, "new") if released.is_set() else Answer(503, {})
    text = embedding_by(endpoint, model="new", batch_max=8)
    async with running(data, config, text) as (_, client):
        status = await wait_until(
            client,
            lambda s: s["successor"] is not None and s["building"] is None and s["embedding"]["state"] == "waiting",
            method="index.status",
        )
        assert status["generation"] == before["generation"] and status["identity"]["model"] == "old"
        assert status["successor"]["identity"]["model"] == "new"
        assert status["successor"]["vectors"] == {"have": 0, "want": 30}
        await wait_until(client, lambda s: s["searcher"]["loaded"] >= 1)
        # The old model goes on answering, and what is new is indexed, all the while.
        await fill(client, 2, first=30)
        status = await indexed(client, lambda s: s["rows"]["events"] == 32)
        assert status["identity"]["model"] == "old" and status["vectors"] == {"have": 30, "want": 32}
        await wait_until(client, lambda s: s["searcher"]["serving"] >= status["generation"])
        for number in range(5):
            found = await search(client, f"note {number} oolong")
            assert found["mode"] == "hybrid" and found["degraded"] == []
        released.set()
        flipped = await embedded(client, 32, model="new")
        assert flipped["identity"]["model"] == "new" and flipped["successor"] is None
        assert flipped["rows"]["events"] == 32, "nothing is there twice"
        compared = flipped["comparison"]
        assert compared["earlier"] < compared["later"] <= flipped["generation"]
        assert compared["earlier"] in flipped["previous"], "the way back to the old model stays open"
        assert compared["queries"] == compared["with_vectors"] == 5
        assert 0 <= compared["overlap"] <= 1 and compared["earlier_ms"] > 0 and compared["later_ms"] > 0
        found = await search(client)
        assert found["mode"] == "hybrid" and found["degraded"] == [] and found["generation"] == flipped["generation"]

        began = time.monotonic()
        rolled_back = await client.call("index.rollback", {"generation": compared["earlier"]})
        print(f"rollback: {(time.monotonic() - began) * 1000:.0f} ms; comparison: {compared}")
        assert rolled_back["generation"] == compared["earlier"]
        found = await search(client)
        assert found["generation"] == compared["earlier"] and found["mode"] == "hybrid" and found["degraded"] == []
        # It stays with the old model, also when the truth moves on, until a rebuild is asked for.
        await fill(client, 1, first=32)
        status = await indexed(client, lambda s: s["rows"]["events"] == 33)
        assert status["identity"]["model"] == "old" and status["successor"] is None
        await client.call("index.rebuild")
        status = await embedded(client, 33, model="new")
        assert status["identity"]["model"] == "new"
    new = [request["input"] for request in endpoint.requests if request["model"] == "new"]
    accepted = Counter(text for texts in new for text in texts if text.startswith("note "))
    assert {each for each in accepted if each.endswith("fsync")} >= {note(number) for number in range(33)}


async def test_e8_a_change_of_the_model_goes_on_where_it_was_after_a_restart(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    async with running(data, config, embedding_by(endpoint, model="old")) as (_, client):
        await fill(client, 10)
        await embedded(client, 10)
    released = threading.Event()
    endpoint.scripts["new"] = lambda texts: other_vectors(texts, "new") if released.is_set() else Answer(503, {})
    text = embedding_by(endpoint, model="new", batch_max=8)

    async def changing(client: Client) -> dict[str, Any]:
        status: dict[str, Any] = await wait_until(
            client,
            lambda s: s["successor"] is not None and s["building"] is None and s["embedding"]["state"] == "waiting",
            method="index.status",
        )
        return status

    async with running(data, config, text) as (_, client):
        before = await changing(client)
    async with running(data, config, text) as (_, client):
        status = await changing(client)
        assert status["successor"] == before["successor"] and status["generation"] == before["generation"]
        assert status["builds"]["started"] == 0, "nothing had to be made anew"
        await wait_until(client, lambda s: s["searcher"]["loaded"] >= 1)
        assert (await search(client))["mode"] == "hybrid"
        released.set()
        compared = (await embedded(client, 10, model="new"))["comparison"]
        assert compared["queries"] == 1
    async with running(data, config, text) as (_, client):
        status = await embedded(client, 10, model="new")
        assert status["comparison"] == compared and status["successor"] is None and not status["declined"]
        await client.call("index.rollback", {"generation": compared["earlier"]})
    async with running(data, config, text) as (_, client):
        status = await indexed(client, lambda s: s["identity"]["model"] == "old")
        assert status["generation"] == compared["earlier"] and status["declined"]
        await fill(client, 1, first=10)
        status = await indexed(client, lambda s: s["rows"]["events"] == 11)
        assert status["identity"]["model"] == "old" and status["successor"] is None
        assert status["builds"]["started"] == 0 and status["comparison"] == compared
        await client.call("index.rebuild")
        status = await embedded(client, 11, model="new")
        assert not status["declined"]


async def test_e8_a_damaged_generation_is_no_way_back_and_holds_up_nothing(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await fill(client, 5)
        first = (await embedded(client, 5))["generation"]
        await client.call("index.rebuild")
        status = await indexed(client, lambda s: s["generation"] > first and first in s["previous"])
        path = max((data / "generation_builder" / f"gen-{first:06d}").glob("events.lance/data/*"))
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        for _ in range(2):
            with pytest.raises(RpcError) as refusal:
                await client.call("index.rollback", {"generation": first})
            assert refusal.value.code == 1008, "and not that a build is under way"
        now = await indexed(client)
        assert now["generation"] == status["generation"] and not now["declined"]
        assert (await search(client))["mode"] == "hybrid"


async def test_e8_vectors_of_a_model_of_this_machine_serve_while_an_endpoint_takes_over(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    local = CONFIG.replace('provider = "none"', 'provider = "local-use"') + "vectors_publish_ms = 200\n"
    async with running(data, config, local) as (_, client):
        await fill(client, 5)
        await embedded(client, 5)
    endpoint.script = lambda texts: Answer(503, {})
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await wait_until(client, lambda s: s["successor"] is not None, method="index.status")
        await wait_until(client, lambda s: s["searcher"]["loaded"] == 2)
        found = await search(client)
        assert found["mode"] == "hybrid" and found["degraded"] == []
        endpoint.script = vectors
        status = await embedded(client, 5, model="fake")
        assert status["identity"]["provider"] == "openai-compatible"
        assert (await search(client))["mode"] == "hybrid"


async def test_e8_an_old_model_out_of_reach_is_relieved_at_once(
    data: Path, config: Path, endpoint: FakeEndpoint
) -> None:
    async with running(data, config, embedding_by(endpoint)) as (_, client):
        await fill(client, 5)
        await embedded(client, 5)
    local = CONFIG.replace('provider = "none"', 'provider = "local-use"') + "vectors_publish_ms = 200\n"
    async with running(data, config, local) as (_, client):
        status = await embedded(client, 5, model="use-multilingual-v3-q6")
        assert status["identity"]["provider"] == "local-use" and status["successor"] is None
        assert (await search(client))["mode"] == "hybrid"
