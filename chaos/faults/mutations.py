"""Promises that can be switched off, one at a time: the suite must turn red, or it proves nothing.

Functions of production are replaced in this process only, before the room is made. What is to be replaced must be
there: a mutation that no longer fits its target fails the start of the worker, so that it can't go green unnoticed.
"""

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from actors.sql.database import Call, FileKind
from chaos.faults.kinds import MutationName

Original = Callable[..., Any]


def apply(name: MutationName, worker: str) -> None:
    """Switch a promise off in this process. Raises ValueError when this worker has no such promise."""
    mutation = _MUTATIONS.get((name, worker))
    if mutation is None:
        raise ValueError(f"mutation {name!r} refused: there is none for {worker!r}")
    mutation()


def _replace(module: str, name: str, replacement: Callable[[Original], Original]) -> None:
    """Replace a function of a module by what is made of it."""
    target = import_module(module)
    setattr(target, name, replacement(getattr(target, name)))


def _never_sync() -> None:
    """Open every database with synchronous = OFF: COMMIT returns before anything is durable."""

    def replacement(original: Original) -> Original:
        def set_pragmas(connection: sqlite3.Connection, kind: FileKind) -> None:
            original(connection, dataclasses.replace(kind, synchronous="OFF"))

        return set_pragmas

    _replace("actors.sql.database", "_set_pragmas", replacement)


def _forget_appends() -> None:
    """Look up no request_id: an append that is sent again is stored again."""
    _replace("actors.transcript_appender.store", "place_by_request", lambda _: lambda *_: None)


def _forget_requests() -> None:
    """Keep no results: a change that is sent again is made again."""

    def replacement(_: Original) -> Original:
        def once(_: sqlite3.Connection, *, effect: Callable[[], bytes], **__: object) -> bytes:
            return effect()

        return once

    _replace("actors.core_writer.requests", "once", replacement)


def _open_the_fence() -> None:
    """Let a writer that has been replaced go on writing."""
    _replace("actors.sql.writer_epoch", "require_epoch", lambda _: lambda *_: None)


def _commit_late() -> None:
    """Acknowledge appends before their COMMIT: it comes with the next transaction."""
    begin = import_module("actors.sql.database")._begin

    @contextmanager
    def transaction(connection: sqlite3.Connection, call: Call) -> Iterator[None]:
        connection.commit()
        begin(connection, call)
        try:
            yield
            call.check()
        except BaseException:
            connection.rollback()
            raise

    _replace("actors.transcript_appender.appending", "transaction", lambda _: transaction)


def _any_event() -> None:
    """Look an event up by its id, whosever it is."""

    def replacement(_: Original) -> Original:
        store = import_module("actors.transcript_appender.store")

        def get_event(connection: sqlite3.Connection, _tenant: str, event_id: str) -> Any:
            place = store.place_by_event_id(connection, event_id)
            return None if place is None else store.event_at(connection, place.seq)

        return get_event

    _replace("actors.transcript_appender.store", "get_event", replacement)


def _any_unit() -> None:
    """Search the units of all tenants by their words."""

    def replacement(original: Original) -> Original:
        def where(filters: Any, tenant: str, corpus: str) -> Any:
            found = original(filters, tenant, corpus)
            if found is None:
                return None
            widened = found.sql.replace("t.tenant = :f_tenant", ":f_tenant IS NOT NULL")
            assert widened != found.sql, "the tenant is no condition any more"
            return found._replace(sql=widened)

        return where

    _replace("actors.core_writer.search", "where", replacement)


def _any_row() -> None:
    """Search the rows of all tenants in the views."""

    def replacement(original: Original) -> Original:
        def conditions(filters: Any, tenant: str, corpus: str) -> Any:
            found = original(filters, tenant, corpus)
            if found is None:
                return None
            assert found[0].column == "tenant", "the tenant is not the first condition any more"
            # Something must be asked for, and every row fulfils this.
            return [type(found[0])("ts", "at_least", 0), *found[1:]]

        return conditions

    _replace("actors.searcher.store", "conditions", replacement)


_MUTATIONS: dict[tuple[MutationName, str], Callable[[], None]] = {
    ("synchronous_off", "transcript_appender"): _never_sync,
    ("synchronous_off", "core_writer"): _never_sync,
    ("dedupe_off", "transcript_appender"): _forget_appends,
    ("dedupe_off", "core_writer"): _forget_requests,
    ("fence_off", "transcript_appender"): _open_the_fence,
    ("fence_off", "core_writer"): _open_the_fence,
    ("early_acknowledgement", "transcript_appender"): _commit_late,
    ("tenant_off", "transcript_appender"): _any_event,
    ("tenant_off", "core_writer"): _any_unit,
    ("tenant_off", "searcher"): _any_row,
}
