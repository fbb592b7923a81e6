"""Appending: one transaction for a batch of messages, one savepoint for each, exactly once for each event.

The order of looking for a first time: `event_id`, then `request_id`, then (without an event_id, when the window is not
0) the same content from the same source. Whatever is found, the request_id is remembered with it, so that a retry
finds it even when the window has closed. Each is looked for in the active segment first, then in the earlier ones.
"""

import os
import sqlite3
from collections.abc import Callable, Sequence

from actors.errors import BulkheadError, Conflict, InvalidParams
from actors.messages.transcript_appender import Appended, AppendEvents, AppendResult
from actors.redaction import Redactor
from actors.settings import TranscriptAppenderSettings
from actors.sql import meta
from actors.sql.database import Call, savepoint, transaction
from actors.sql.ulid import RANDOM_BYTES, UlidMaker
from actors.transcript_appender import sessions, store
from actors.transcript_appender.drafts import Prepared, prepare, source_key
from actors.transcript_appender.shelf import Shelf

_SECOND_US = 1_000_000


class Appender:
    """Appends events through the writing connection. Keeps the last time and id that it gave, so that both ascend.

    `earlier` are the segments before the one that is written to.
    """

    def __init__(
        self, limits: TranscriptAppenderSettings, now_us: Callable[[], int], earlier: Shelf, redactor: Redactor
    ) -> None:
        self._limits = limits
        self._redactor = redactor
        self._now_us = now_us
        self._earlier = earlier
        self._window_us = limits.duplicate_window_s * _SECOND_US
        self._ulids = UlidMaker()
        self._clock = 0
        self._seq = 0

    def load(self, connection: sqlite3.Connection) -> None:
        """Read where the clock stood."""
        self._clock = meta.read_counter(connection, store.CLOCK)

    @property
    def clock(self) -> int:
        """Return the last time that was given, µs."""
        return self._clock

    def append(
        self, connection: sqlite3.Connection, messages: Sequence[AppendEvents], call: Call
    ) -> list[AppendResult | BulkheadError]:
        """Append the events of each message, all or none of it; return its result or its error. Durable on return.

        What fails the whole batch (disk, deadline) is raised, and nothing of it is stored.
        """
        checked = [self._check(message) for message in messages]
        if all(isinstance(part, BulkheadError) for part in checked):
            return [part for part in checked if isinstance(part, BulkheadError)]
        with transaction(connection, call):
            self._seq = store.last_seq(connection) or self._earlier.active.first_seq - 1
            before = self._seq
            results = [
                part if isinstance(part, BulkheadError) else self._append_message(connection, message.tenant, part)
                for message, part in zip(messages, checked, strict=True)
            ]
            if self._seq > before:
                meta.write(connection, store.CLOCK, self._clock)
        return results

    def prune(self, connection: sqlite3.Connection, call: Call, rows_max: int) -> bool:
        """Drop what no longer matters for finding duplicates; return whether there is more."""
        oldest = self._now_us() - self._window_us
        with transaction(connection, call):
            return store.forget_recent(connection, oldest, rows_max) == rows_max

    def _check(self, message: AppendEvents) -> list[Prepared] | InvalidParams:
        try:
            return prepare(message, self._limits, self._redactor)
        except InvalidParams as error:
            return error

    def _append_message(
        self, connection: sqlite3.Connection, tenant: str, events: list[Prepared]
    ) -> AppendResult | BulkheadError:
        before = self._seq
        try:
            with savepoint(connection):
                return self._append_events(connection, tenant, events)
        except BulkheadError as error:
            self._seq = before
            return error

    def _append_events(self, connection: sqlite3.Connection, tenant: str, events: list[Prepared]) -> AppendResult:
        results: list[Appended] = []
        additions: dict[str, sessions.Addition] = {}
        for event in events:
            arrived = self._tick()
            ts = arrived if event.draft.ts is None else event.draft.ts
            found = self._find(connection, tenant, event, ts)
            if found is not None:
                self._remember(connection, tenant, event, found.seq)
                results.append(
                    Appended(event_id=found.event_id, seq=found.seq, deduplicated=True, redacted=event.redacted)
                )
                continue
            appended = self._insert(connection, tenant, event, ts, arrived)
            results.append(appended)
            session_id = event.draft.session_id
            addition = additions.get(session_id, sessions.Addition(session_id, ts, ts, appended.seq, appended.seq, 0))
            additions[session_id] = addition.plus(ts, appended.seq)
        new = [key for key, addition in additions.items() if sessions.add_to_session(connection, tenant, addition)]
        if new and self._earlier.parts():
            new = [key for key in new if not self._earlier.has_session(tenant, key)]
        return AppendResult(results=results, new_sessions=tuple(new))

    def _find(self, connection: sqlite3.Connection, tenant: str, event: Prepared, ts: int) -> store.Place | None:
        """Return the event that this one repeats; raise Conflict when its ids belong to others."""
        draft = event.draft
        by_request = self._find_by_request(connection, tenant, draft.request_id) if draft.request_id else None
        if draft.event_id is None:
            if by_request is None and self._window_us:
                key = source_key(tenant, event)
                found = store.recent_place(connection, key, ts, self._window_us)
                return found or self._earlier.recent_place(key, ts, self._window_us)
            return by_request
        by_id = store.place_by_event_id(connection, draft.event_id)
        by_id = by_id or self._earlier.place_by_event_id(draft.event_id)
        if by_id is not None and by_id.tenant != tenant:
            raise Conflict(f"append refused: event_id {draft.event_id!r} is not available", hint="choose another one")
        if by_id is not None and by_request is not None and by_id.seq != by_request.seq:
            raise Conflict(
                f"append refused: event_id {draft.event_id!r} is event {by_id.seq}, but request_id "
                f"{draft.request_id!r} led to event {by_request.seq}",
                hint="use a new request_id for every event",
            )
        return by_id or by_request

    def _find_by_request(self, connection: sqlite3.Connection, tenant: str, request_id: str) -> store.Place | None:
        found = store.place_by_request(connection, tenant, request_id)
        if found is not None or not self._earlier.parts():
            return found
        # What was found to repeat an event of an earlier segment is noted here, but its event is there.
        noted = store.seq_of_request(connection, tenant, request_id)
        place = None if noted is None else self._earlier.place_at(noted)
        return place or self._earlier.place_by_request(tenant, request_id)

    def _insert(self, connection: sqlite3.Connection, tenant: str, event: Prepared, ts: int, arrived: int) -> Appended:
        self._seq += 1
        event_id = event.draft.event_id or self._ulids.make(arrived, os.urandom(RANDOM_BYTES))
        store.insert_event(connection, seq=self._seq, event_id=event_id, tenant=tenant, ts=ts, event=event)
        self._remember(connection, tenant, event, self._seq)
        if self._window_us and event.draft.event_id is None:
            store.remember_recent(connection, source_key(tenant, event), seq=self._seq, ts=ts, seen=arrived)
        return Appended(event_id=event_id, seq=self._seq, redacted=event.redacted)

    @staticmethod
    def _remember(connection: sqlite3.Connection, tenant: str, event: Prepared, seq: int) -> None:
        if event.draft.request_id is not None:
            store.remember_request(connection, tenant, event.draft.request_id, seq)

    def _tick(self) -> int:
        """Return the time now, later than any time given before, whatever the clock of the machine does."""
        self._clock = max(self._now_us(), self._clock + 1)
        return self._clock
