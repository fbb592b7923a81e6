"""Mailboxes: bounds, deadlines, and what becomes of mail when an incarnation dies."""

import time

import pytest
import trio

from actors.envelope import Envelope
from actors.errors import (
    ActorDied,
    ActorRestarting,
    ActorUnavailable,
    DeadlineExceeded,
    Overloaded,
    PoisonMessage,
    ShuttingDown,
)
from actors.mailbox import CONTROL_COUNT_MAX, CONTROL_TRAY, Mailbox, deadline_after
from actors.messages.base import Done, Message, Row, Statistics
from actors.messages.core_writer import CoreStatus, PutUnit
from actors.messages.generation_builder import RollbackIndex, TruthAdvanced
from actors.messages.transcript_appender import AppendEvents, EventDraft, GetEvent
from actors.service_times import SAMPLES_MIN


def far() -> int:
    return deadline_after(60)


def soon() -> int:
    """An eta of a restart that lies before every far deadline."""
    return time.monotonic_ns() + 1_000_000


def post(mailbox: Mailbox, event_id: str = "e") -> None:
    assert mailbox.tell(GetEvent(event_id=event_id), deadline_ns=far())


async def test_an_answer_comes_back_to_its_asker() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)

    async def serve() -> None:
        for _ in range(2):
            envelope = await mailbox.take()
            assert isinstance(envelope.message, GetEvent)
            mailbox.finish(envelope, Row(row=envelope.message.event_id.encode()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        for name in ("a", "b"):
            answer = await mailbox.ask(GetEvent(event_id=name), Row, deadline_ns=far())
            assert answer.row == name.encode()
    assert mailbox.idle


async def test_a_full_mailbox_refuses_at_once_by_count_and_by_bytes() -> None:
    by_count = Mailbox("core", count_max=2, bytes_max=10_000)
    post(by_count)
    post(by_count)
    with pytest.raises(Overloaded) as refused:
        await by_count.ask(CoreStatus(), Statistics, deadline_ns=far())
    assert refused.value.retry_after_ms is not None and refused.value.retry_after_ms >= 10
    assert refused.value.outcome == "not_executed"
    by_bytes = Mailbox("core", count_max=100, bytes_max=300)
    post(by_bytes, "x" * 200)
    with pytest.raises(Overloaded):
        await by_bytes.ask(GetEvent(event_id="y" * 200), Row, deadline_ns=far())
    assert by_bytes.statistics().count == 1


async def test_one_message_larger_than_the_bytes_fits_into_an_empty_mailbox() -> None:
    mailbox = Mailbox("core", count_max=2, bytes_max=10)
    post(mailbox, "x" * 100)
    assert mailbox.statistics().count == 1


async def test_a_patient_mailbox_waits_for_room(autojump_clock: trio.testing.MockClock) -> None:
    mailbox = Mailbox("transcript", count_max=1, bytes_max=1000, wait_ms=250)
    post(mailbox)
    answers: list[Row] = []

    async def ask() -> None:
        answers.append(await mailbox.ask(GetEvent(event_id="late"), Row, deadline_ns=far()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.sleep(0.1)
        mailbox.finish(await mailbox.take(), Row(row=b""))
        mailbox.finish(await mailbox.take(), Row(row=b"late"))
    assert answers == [Row(row=b"late")]


async def test_a_patient_mailbox_gives_up_in_the_end(autojump_clock: trio.testing.MockClock) -> None:
    mailbox = Mailbox("transcript", count_max=1, bytes_max=1000, wait_ms=250)
    post(mailbox)
    began = trio.current_time()
    with pytest.raises(Overloaded):
        await mailbox.ask(GetEvent(event_id="late"), Row, deadline_ns=far())
    assert trio.current_time() - began == pytest.approx(0.25)


async def test_expired_mail_is_refused_and_not_worked_on() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    with pytest.raises(DeadlineExceeded) as refused:
        await mailbox.ask(CoreStatus(), Statistics, deadline_ns=time.monotonic_ns())
    assert refused.value.outcome == "not_executed"
    assert mailbox.tell(CoreStatus(), deadline_ns=time.monotonic_ns() + 2_000_000)
    await trio.sleep(0.01)
    assert mailbox.take_nowait() is None
    assert mailbox.statistics().expired == 2


async def test_a_queued_message_that_runs_out_of_time_was_not_executed() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    with pytest.raises(DeadlineExceeded) as refused:
        await mailbox.ask(CoreStatus(), Statistics, deadline_ns=deadline_after(0.02))
    assert refused.value.outcome == "not_executed"
    assert mailbox.idle


async def test_a_message_in_hand_that_runs_out_of_time_is_unknown() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mailbox.take)
        with pytest.raises(DeadlineExceeded) as refused:
            await mailbox.ask(CoreStatus(), Statistics, deadline_ns=deadline_after(0.05))
    assert refused.value.outcome == "unknown"


async def test_an_asker_who_leaves_withdraws_what_still_waits() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    with trio.move_on_after(0.01):
        await mailbox.ask(CoreStatus(), Statistics, deadline_ns=far())
    assert mailbox.statistics().count == 0


async def test_only_the_first_answer_counts() -> None:
    envelope = Envelope(CoreStatus(), far(), "")
    envelope.resolve(Done())
    envelope.reject(ActorDied("later"))
    assert await envelope.wait() == Done()


async def test_trays_share_one_bound_and_are_taken_apart() -> None:
    mailbox = Mailbox(
        "core", count_max=2, bytes_max=1000, tray_of=lambda m: "read" if isinstance(m, GetEvent) else "write"
    )
    post(mailbox)
    assert mailbox.tell(CoreStatus(), deadline_ns=far())
    assert not mailbox.tell(CoreStatus(), deadline_ns=far())
    assert isinstance((await mailbox.take("write")).message, CoreStatus)
    assert isinstance((await mailbox.take("read")).message, GetEvent)


async def ask_into(mailbox: Mailbox, outcomes: list[object], message: GetEvent | RollbackIndex) -> None:
    try:
        outcomes.append(await mailbox.ask(message, Row, deadline_ns=far()))
    except (ActorDied, ActorRestarting, PoisonMessage, ActorUnavailable) as error:
        outcomes.append(error)


async def test_mail_that_waits_survives_a_death() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    post(mailbox, "waiting")
    mailbox.settle("killed", restart_eta_ns=soon())
    mailbox.open_for(2)
    assert (await mailbox.take()).message == GetEvent(event_id="waiting")


async def test_what_was_in_hand_is_redelivered_once_and_then_condemned() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_into, mailbox, outcomes, GetEvent(event_id="poison"))
        await mailbox.take()
        mailbox.settle("killed", restart_eta_ns=soon())
        mailbox.open_for(2)
        assert (await mailbox.take()).attempts == 1
        mailbox.settle("killed again", restart_eta_ns=soon())
    (error,) = outcomes
    assert isinstance(error, PoisonMessage) and error.outcome == "unknown"
    mailbox.open_for(3)
    with pytest.raises(PoisonMessage):
        await mailbox.ask(GetEvent(event_id="poison"), Row, deadline_ns=far())
    post(mailbox, "innocent")


async def test_a_message_that_succeeds_after_a_death_is_innocent_again() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    for _ in range(3):
        post(mailbox, "same")
        await mailbox.take()
        mailbox.settle("killed", restart_eta_ns=soon())
        mailbox.finish(await mailbox.take(), Done())
    assert mailbox.statistics().poisoned == 0


async def test_what_may_not_be_redelivered_is_refused_at_once() -> None:
    mailbox = Mailbox("builder", count_max=4, bytes_max=1000)
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_into, mailbox, outcomes, RollbackIndex())
        await mailbox.take()
        mailbox.settle("killed", restart_eta_ns=soon())
    (error,) = outcomes
    assert isinstance(error, ActorDied) and error.outcome == "unknown" and error.retryable


async def test_mail_that_cannot_wait_for_the_restart_is_told_so_at_once() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_into, mailbox, outcomes, GetEvent(event_id="waiting"))
        await trio.testing.wait_all_tasks_blocked()
        mailbox.settle("killed", restart_eta_ns=deadline_after(3600))
    (error,) = outcomes
    assert isinstance(error, ActorRestarting) and error.outcome == "not_executed"
    with pytest.raises(ActorRestarting):
        await mailbox.ask(CoreStatus(), Statistics, deadline_ns=far())


