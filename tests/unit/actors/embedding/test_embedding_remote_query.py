"""Questions under trio, through a real HTTP server on the loopback interface."""

import array
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from actors.embedding.failures import InputRefused, Late, Limited, Unreachable
from actors.embedding.remote_query import RemoteQueryEmbedder
from actors.errors import EmbeddingUnavailable
from tests.unit.actors.embedding.fake_endpoint import Answer, FakeEndpoint, data_of, refused, unit_of, vectors

DOWN = Answer(503, {})
Scenario = Callable[[RemoteQueryEmbedder], Awaitable[None]]


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def play(endpoint: FakeEndpoint, scenario: Scenario, clock: Clock | None = None) -> None:
    async def run() -> None:
        embedder = RemoteQueryEmbedder(endpoint.settings(prefix="| "), clock=clock or Clock())
        try:
            await scenario(embedder)
        finally:
            await embedder.close()

    trio.run(run)


async def fail(embedder: RemoteQueryEmbedder, kind: type[EmbeddingUnavailable], times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(EmbeddingUnavailable) as caught:
            await embedder.embed("why", 30)
        assert type(caught.value) is kind


def test_a_question_becomes_unit_float32_bytes() -> None:
    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        blob = await embedder.embed("why\0 \ud800", 30)
        assert array.array("f", blob).tolist() == pytest.approx(unit_of("query | why \ufffd"), rel=1e-6)

    with FakeEndpoint() as endpoint:
        play(endpoint, scenario)
        assert endpoint.texts == [["query | why \ufffd"]]


def test_questions_run_side_by_side() -> None:
    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(12):
                nursery.start_soon(embedder.embed, str(number), 30)

    with FakeEndpoint() as endpoint:
        play(endpoint, scenario)
        assert len(endpoint.requests) == 12


@pytest.mark.parametrize("drip", [False, True])
def test_the_deadline_is_kept(drip: bool) -> None:
    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        with pytest.raises(Late):
            await embedder.embed("why", 0.1)
        with pytest.raises(Late):
            await embedder.embed("why", 0)

    with FakeEndpoint(lambda texts: Answer(200, vectors(texts).body, hang=not drip, drip=drip)) as endpoint:
        play(endpoint, scenario)


def test_three_times_unavailable_stops_the_asking_and_a_probe_starts_it_again() -> None:
    clock = Clock()

    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        endpoint.script = lambda _: DOWN
        await fail(embedder, Unreachable, times=3)
        with pytest.raises(EmbeddingUnavailable, match="not asked") as caught:
            await embedder.embed("why", 30)
        assert caught.value.retry_after_ms == 1000
        assert "503" not in caught.value.message, "an old error is not told again"
        assert len(endpoint.requests) == 3
        clock.now += 1.0
        endpoint.script = vectors
        await embedder.embed("why", 30)
        await embedder.embed("why", 30)
        assert len(endpoint.requests) == 5

    with FakeEndpoint() as endpoint:
        play(endpoint, scenario, clock)


def test_a_slow_answer_says_nothing_about_whether_it_is_there() -> None:
    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        endpoint.script = lambda _: DOWN
        await fail(embedder, Unreachable, times=2)
        endpoint.script = lambda _: Answer(200, {}, hang=True)
        with pytest.raises(Late):
            await embedder.embed("why", 0.05)
        endpoint.script = lambda _: DOWN
        await fail(embedder, Unreachable)
        with pytest.raises(EmbeddingUnavailable, match="not asked"):
            await embedder.embed("why", 30)

    with FakeEndpoint() as endpoint:
        play(endpoint, scenario)


def test_only_one_question_probes() -> None:
    clock = Clock()

    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        endpoint.script = lambda _: DOWN
        await fail(embedder, Unreachable, times=3)
        clock.now += 1.0
        endpoint.script = lambda _: Answer(200, {}, hang=True)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(embedder.embed, "the probe", 30)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(EmbeddingUnavailable, match="not asked"):
                await embedder.embed("another", 30)
            nursery.cancel_scope.cancel()
        # The probe was cancelled and said nothing; the next question takes its place.
        endpoint.script = vectors
        await embedder.embed("why", 30)

    with FakeEndpoint() as endpoint:
        play(endpoint, scenario, clock)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Answer(429, {}), Limited),
        (refused(), InputRefused),
        (Answer(401, {}), EmbeddingUnavailable),
        (data_of({"embedding": [1.0, 2.0]}), EmbeddingUnavailable),
    ],
)
def test_an_endpoint_that_answers_is_asked_again(answer: Answer, kind: type[EmbeddingUnavailable]) -> None:
    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        await fail(embedder, kind, times=5)

    with FakeEndpoint(lambda _: answer) as endpoint:
        play(endpoint, scenario)
        assert len(endpoint.requests) == 5


def test_a_slow_endpoint_is_asked_again() -> None:
    async def scenario(embedder: RemoteQueryEmbedder) -> None:
        for _ in range(5):
            with pytest.raises(Late):
                await embedder.embed("why", 0.05)
        endpoint.script = vectors
        await embedder.embed("why", 30)

    with FakeEndpoint(lambda _: Answer(200, {}, hang=True)) as endpoint:
        play(endpoint, scenario)
