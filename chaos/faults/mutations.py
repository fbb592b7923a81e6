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


_MUTATIONS: dict[tuple[MutationName, str], Callable[[], None]] = {
    ("synchronous_off", "transcript_appender"): _never_sync,
    ("synchronous_off", "core_writer"): _never_sync,
    ("dedupe_off", "transcript_appender"): _forget_appends,
    ("dedupe_off", "core_writer"): _forget_requests,
    ("fence_off", "transcript_appender"): _open_the_fence,
    ("fence_off", "core_writer"): _open_the_fence,
    ("early_acknowledgement", "transcript_appender"): _commit_late,
}
