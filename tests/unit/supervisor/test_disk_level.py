"""The watermarks of the disk: which level follows from the free space, and how much is in the way back."""

import pytest

from actors.notices import DiskLevel
from supervisor.config import DiskLimits
from supervisor.disk_level import appends_end_at, full_at, has_ample_room, judge, low_at, worst

OK, LOW, FULL = DiskLevel.OK, DiskLevel.LOW, DiskLevel.FULL
MIB, GIB, TIB = 2**20, 2**30, 2**40
LIMITS = DiskLimits()
# On a disk of 10 GiB the bytes are the smaller watermarks: 512, 64 and 16 MiB; a way back of 25 % ends at 640 and 80.
TOTAL = 10 * GIB


@pytest.mark.parametrize(
    ("before", "free", "after"),
    [
        (OK, TOTAL, OK),
        (OK, 512 * MIB, OK),
        (OK, 512 * MIB - 1, LOW),
        (OK, 64 * MIB, LOW),
        (OK, 64 * MIB - 1, FULL),
        (OK, 0, FULL),
        (OK, -1, FULL),  # the ballast that was given away counts as used
        (LOW, 512 * MIB, LOW),
        (LOW, 640 * MIB - 1, LOW),
        (LOW, 640 * MIB, OK),
        (LOW, 64 * MIB, LOW),
        (LOW, 64 * MIB - 1, FULL),
        (FULL, 64 * MIB, FULL),
        (FULL, 80 * MIB - 1, FULL),
        (FULL, 80 * MIB, LOW),
        (FULL, 512 * MIB, LOW),
        (FULL, 640 * MIB - 1, LOW),
        (FULL, 640 * MIB, OK),
    ],
)
def test_a_level_is_entered_at_its_watermark_and_left_above_it(before: DiskLevel, free: int, after: DiskLevel) -> None:
    assert judge(before, free_bytes=free, total_bytes=TOTAL, limits=LIMITS) is after


@pytest.mark.parametrize("before", list(DiskLevel))
def test_a_level_that_is_judged_twice_by_the_same_space_stays(before: DiskLevel) -> None:
    for free in range(0, 800 * MIB, 7 * MIB):
        once = judge(before, free_bytes=free, total_bytes=TOTAL, limits=LIMITS)
        assert judge(once, free_bytes=free, total_bytes=TOTAL, limits=LIMITS) is once


@pytest.mark.parametrize(
    ("total", "low", "full", "appends"),
    [
        (2 * TIB, 512 * MIB, 64 * MIB, 16 * MIB),  # a tenth would be 200 GB
        (8 * GIB, 512 * MIB, 64 * MIB, 16 * MIB),
        (1000 * MIB, 100 * MIB, 20 * MIB, 5 * MIB),  # half a GiB would be half the disk
        (0, 0, 0, 0),
    ],
)
def test_the_smaller_of_share_and_bytes_is_the_watermark(total: int, low: int, full: int, appends: int) -> None:
    assert (low_at(total, LIMITS), full_at(total, LIMITS), appends_end_at(total, LIMITS)) == (low, full, appends)


def test_appends_come_back_above_their_watermark() -> None:
    assert appends_end_at(TOTAL, LIMITS, ended=True) == 20 * MIB


def test_without_hysteresis_a_level_is_left_where_it_was_entered() -> None:
    limits = DiskLimits(hysteresis_percent=0)
    assert judge(FULL, free_bytes=64 * MIB, total_bytes=TOTAL, limits=limits) is LOW
    assert judge(LOW, free_bytes=512 * MIB, total_bytes=TOTAL, limits=limits) is OK


def test_the_worst_level_counts() -> None:
    assert worst(OK) is OK
    assert worst(OK, LOW, OK) is LOW
    assert worst(LOW, FULL, OK) is FULL


def test_a_small_disk_gets_no_ballast() -> None:
    assert has_ample_room(free_bytes=640 * MIB, total_bytes=TOTAL, limits=LIMITS)
    assert not has_ample_room(free_bytes=639 * MIB, total_bytes=TOTAL, limits=LIMITS)
    assert not has_ample_room(free_bytes=64 * MIB, total_bytes=64 * MIB, limits=LIMITS)
