"""What may become of a job: every state and every event, and the pauses between attempts."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core_writer import job_rules
from actors.core_writer.job_rules import CAUSES_MAX, ERROR_CHARS_MAX, Job, backoff_us, causes_of
from actors.errors import Conflict

NOW = 1_000_000


def job(status: str = "queued", **members: object) -> Job:
    made = Job(
        job_seq=1,
        job_id="j",
        tenant="default",
        kind="summarize",
        status=status,
        priority=0,
        key=None,
        session_id=None,
        created_at=0,
        updated_at=0,
        ready_at=None,
        attempts=1,
        attempts_max=3,
        token=4,
        worker="w",
        lease_expires_at=NOW + 1 if status == "leased" else None,
        finished_at=0 if status in ("done", "cancelled") else None,
        causes="[]",
        payload=None,
        result=None,
    )
    return made._replace(**members)  # type: ignore[arg-type]


def fail(given_job: Job, *, now: int = NOW, token: int = 4, permanent: bool = False, error: str = "no") -> Job:
    return job_rules.failed(given_job, token, now=now, error=error, wait_us=50, permanent=permanent)


EVENTS: dict[str, Callable[[Job], Job]] = {
    "renew": lambda j: job_rules.renewed(j, 4, now=NOW, lease_us=10),
    "complete": lambda j: job_rules.completed(j, 4, now=NOW, result="{}"),
    "fail": fail,
    "cancel": lambda j: job_rules.cancelled(j, now=NOW),
    "replay": lambda j: job_rules.replayed(j, now=NOW),
}
# What becomes of a job in a state by an event; None: Conflict.
TABLE: dict[str, dict[str, str | None]] = {
    "queued": {"renew": None, "complete": None, "fail": None, "cancel": "cancelled", "replay": None},
    "leased": {"renew": "leased", "complete": "done", "fail": "queued", "cancel": "cancelled", "replay": None},
    "done": {"renew": None, "complete": "done", "fail": None, "cancel": None, "replay": None},
    "dead": {"renew": None, "complete": None, "fail": None, "cancel": "cancelled", "replay": "queued"},
    "cancelled": {"renew": None, "complete": None, "fail": None, "cancel": "cancelled", "replay": None},
}


@pytest.mark.parametrize("status", TABLE)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_state(status: str, event: str) -> None:
    expected = TABLE[status][event]
    if expected is None:
        with pytest.raises(Conflict, match=f"job.{event} refused: "):
            EVENTS[event](job(status))
    else:
        assert EVENTS[event](job(status)).status == expected


@pytest.mark.parametrize("event", ["renew", "complete", "fail"])
def test_a_lease_that_is_not_the_last_one_or_has_expired_reports_nothing(event: str) -> None:
    with pytest.raises(Conflict, match="not its last one"):
        EVENTS[event](job("leased", token=5))
    with pytest.raises(Conflict, match="has expired"):
        EVENTS[event](job("leased", lease_expires_at=NOW))


def test_a_report_that_is_repeated_changes_nothing() -> None:
    done = EVENTS["complete"](job("leased"))
    assert job_rules.completed(done, 4, now=NOW + 5, result='{"other":1}') == done
    for permanent in (False, True):
        failed = fail(job("leased"), permanent=permanent)
        assert fail(failed, now=NOW + 5, permanent=permanent) == failed


def test_a_lease_counts_an_attempt_and_has_a_token_of_its_own() -> None:
    taken = job_rules.leased(job(), now=NOW, lease_us=10, worker="x")
    assert (taken.attempts, taken.token, taken.worker, taken.lease_expires_at) == (2, 5, "x", NOW + 10)


def test_the_last_attempt_leaves_a_dead_job_with_its_causes() -> None:
    for ended in (fail(job("leased", attempts=3)), job_rules.expired(job("leased", attempts=3), now=NOW)):
        assert (ended.status, ended.ready_at, ended.lease_expires_at, len(causes_of(ended))) == ("dead", None, None, 1)
    assert fail(job("leased"), permanent=True).status == "dead"


def test_a_failed_attempt_is_followed_by_a_pause_and_an_expired_one_is_not() -> None:
    assert fail(job("leased")).ready_at == NOW + 50
    assert job_rules.expired(job("leased"), now=NOW).ready_at is None


def test_a_replayed_job_has_all_attempts_before_it_and_keeps_its_history_and_its_token() -> None:
    dead = fail(job("leased"), permanent=True)
    again = job_rules.replayed(dead, now=NOW)
    assert (again.attempts, again.token, again.causes) == (0, dead.token, dead.causes)


def test_causes_are_bounded_in_number_and_length() -> None:
    ended = job(attempts_max=1000)
    for number in range(2 * CAUSES_MAX):
        taken = job_rules.leased(ended._replace(ready_at=None), now=NOW, lease_us=10, worker=None)
        ended = fail(taken, token=taken.token, error=f"{number} " + "x" * 5000)
    causes = causes_of(ended)
    assert [cause.error.split()[0] for cause in causes] == [str(n) for n in range(CAUSES_MAX, 2 * CAUSES_MAX)]
    assert all(len(cause.error) == ERROR_CHARS_MAX for cause in causes)


@given(
    attempt=st.integers(1, 10_000), us_min=st.integers(1, 10**9), factor=st.integers(1, 1000), random=st.floats(0, 1)
)
def test_a_pause_doubles_within_its_limits(attempt: int, us_min: int, factor: int, random: float) -> None:
    us_max = us_min * factor
    random = min(random, 0.999999)
    pause = backoff_us(attempt, us_min=us_min, us_max=us_max, random=random)
    whole = min(us_max, us_min * 2 ** min(attempt - 1, 100))
    assert whole / 2 <= pause <= whole
    assert backoff_us(attempt + 1, us_min=us_min, us_max=us_max, random=random) >= pause
