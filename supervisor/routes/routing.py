"""How a request becomes a message and a result: what the routes of all subjects have in common.

A route validates, stamps the deadline, asks one actor, and shapes the answer. It never touches storage. Rows that
a worker made as JSON are passed on undecoded. Tenant and principal come from the connection, never from parameters.
"""

import logging
import os
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec
import trio

from actors.errors import ActorUnavailable, BulkheadError, InvalidParams, PermissionDenied
from actors.mailbox import Mailbox
from actors.messages.base import Caller, Message, Row, Rows
from actors.messages.generation_builder import TruthAdvanced
from actors.messages.transcript_appender import Appended, EventDraft
from actors.quarantine import Quarantine
from actors.sql.ulid import RANDOM_BYTES, UlidMaker
from supervisor import params as wire
from supervisor.backups import BackupKeeper
from supervisor.config import Config
from supervisor.disk import DiskWatch, Growing
from supervisor.health import Health
from supervisor.principals import Capability, Principals, Visitor, require
from supervisor.routes.permissions import needs
from supervisor.rpc import decode_params, suggest

Answer = TypeVar("Answer", bound=msgspec.Struct)


log = logging.getLogger("bulkhead.routes")

HINT_EVERY_S = 0.2
LOOK_EVERY_S = 0.1
OWNER_ONLY = Principals(())


class Scope:
    """One request on its way: its deadline, who asks, and its turn among the writes of its connection."""

    def __init__(
        self,
        *,
        deadline_ns: int,
        visitor: Visitor | None = None,
        client: int = 0,
        turn: trio.Event | None = None,
        posted: trio.Event | None = None,
        notify: Callable[[bytes], bool] = lambda line: False,
    ) -> None:
        """Take note of who asks now: what a later `hello` makes of the visitor is not this request's.

        `notify` offers the client a line that it is not owed; it says whether the client was given it.
        """
        self.deadline_ns = deadline_ns
        self.visitor = visitor or Visitor(OWNER_ONLY)
        self.caller: Caller = self.visitor.caller
        self.may: frozenset[Capability] = self.visitor.may
        self.notify = notify
        self.client = client
        self._turn = turn
        self._posted = posted

    @property
    def tenant(self) -> str:
        """Return whose memory it is about."""
        return self.caller.tenant

    async def wait_turn(self) -> None:
        """Wait until the writes that this connection sent earlier have their places in the queue."""
        if self._turn is not None:
            await self._turn.wait()

    def mark_posted(self) -> None:
        """Let the next write of the connection go on."""
        if self._posted is not None:
            self._posted.set()


Handler = Callable[["Routes", wire.Params, Scope], Awaitable[object]]


class Method(msgspec.Struct, frozen=True):
    """A method: the type of its parameters, its handler, and whether writes of a connection keep their order.

    `grows` names the store that its effect makes larger: on a full disk it is refused before it reaches the actor.
    """

    params: type[wire.Params]
    handler: Handler
    ordered: bool = False
    chaos_only: bool = False
    grows: Growing | None = None


