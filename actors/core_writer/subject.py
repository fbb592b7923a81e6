"""A subject of core_writer: which messages it takes and what it does with them. `worker.py` has the list of all.

A subject is a module of its own beside its statements. A write runs in one transaction, which is the room's: what it
raises undoes it. A write whose message has a `request_id` answers with a `Row`; the room keeps that, and gives it again
when the request is repeated. A read runs on a connection that cannot write.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import msgspec

from actors.messages.base import Message
from actors.settings import CoreWriterSettings


@runtime_checkable
class Repeatable(Protocol):
    """A write that is recognised when it comes again."""

    @property
    def tenant(self) -> str:
        """Return whose request ids these are."""
        ...

    @property
    def request_id(self) -> str | None:
        """Return the id, None when it has none and every repetition takes effect."""
        ...


@dataclass(frozen=True, kw_only=True)
class Writing:
    """What a write has to work with. `now` is the instant of the whole transaction, in µs UTC."""

    connection: sqlite3.Connection
    now: int
    new_id: Callable[[], str]
    limits: CoreWriterSettings


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a module does. `check` refuses what is no input at all, before anything is begun; InvalidParams.

    `upkeep` does a short slice of what has to be done from time to time (expiry, pruning), in a transaction of its
    own, and returns whether there is more.
    """

    writes: Mapping[type[Message], Callable[[Writing, Any], msgspec.Struct]] = field(default_factory=dict)
    reads: Mapping[type[Message], Callable[[sqlite3.Connection, Any], msgspec.Struct]] = field(default_factory=dict)
    check: Callable[[Any, CoreWriterSettings], None] = lambda message, limits: None
    upkeep: Callable[[Writing], bool] = lambda writing: False