async def test_a_resting_actor_refuses_new_and_waiting_mail() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_into, mailbox, outcomes, GetEvent(event_id="waiting"))
        await trio.testing.wait_all_tasks_blocked()
        mailbox.refuse_all(lambda: ActorUnavailable("rests"))
    assert isinstance(outcomes[0], ActorUnavailable)
    with pytest.raises(ActorUnavailable):
        await mailbox.ask(CoreStatus(), Statistics, deadline_ns=far())
    mailbox.open_for(2)
    post(mailbox)


async def test_a_closing_mailbox_takes_nothing_new_but_gives_out_what_it_has() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    post(mailbox, "old")
    mailbox.close()
    with pytest.raises(ShuttingDown):
        await mailbox.ask(CoreStatus(), Statistics, deadline_ns=far())
    assert (await mailbox.take()).message == GetEvent(event_id="old")


async def test_statistics_are_truthful() -> None:
    mailbox = Mailbox("core", count_max=2, bytes_max=1000)
    post(mailbox)
    post(mailbox)
    assert not mailbox.tell(CoreStatus(), deadline_ns=far())
    envelope = await mailbox.take()
    found = mailbox.statistics()
    assert (found.count, found.peak, found.in_hand, found.refused) == (1, 2, 1, 1)
    mailbox.finish(envelope, Done())
    assert mailbox.statistics().in_hand == 0


