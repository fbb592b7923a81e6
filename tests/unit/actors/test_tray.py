"""Trays: order within a client, turns between clients. Compared with a plain model."""

from collections import deque
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from actors.tray import Tray


class Mail(NamedTuple):
    """One item: whose it is, and which."""

    client: int
    number: int


def filled(*clients: int) -> Tray[Mail]:
    tray: Tray[Mail] = Tray()
    for number, client in enumerate(clients):
        tray.put(Mail(client, number))
    return tray


def emptied(tray: Tray[Mail]) -> list[int]:
    taken = []
    while (mail := tray.pop()) is not None:
        taken.append(mail.client)
    return taken


def test_clients_take_turns() -> None:
    assert emptied(filled(1, 1, 1, 1, 2, 2, 3)) == [1, 2, 3, 1, 2, 1, 1]


def test_a_newcomer_waits_for_one_round_at_most() -> None:
    tray = filled(*[1] * 30, *[2] * 30)
    assert tray.pop() is not None
    tray.put(Mail(3, 99))
    assert emptied(tray).index(3) <= 2


def test_what_comes_back_is_the_next() -> None:
    tray = filled(1, 2)
    first = tray.pop()
    assert first is not None
    tray.put_back(first)
    assert tray.peek() == first and tray.pop() == first


def test_the_greediest_is_named_only_when_it_has_clearly_more() -> None:
    tray = filled(1, 1, 1, 2, 2)
    assert tray.last_of_greedier(3) == Mail(1, 2)
    assert tray.last_of_greedier(2) is None
    assert filled(1, 1).last_of_greedier(1) is None
    assert Tray[Mail]().last_of_greedier(1) is None


@given(st.lists(st.tuples(st.sampled_from(("put", "pop", "back", "remove")), st.integers(1, 3)), max_size=60))
def test_nothing_is_lost_and_the_order_of_a_client_is_kept(steps: list[tuple[str, int]]) -> None:
    tray: Tray[Mail] = Tray()
    waiting: dict[int, deque[Mail]] = {client: deque() for client in (1, 2, 3)}
    taken: list[Mail] = []
    for number, (step, client) in enumerate(steps):
        if step == "put":
            tray.put(Mail(client, number))
            waiting[client].append(Mail(client, number))
        elif step == "pop":
            following = tray.peek()
            mail = tray.pop()
            assert mail == following
            if mail is None:
                assert not any(waiting.values())
            else:
                assert mail == waiting[mail.client].popleft()
                taken.append(mail)
        elif step == "back" and taken:
            mail = taken.pop()
            tray.put_back(mail)
            waiting[mail.client].appendleft(mail)
        elif step == "remove":
            found = tray.remove(Mail(client, number)) if not waiting[client] else tray.remove(waiting[client].pop())
            assert found or not waiting[client]
        assert len(tray) == sum(map(len, waiting.values())) == len(list(tray))
