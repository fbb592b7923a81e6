"""Under overload a mailbox that sheds by remaining time does so among the mail of the greediest client only."""

from collections.abc import Awaitable, Callable

import trio
import trio.testing

from actors.errors import Overloaded
from actors.mailbox import Mailbox, deadline_after
from actors.messages.base import Row
from actors.messages.transcript_appender import GetEvent


async def test_a_modest_client_that_has_waited_keeps_its_place_whatever_deadlines_the_others_have() -> None:
    mailbox = Mailbox("searcher", count_max=4, bytes_max=100_000, shed="least_budget", refuses_early=False)
    refused: list[str] = []

    def asking(name: str, client: int, seconds: float) -> Callable[[], Awaitable[None]]:
        async def ask() -> None:
            try:
                await mailbox.ask(GetEvent(event_id=name), Row, deadline_ns=deadline_after(seconds), client=client)
            except Overloaded:
                refused.append(name)

        return ask

    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking("polite", 2, 5))  # the least time of all
        await trio.testing.wait_all_tasks_blocked()
        for number in range(6):
            nursery.start_soon(asking(f"flood {number}", 1, 60 + number))
            await trio.testing.wait_all_tasks_blocked()
        assert refused == ["flood 0", "flood 1", "flood 2"]  # of the flood, what has least time left
        nursery.start_soon(asking("flood late", 1, 30))
        await trio.testing.wait_all_tasks_blocked()
        assert refused[-1] == "flood late"
        nursery.start_soon(asking("other", 3, 1))  # a newcomer who has nothing here yet
        await trio.testing.wait_all_tasks_blocked()
        assert refused[-1] == "flood 3"
        nursery.cancel_scope.cancel()