class Routes:
    """Dispatches requests to the actors."""

    def __init__(
        self,
        *,
        mailboxes: Mapping[str, Mailbox],
        health: Health,
        quarantine: Quarantine,
        disk: DiskWatch,
        config: Config,
        backups: BackupKeeper,
        drain: Callable[[], None],
        epoch: str,
        methods: "Mapping[str, Method]",
        principals: Principals = OWNER_ONLY,
    ) -> None:
        self.mailboxes = mailboxes
        self.health = health
        self.quarantine = quarantine
        self.disk = disk
        self.config = config
        self.backups = backups
        self.drain = drain
        self.epoch = epoch
        self.principals = principals
        self.denied = 0
        self._hinted_at = 0.0
        self._ulids = UlidMaker()
        self.methods = {
            name: method for name, method in methods.items() if config.chaos.enabled or not method.chaos_only
        }

    def is_ordered(self, name: str) -> bool:
        """Say whether requests of this method keep their order within a connection."""
        method = self.methods.get(name)
        return method is not None and method.ordered

    async def call(self, name: str, raw: msgspec.Raw, scope: Scope) -> object:
        """Serve one request and return its result, ready to be encoded; raise BulkheadError."""
        method = self.methods.get(name)
        if method is None:
            raise UnknownMethod(f"unknown method {name!r}{suggest(name, self.methods)}")
        self._check_permission(name, scope)
        parameters = decode_params(raw, method.params, name)
        self._set_deadline(name, parameters, scope)
        if method.grows is not None:
            self.disk.check(name, method.grows)
        try:
            return await method.handler(self, parameters, scope)
        except BulkheadError as error:
            self.disk.report(error)
            raise

    def _check_permission(self, name: str, scope: Scope) -> None:
        """Refuse what this principal may not do, before anything of the request is looked into."""
        try:
            require(needs(name), scope.may, scope.caller, name)
        except PermissionDenied:
            self.denied += 1
            log.warning("denied", extra={"method": name, "principal": scope.caller.principal, "client": scope.client})
            raise

    def sees_all(self, scope: Scope) -> bool:
        """Say whether who asks may be told what there is of other tenants: there are none, or it is an operator."""
        return "admin" in scope.may or not self.principals.several_tenants

    def _set_deadline(self, name: str, parameters: wire.Params, scope: Scope) -> None:
        limits, wanted_ms = self.config.protocol, parameters.deadline_ms
        waits = waits_long(parameters)
        longest = limits.wait_ms_max if waits else limits.deadline_ms_max
        if wanted_ms is None and waits:
            wanted_ms = longest
        if wanted_ms is None:
            return
        if wanted_ms > longest:
            key = "wait_ms_max" if waits else "deadline_ms_max"
            raise InvalidParams(f"{name}: deadline_ms is {wanted_ms}, limit is {longest} (config: protocol.{key})")
        scope.deadline_ns = time.monotonic_ns() + wanted_ms * 1_000_000

    async def ask(self, actor: str, message: Message, answer: type[Answer], scope: Scope) -> Answer:
        """Ask an actor in the order of the connection."""
        await scope.wait_turn()
        message = msgspec.structs.replace(message, caller=scope.caller)
        return await self.mailboxes[actor].ask(
            message, answer, deadline_ns=scope.deadline_ns, posted=scope.mark_posted, client=scope.client
        )

    def named(self, event: EventDraft) -> EventDraft:
        """Return an event that is recognised when it is appended twice: after a death the daemon repeats it by itself.

        Where equal content within a window is one event, only an event without an id is compared, so it gets none.
        """
        if event.event_id or event.request_id or self.config.transcript_appender.duplicate_window_s:
            return event
        made = self._ulids.make(time.time_ns() // 1000, os.urandom(RANDOM_BYTES))
        return msgspec.structs.replace(event, event_id=made)

    def hint(self) -> None:
        """Tell the builder that the truth moved, at most a few times a second; a lost hint costs a moment only."""
        now = time.monotonic()
        if now - self._hinted_at > HINT_EVERY_S:
            self._hinted_at = now
            self.mailboxes["generation_builder"].tell(TruthAdvanced(), deadline_ns=time.monotonic_ns() + 60_000_000_000)

    def page_rows(self, limit: int, method: str) -> int:
        """Return a page size within the limit."""
        most = self.config.protocol.page_rows_max
        if limit > most:
            raise InvalidParams(f"{method}: limit is {limit}, at most {most} (config: protocol.page_rows_max)")
        return limit

    async def wait_searchable(self, scope: Scope, results: Sequence[Appended]) -> bool:
        """Wait until a published view covers these events and is open; False when the deadline came first.

        Raises ActorUnavailable when nothing is made searchable at present: the events are durable all the same.
        """
        self.hint()
        event_seq = max(each.seq for each in results)
        remaining = (scope.deadline_ns - time.monotonic_ns()) / 1e9
        with trio.move_on_after(max(0.0, remaining)):
            while not self._searchable(event_seq):
                if (reason := self.health.not_building()) is not None:
                    raise _durable_only(results, reason)
                with trio.move_on_after(LOOK_EVERY_S):
                    await self.health.searcher.wait_changed()
            return True
        return False

    def _searchable(self, event_seq: int) -> bool:
        serving, searcher = self.health.builder.notice.serving, self.health.searcher.notice
        return (
            serving is not None
            and serving.covers.event_seq >= event_seq
            and searcher.view == serving.view
            and searcher.loaded > 0
        )


def _durable_only(results: Sequence[Appended], reason: str) -> ActorUnavailable:
    first, more = results[0], len(results) - 1
    named = f"event {first.event_id!r} (seq {first.seq})" + (f" and {more} more are" if more else " is")
    return ActorUnavailable(
        f"wait_for given up: {named} durable and found by words, but not made searchable by meaning: {reason}",
        outcome="committed",
        hint="do not append again; index.item says when it is searchable",
    )


def waits_long(parameters: wire.Params) -> bool:
    """Say whether a request is for work that takes as long as there is data, and its client wants to wait for it."""
    if isinstance(parameters, wire.IndexRebuild | wire.BackupCreate):
        return parameters.wait
    return isinstance(parameters, wire.BackupVerify)


class UnknownMethod(InvalidParams):
    """There is no such method."""

    code = -32601


def request_id_of_ours() -> str:
    """Return a request_id for a client that gave none: after a death the daemon repeats its write, once."""
    return f"daemon-{uuid.uuid4().hex}"


def as_json(row: Row) -> msgspec.Raw:
    """Pass a row on undecoded."""
    return msgspec.Raw(row.row)


def as_page(name: str, page: Rows) -> dict[str, object]:
    """Pass a page of rows on undecoded, under this name."""
    answer: dict[str, object] = {name: msgspec.Raw(page.rows), "more": page.more}
    if page.degraded:
        answer["degraded"] = [{"code": code, "detail": detail} for code, detail in page.degraded]
    return answer
