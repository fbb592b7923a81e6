"""The background embedding lets searches go first, for a bounded time, and takes on little while people search."""

import time

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.actor import Board
from actors.generation_builder.giving_way import GivingWay
from actors.messages.index import EmbeddingIdentity
from actors.notices import SearchActivity
from actors.settings import EmbeddingSettings, GenerationBuilderSettings
from tests.unit.actors.generation_builder.builder_kit import IDENTITY

LOCAL = msgspec.structs.replace(IDENTITY, provider="local-e5")
REMOTE = msgspec.structs.replace(IDENTITY, provider="openai-compatible")
LIMITS = GenerationBuilderSettings(embed_quiet_ms=500, embed_yield_ms_max=2000, embed_texts_per_call=8)


def giving_way(activity: SearchActivity) -> tuple[GivingWay, Board[SearchActivity]]:
    board = Board(activity)
    return GivingWay(board, LIMITS, EmbeddingSettings(batch_max=64)), board


def busy() -> SearchActivity:
    return SearchActivity(in_hand=1, last_ns=time.monotonic_ns())


async def waited_s(way: GivingWay, identity: EmbeddingIdentity = LOCAL) -> float:
    began = trio.current_time()
    await way.wait(identity)
    return trio.current_time() - began


async def test_nobody_is_waited_for_when_nobody_searches(autojump_clock: MockClock) -> None:
    assert await waited_s(giving_way(SearchActivity())[0]) == 0
    long_ago = SearchActivity(last_ns=time.monotonic_ns() - 10**9)
    assert await waited_s(giving_way(long_ago)[0]) == 0


async def test_steady_searching_puts_a_call_off_and_never_for_ever(autojump_clock: MockClock) -> None:
    assert await waited_s(giving_way(busy())[0]) == pytest.approx(2.0)


async def test_a_call_begins_when_the_searches_have_ended_for_a_moment(autojump_clock: MockClock) -> None:
    way, board = giving_way(busy())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(way.wait, LOCAL)
        await wait_all_tasks_blocked()
        board.post(SearchActivity(in_hand=0, last_ns=time.monotonic_ns() - 10**9))
        await wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_a_model_elsewhere_takes_no_cpu_here(autojump_clock: MockClock) -> None:
    way, _ = giving_way(busy())
    assert await waited_s(way, REMOTE) == 0
    assert way.texts_at_once(REMOTE) == 64


@pytest.mark.parametrize(
    ("text_s", "quiet", "searching"), [(None, 8, 1), (1.8, 1, 1), (0.4, 2, 1), (0.05, 8, 2), (0.001, 8, 8)]
)
def test_a_call_is_as_large_as_about_a_second_of_work(text_s: float | None, quiet: int, searching: int) -> None:
    for activity, texts in ((SearchActivity(), quiet), (busy(), searching)):
        way, _ = giving_way(activity)
        if text_s is not None:
            way.measured(4, 4 * text_s)
        assert way.texts_at_once(LOCAL) == texts


def test_a_call_that_gave_nothing_says_nothing_about_the_speed() -> None:
    way, _ = giving_way(SearchActivity())
    way.measured(0, 100)
    assert way.texts_at_once(LOCAL) == 8
