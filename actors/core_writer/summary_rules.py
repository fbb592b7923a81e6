"""When a session is due for a summary. Pure; times in µs.

Three reasons, each of which can be switched off: the session was closed; so many events are new since the last job for
it; it has been silent for so long. The first of them that comes true counts.
"""

from actors.settings import CoreWriterSettings

_MS = 1000
_SECOND = 1_000_000


def due_at(*, closed: bool, new_events: int, changed_at: int, now: int, limits: CoreWriterSettings) -> int | None:
    """Return when the next job is due, None when nothing that is known now asks for one.

    `changed_at` is when the last events became known: events that are imported may be years old.
    """
    if new_events <= 0:
        return None
    reasons: list[int] = []
    if limits.summarize_on_close and closed:
        # Events that were appended just before the closing are known here a few seconds later.
        reasons.append(now + limits.summarize_settle_ms * _MS)
    if 0 < limits.summarize_every_events <= new_events:
        reasons.append(now)
    if limits.summarize_after_s > 0:
        reasons.append(min(changed_at, now) + limits.summarize_after_s * _SECOND)
    return min(reasons, default=None)


def horizon(*, now: int, limits: CoreWriterSettings) -> int:
    """Return the latest time that may be due; one beyond it was set by a clock that was put back since."""
    return now + max(limits.summarize_settle_ms * _MS, limits.summarize_after_s * _SECOND)