async def test_a_culprit_that_is_known_takes_nobody_along() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    for name in ("guilty", "innocent"):
        post(mailbox, name)
    guilty, _ = [await mailbox.take(), await mailbox.take()]
    mailbox.settle("crashed", restart_eta_ns=soon(), culprit=guilty.body)
    assert await mailbox.take() is guilty, "alone, this time"
    mailbox.settle("crashed", restart_eta_ns=soon(), culprit=guilty.body)
    assert [each.kind for each in mailbox.quarantine.condemned()] == ["GetEvent"]
    survivor = await mailbox.take()
    assert survivor.message == GetEvent(event_id="innocent") and survivor.attempts == 0


async def test_after_a_death_with_it_in_hand_nobody_says_not_executed() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    outcomes: list[object] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_into, mailbox, outcomes, GetEvent(event_id="e"))
        await mailbox.take()
        mailbox.settle("killed", restart_eta_ns=soon())
        mailbox.refuse_all(lambda: ActorUnavailable("rests", outcome="not_executed"))
    (error,) = outcomes
    assert isinstance(error, ActorUnavailable) and error.outcome == "unknown"


@pytest.mark.parametrize(
    ("message", "repeats"),
    [
        (AppendEvents(events=(EventDraft(session_id="s", actor="user", content="x"),)), False),
        (AppendEvents(events=(EventDraft(session_id="s", actor="user", content="x", request_id="r"),)), True),
        (AppendEvents(events=(EventDraft(session_id="s", actor="user", content="x", event_id="e"),)), True),
        (PutUnit(type="profile", scope="user", text="x"), False),
        (PutUnit(type="profile", scope="user", text="x", request_id="r"), True),
        (RollbackIndex(), False),
        (GetEvent(event_id="e"), True),
    ],
)
def test_only_what_is_recognised_again_may_be_repeated(message: Message, repeats: bool) -> None:
    assert message.may_repeat() is repeats


async def test_a_write_without_an_id_is_not_done_twice() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    outcomes: list[object] = []

    async def put() -> None:
        try:
            await mailbox.ask(PutUnit(type="profile", scope="user", text="x"), Row, deadline_ns=far())
        except ActorDied as error:
            outcomes.append(error.outcome)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        await mailbox.take()
        mailbox.settle("killed", restart_eta_ns=soon())
    assert outcomes == ["unknown"] and mailbox.idle


async def test_a_full_mailbox_refuses_the_greediest_client() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    refused: list[str] = []

    async def ask(name: str, client: int) -> None:
        try:
            await mailbox.ask(GetEvent(event_id=name), Row, deadline_ns=far(), client=client)
        except Overloaded as error:
            assert error.retry_after_ms is not None
            refused.append(name)

    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(ask, f"flood {number}", 1)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(ask, "polite", 2)
        await trio.testing.wait_all_tasks_blocked()
        assert refused == ["flood 3"]
        assert mailbox.statistics().count == 4
        names = [(await mailbox.take()).message for _ in range(2)]
        assert names == [GetEvent(event_id="flood 0"), GetEvent(event_id="polite")]
        nursery.cancel_scope.cancel()


async def test_who_has_least_time_left_gives_way_where_that_is_the_policy() -> None:
    mailbox = Mailbox("searcher", count_max=2, bytes_max=1000, shed="least_budget", refuses_early=False)
    assert mailbox.tell(GetEvent(event_id="short"), deadline_ns=deadline_after(1))
    assert mailbox.tell(GetEvent(event_id="long"), deadline_ns=deadline_after(60))
    assert mailbox.tell(GetEvent(event_id="middle"), deadline_ns=deadline_after(10))
    assert not mailbox.tell(GetEvent(event_id="shortest"), deadline_ns=deadline_after(2))
    assert [(await mailbox.take()).message for _ in range(2)] == [
        GetEvent(event_id="long"),
        GetEvent(event_id="middle"),
    ]


