"""Which level the free space of a disk is: the arithmetic of the watermarks. Pure: no clock and no I/O.

Each watermark is given twice, as a share of the disk and as bytes, and the smaller of the two holds. What Bulkhead
needs is absolute (a build writes some hundred MiB, a checkpoint at most its WAL), so on a disk of 2 TB a tenth would
stop builds with 200 GB free; the shares are for disks so small that the bytes would be most of them.

A level is left later than it is entered, by `hysteresis_percent`: what sits at a watermark would flap otherwise, and
each fall to `low` throws away derived data.
"""

from actors.notices import DiskLevel
from supervisor.config import DiskLimits

_ORDER = (DiskLevel.OK, DiskLevel.LOW, DiskLevel.FULL)


def low_at(total_bytes: int, limits: DiskLimits) -> int:
    """Return the free bytes below which derived data gives way."""
    return _smaller(total_bytes, limits.low_percent, limits.low_bytes)


def full_at(total_bytes: int, limits: DiskLimits) -> int:
    """Return the free bytes below which writes are refused."""
    return _smaller(total_bytes, limits.full_percent, limits.full_bytes)


def appends_end_at(total_bytes: int, limits: DiskLimits, *, ended: bool = False) -> int:
    """Return the free bytes below which appends are refused as well; `ended` says whether they are already."""
    return _raised(_smaller(total_bytes, limits.append_percent, limits.append_bytes), ended, limits)


def judge(before: DiskLevel, *, free_bytes: int, total_bytes: int, limits: DiskLimits) -> DiskLevel:
    """Return the level that follows from the free space and from the level before."""
    if free_bytes < _raised(full_at(total_bytes, limits), before is DiskLevel.FULL, limits):
        return DiskLevel.FULL
    if free_bytes < _raised(low_at(total_bytes, limits), before is not DiskLevel.OK, limits):
        return DiskLevel.LOW
    return DiskLevel.OK


def worst(*levels: DiskLevel) -> DiskLevel:
    """Return the level with the least room."""
    return max(levels, key=_ORDER.index)


def has_ample_room(*, free_bytes: int, total_bytes: int, limits: DiskLimits) -> bool:
    """Say whether the ballast may be made: a disk that it would bring near a watermark is better off without it."""
    return free_bytes >= low_at(total_bytes, limits) + _AMPLE_BALLASTS * limits.ballast_bytes


_AMPLE_BALLASTS = 4


def _smaller(total_bytes: int, percent: float, count: int) -> int:
    return min(int(total_bytes * percent / 100), count)


def _raised(watermark: int, inside: bool, limits: DiskLimits) -> int:
    return watermark + watermark * limits.hysteresis_percent // 100 if inside else watermark
