"""The verb `jobs` offers what the queue knows; it names it itself, to start without the rooms' messages."""

from typing import get_args

from actors.messages.jobs import JobKind, JobStatus
from supervisor.cli import jobs


def test_the_verb_knows_every_kind_and_status() -> None:
    assert get_args(JobKind) == jobs.KINDS
    assert get_args(JobStatus) == jobs.STATUSES
