"""Who waits for a build is told how far it is: seldom, ever further, never after its end, and never at others' cost."""

import json
from collections.abc import Callable

import msgspec
import trio
import trio.testing

from actors.actor import Board
from actors.mailbox import deadline_after
from actors.messages.index import BuildEnd, Progress
from actors.notices import BuilderNotice
from supervisor.config import ProtocolLimits
from supervisor.following import NOTE_EVERY_S, Notes, describe, end_of, follow, outcome
from supervisor.outbox import Outbox

BUILD = 7


def at(percent: float, *, build: int = BUILD) -> BuilderNotice:
    return BuilderNotice(building=Progress(stage="write events", done=5, total=10, build=build, percent=percent))


class Client:
    """Takes notes, or not."""

    def __init__(self) -> None:
        self.taken: list[float] = []
        self.reads = True

    def notify(self, line: bytes) -> bool:
        if self.reads:
            params = json.loads(line)["params"]
            assert params["progressToken"] == "t" and params["total"] == 100
            self.taken.append(params["progress"])
        return self.reads


def test_notes_are_seldom_and_rise() -> None:
    client = Client()
    notes = Notes("t", BUILD, client.notify)
    for now, percent in ((0.0, 1), (0.1, 5), (0.2, 6), (0.3, 6), (0.6, 6), (0.9, 5), (1.2, 8), (1.3, 9)):
        notes.tell(at(percent), now)
    assert client.taken == [1, 6, 8]


def test_a_client_that_does_not_read_misses_notes_and_gets_the_next_ones() -> None:
    client = Client()
    notes = Notes("t", BUILD, client.notify)
    notes.tell(at(1), 0)
    client.reads = False
    notes.tell(at(2), 1)
    client.reads = True
    notes.tell(at(3), 1.01)
    assert client.taken == [1, 3]


def test_before_its_build_begins_it_is_told_once_that_it_waits() -> None:
    client = Client()
    notes = Notes("t", BUILD, client.notify)
    for now in (0, 1, 2):
        notes.tell(at(50, build=BUILD - 1), now)
    notes.tell(at(3), 3)
    assert client.taken == [0, 3]


def test_a_line_that_may_be_lost_is_queued_in_an_empty_outbox_only() -> None:
    outbox = Outbox(ProtocolLimits())
    assert outbox.offer(b"a\n")
    assert not outbox.offer(b"b\n")
    outbox.close()
    assert not outbox.offer(b"c\n")


async def test_it_ends_with_its_build_and_not_with_another() -> None:
    board, client = Board(at(1)), Client()
    ends: list[BuildEnd | None] = []

    async def wait() -> None:
        notes = Notes("t", BUILD, client.notify)
        ends.append(await follow(board, BUILD, deadline_ns=deadline_after(3600), notes=notes))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        other = BuildEnd(build=BUILD - 1, state="failed")
        board.post(msgspec.structs.replace(at(2), builds_ended=(other,)))
        await trio.testing.wait_all_tasks_blocked()
        assert not ends
        mine = BuildEnd(build=BUILD, state="published", generation=3)
        board.post(msgspec.structs.replace(at(99), builds_ended=(other, mine)))
        await trio.testing.wait_all_tasks_blocked()
        told = list(client.taken)
        board.post(msgspec.structs.replace(at(100), builds_ended=(other, mine)))
    assert ends == [mine] and client.taken == told
    assert NOTE_EVERY_S >= 0.25


async def test_at_the_deadline_it_is_told_where_the_build_is() -> None:
    board = Board(at(1))
    assert await follow(board, BUILD, deadline_ns=deadline_after(0.05)) is None
    assert outcome(None, board.notice, BUILD)["state"] == "running"
    assert outcome(None, board.notice, BUILD + 1)["state"] == "queued"
    end = BuildEnd(build=BUILD, state="cancelled", error="cancelled by command")
    assert outcome(end, board.notice, BUILD) == {
        "state": "cancelled",
        "generation": None,
        "error": "cancelled by command",
    }


def test_the_line_for_people() -> None:
    lines: dict[str, Callable[[], Progress]] = {
        "seal": lambda: Progress(stage="seal"),
        "events: 1,000 of 2,000, 500 rows/s, 12 s left": lambda: Progress(
            stage="events", done=1000, total=2000, rows_per_s=500.2, eta_s=12
        ),
    }
    for line, progress in lines.items():
        assert describe(progress()) == line
    assert end_of(BuilderNotice(), 1) is None
