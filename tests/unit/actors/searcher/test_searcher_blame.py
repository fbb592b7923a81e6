"""What a search answers for when workers die with it in hand."""

import pytest

from actors.quarantine import Quarantine, key_of
from actors.searcher.blame import Case
from actors.worker import WorkerDied

BODY, QUERY = b"search", b"query"


@pytest.fixture
def quarantine() -> Quarantine:
    return Quarantine(monotonic_s=lambda: 0.0, wall_us=lambda: 0)


def death(culprit: bytes | None = None) -> WorkerDied:
    return WorkerDied("searcher", 1, "ended by signal SIGKILL", culprit=culprit)


def died(case: Case, *, alone: bool = True, culprit: bytes | None = None) -> bool:
    return case.died(death(culprit), query=QUERY, alone=alone)


def test_a_search_that_is_alone_at_two_deaths_is_condemned(quarantine: Quarantine) -> None:
    assert not died(Case(quarantine, BODY))
    retry = Case(quarantine, BODY)
    assert not retry.condemned
    assert died(retry)
    assert Case(quarantine, BODY).condemned
    (verdict,) = quarantine.condemned()
    assert (verdict.actor, verdict.kind, verdict.bytes) == ("searcher", "Search", len(BODY))


def test_both_workers_killed_at_once_condemn_nobody(quarantine: Quarantine) -> None:
    case = Case(quarantine, BODY)
    assert not died(case)
    assert not died(case)
    assert not case.condemned


def test_company_at_the_first_death_does_not_count_and_at_the_second_it_does(quarantine: Quarantine) -> None:
    first = Case(quarantine, BODY)
    assert not died(first, alone=False)
    assert not died(first, alone=False)
    assert died(Case(quarantine, BODY)), "the death that it was in hand at twice is its first"


def test_company_at_one_death_is_no_suspicion(quarantine: Quarantine) -> None:
    for _ in range(10):
        assert not died(Case(quarantine, BODY), alone=False)


def test_the_call_that_the_worker_named_answers_each_time(quarantine: Quarantine) -> None:
    case = Case(quarantine, BODY)
    assert not died(case, alone=False, culprit=QUERY)
    assert died(case, alone=False, culprit=QUERY)


def test_nobody_else_answers_when_the_worker_named_one(quarantine: Quarantine) -> None:
    case = Case(quarantine, BODY)
    for _ in range(10):
        assert not died(case, culprit=b"another")


def test_an_answer_clears_earlier_deaths_and_the_late_one_of_the_other_worker(quarantine: Quarantine) -> None:
    assert not died(Case(quarantine, BODY))
    hedged = Case(quarantine, BODY)
    hedged.answered()
    assert not died(hedged), "the worker that it was hedged against was killed in the end"
    assert not died(Case(quarantine, BODY)), "this is the first one again"


def test_the_mailbox_does_not_refuse_what_the_workers_may_not_have(quarantine: Quarantine) -> None:
    died(Case(quarantine, BODY))
    died(Case(quarantine, BODY))
    assert quarantine.find(key_of(BODY)) is None