async def test_expired_mail_makes_room() -> None:
    mailbox = Mailbox("core", count_max=1, bytes_max=1000)
    assert mailbox.tell(GetEvent(event_id="old"), deadline_ns=time.monotonic_ns() + 1_000_000)
    await trio.sleep(0.002)
    assert mailbox.tell(GetEvent(event_id="new"), deadline_ns=far())
    assert mailbox.statistics().expired == 1


async def test_control_messages_have_a_bound_of_their_own() -> None:
    def tray_of(message: Message) -> str:
        return CONTROL_TRAY if isinstance(message, CoreStatus) else ""

    mailbox = Mailbox("searcher", count_max=1, bytes_max=1000, tray_of=tray_of)
    post(mailbox)
    assert not mailbox.tell(GetEvent(event_id="full"), deadline_ns=far())
    accepted = [mailbox.tell(CoreStatus(), deadline_ns=far()) for _ in range(CONTROL_COUNT_MAX + 1)]
    assert accepted == [*[True] * CONTROL_COUNT_MAX, False]
    assert (await mailbox.take(CONTROL_TRAY)).message == CoreStatus()
    assert mailbox.statistics().count == 1 and not mailbox.idle


async def test_hints_that_say_the_same_are_one() -> None:
    mailbox = Mailbox("builder", count_max=1, bytes_max=1000, conflated=(TruthAdvanced,))
    assert [mailbox.tell(TruthAdvanced(), deadline_ns=far()) for _ in range(5)] == [True] * 5
    assert mailbox.statistics().count == 1


async def test_what_cannot_be_done_in_time_is_refused_before_anything_is_done() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    for _ in range(SAMPLES_MIN):
        post(mailbox)
        envelope = await mailbox.take()
        envelope.taken_ns -= 1_000_000_000  # as if it had taken a second
        mailbox.finish(envelope, Done())
    with pytest.raises(DeadlineExceeded, match="median") as refused:
        await mailbox.ask(GetEvent(event_id="e"), Row, deadline_ns=deadline_after(0.5))
    assert refused.value.outcome == "not_executed" and mailbox.idle


async def test_a_success_of_the_same_content_acquits_what_died_before() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    for _ in range(3):
        post(mailbox, "read by many")
        await mailbox.take()
        mailbox.settle("killed", restart_eta_ns=far())  # too late to be repeated
        post_again(mailbox, "read by many")
        mailbox.finish(await mailbox.take(), Done())
    assert mailbox.quarantine.condemned() == []


def post_again(mailbox: Mailbox, event_id: str) -> None:
    mailbox.open_for(mailbox.epoch + 1)
    post(mailbox, event_id)


async def test_a_suspect_is_taken_alone_whatever_tray_it_is_in() -> None:
    def tray_of(message: Message) -> str:
        return "write" if isinstance(message, CoreStatus) else "read"

    mailbox = Mailbox("core", count_max=8, bytes_max=1000, tray_of=tray_of)
    assert mailbox.tell(CoreStatus(), deadline_ns=far())
    post(mailbox, "beside it")
    for tray in ("write", "read"):
        await mailbox.take(tray)
    mailbox.settle("killed", restart_eta_ns=soon())
    post(mailbox, "later")
    suspect = await mailbox.take("write")
    assert mailbox.take_nowait("read") is None, "it waits until the suspect is through"
    taken: list[Envelope] = []

    async def take_next() -> None:
        taken.append(await mailbox.take("read"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_next)
        await trio.testing.wait_all_tasks_blocked()
        assert not taken
        mailbox.finish(suspect, Done())
    assert taken[0].attempts == 1 and mailbox.take_nowait("read") is None
    mailbox.finish(taken[0], Done())
    last = await mailbox.take("read")
    assert last.message == GetEvent(event_id="later")


async def test_two_askers_of_the_same_are_one_suspect() -> None:
    mailbox = Mailbox("core", count_max=4, bytes_max=1000)
    for _ in range(2):
        assert mailbox.tell(CoreStatus(), deadline_ns=far())
    for _ in range(2):
        await mailbox.take()
    mailbox.settle("killed", restart_eta_ns=soon())
    assert mailbox.quarantine.condemned() == []
    assert mailbox.statistics().count == 2
