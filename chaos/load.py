"""The mixed load: clients that keep a daemon busy, note what they are told, and compare it with what they were told.

Each client has a connection of its own (the socket, or a bridge) and does one thing after the other. A connection
that ends is opened anew with a bounded backoff. A write of unknown outcome is repeated with the same request_id; what
could not be resolved stays in the history as unknown. Deterministic from the seed as far as timing permits.
"""

import random
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec
import trio

from chaos.client import Client, Disconnected, Hung, RpcError
from chaos.history import Append, History, Put, again, content_hash, refused
from chaos.lag import LagMeter
from chaos.timeline import HUNG, LOST, Op, percentile

__all__ = ["Load", "Recorder", "percentile", "sentence"]

TEXT = (
    "deploy rollback index writer 记忆 检索 乌龙茶 project deadline sqlite lance fsync 会议 周一 预算 Anna 陈伟 "
    "latency budget error-42 build_7 v2.3.1 config.toml 部署 数据库 备份"
)
WORDS = TEXT.split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
DEADLINE_S = 5.0
RECONNECT_S_MIN, RECONNECT_S_MAX = 0.02, 0.5
RETRY_S_MIN, RETRY_S_MAX = 0.02, 0.5
PAGE_ROWS = 50
GIVE_UP_S = 60.0
POISON, CONFLICT, NO_METHOD = 1006, 1014, -32601
# Parts of an answer without which an acknowledged event need not be among the hits.
NOT_ALL_EVENTS = frozenset({"events_unavailable", "keyword_index_behind"})


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How many clients of each kind, their pause between requests and the deadline of each, what may fail at will."""

    appenders: int = 2
    searchers: int = 1
    writers: int = 1
    readers: int = 1
    pause_s: float = 0.02
    deadline_s: float = DEADLINE_S
    bridges: bool = False
    ignore: frozenset[str] = frozenset()


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one request: its result, or its error, or neither (lost, hung)."""

    result: Any = None
    error: RpcError | None = None


class Recorder:
    """What all clients of a run share: the operations, the history, the contradictions."""

    def __init__(self, history: History, lag: LagMeter, *, deadline_s: float = DEADLINE_S) -> None:
        self.history = history
        self.deadline_s = deadline_s
        self.lag = lag
        self.ops: list[Op] = []
        self.violations: list[str] = []
        self.acknowledged: dict[str, list[Append]] = {}  # by session, in order
        self.bad_lines = 0
        self.strays = 0
        self.connections = 0

    async def attempt(
        self,
        client: Client,
        name: str,
        method: str,
        params: dict[str, Any],
        *,
        deadline_s: float | None = None,
        expect: int | None = None,
    ) -> Attempt:
        """Send one request and note it. An error with the code `expect` is what has to come, and counts as ok."""
        deadline_s = self.deadline_s if deadline_s is None else deadline_s
        began = time.monotonic()
        given = {**params, "deadline_ms": int(deadline_s * 1000)}
        outcome, detail, attempt = "ok", "", Attempt()
        try:
            attempt = Attempt(result=await client.call(method, given, deadline_s=deadline_s))
        except RpcError as error:
            attempt, detail = Attempt(error=error), f"{method}: {error.message}"
            outcome = "ok" if error.code == expect else str(error.code)
        except Disconnected:
            outcome, detail = LOST, method
        except Hung:
            outcome, detail = HUNG, method
        ended = time.monotonic()
        found = attempt.result if method == "memory.search" else None
        op = Op(
            at=began,
            name=name,
            seconds=ended - began,
            outcome=outcome,
            detail=detail,
            late_s=ended - began - deadline_s - self.lag.worst(began, ended),
            degraded=tuple(sorted({each["code"] for each in found["degraded"]})) if found else (),
            generation=found["generation"] if found else None,
        )
        self.ops.append(op)
        return attempt

    def note_acknowledged(self, append: Append) -> None:
        """Let readers and searchers expect this event from now on."""
        self.acknowledged.setdefault(append.session_id, []).append(append)

    def closed(self, client: Client) -> None:
        """Take over what a connection counted."""
        self.bad_lines += client.bad_lines
        self.strays += len(client.strays)


class Worker(Protocol):
    """One client's trade."""

    async def step(self, client: Client) -> None:
        """Do the next operation."""
        ...


class Clients:
    """All clients of a load, from `start` until `stop` has let each finish what it is doing."""

    def __init__(
        self,
        load: Load,
        recorder: Recorder,
        connect: Callable[[], AbstractAsyncContextManager[Client]],
        rng: random.Random,
        *,
        prefix: str = "s",
    ) -> None:
        def own() -> random.Random:
            return random.Random(rng.random())

        self.load = load
        self._recorder = recorder
        self._connect = connect
        self._stopping = trio.Event()
        self._stopped = trio.Event()
        self._workers: list[Worker] = [
            *(Appender(recorder, own(), f"{prefix}{number}") for number in range(load.appenders)),
            *(Writer(recorder, own(), f"{prefix}-unit-{number}") for number in range(load.writers)),
            *(Searcher(recorder, own()) for _ in range(load.searchers)),
            *(Reader(recorder, own()) for _ in range(load.readers)),
        ]

    async def run(self) -> None:
        """Keep every client at work until `stop`."""
        async with trio.open_nursery() as nursery:
            for worker in self._workers:
                nursery.start_soon(self._serve, worker)
        self._stopped.set()

    async def stop(self) -> None:
        """Let every client finish its operation, and wait for it."""
        self._stopping.set()
        await self._stopped.wait()

    async def _serve(self, worker: Worker) -> None:
        pause_s = RECONNECT_S_MIN
        while not self._stopping.is_set():
            client: Client | None = None
            try:
                async with self._connect() as client:
                    self._recorder.connections += 1
                    pause_s = RECONNECT_S_MIN
                    await self._work(worker, client)
            except Hung as error:
                self._recorder.violations.append(f"I6: {error}")
            except (OSError, Disconnected, trio.BrokenResourceError, trio.ClosedResourceError):
                pause_s = min(RECONNECT_S_MAX, pause_s * 2)
            finally:
                if client is not None:
                    self._recorder.closed(client)
            await self._rest(pause_s)

    async def _work(self, worker: Worker, client: Client) -> None:
        while not self._stopping.is_set() and not client.closed:
            await worker.step(client)
            await self._rest(self.load.pause_s)

    async def _rest(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._stopping.wait()


class Appender:
    """Appends to a session of its own, each event until it is acknowledged or refused for good."""

    def __init__(self, recorder: Recorder, rng: random.Random, session_id: str) -> None:
        self._recorder = recorder
        self._rng = rng
        self._session_id = session_id
        self._number = 0
        self._pending: Append | None = None

    async def step(self, client: Client) -> None:
        """Append one event, or repeat the one that is not settled; look at it now and then."""
        append = self._pending = self._pending or self._next()
        again(append)
        attempt = await self._recorder.attempt(client, "append", "event.append", append_params(append))
        if attempt.result is not None:
            self._recorder.violations += self._recorder.history.acknowledge(append, attempt.result)
            self._recorder.note_acknowledged(append)
            self._pending = None
            if self._rng.random() < 0.2:
                await read_event(self._recorder, client, append)
        else:
            keep = await settle_refusal(client, append, attempt.error, self._rng)
            self._pending = append if keep else None

    def _next(self) -> Append:
        self._number += 1
        token = new_token(self._rng)
        content = f"{sentence(self._rng)} {token} #{self._number}"
        request_id = f"{self._session_id}-{self._number}"
        return self._recorder.history.begin(request_id, self._session_id, content, token=token)


class Writer:
    """Changes units of its own: plainly, by compare-and-set, and with a stale version, which must be refused."""

    UNITS = 5

    def __init__(self, recorder: Recorder, rng: random.Random, prefix: str) -> None:
        self._recorder = recorder
        self._rng = rng
        self._prefix = prefix
        self._number = 0
        self._pending: Put | None = None
        self._stale = False  # the pending put must be refused
        self._latest: dict[str, tuple[int, str] | None] = {}  # version and text; None while it is not known

    async def step(self, client: Client) -> None:
        """Put one version, or repeat the one that is not settled; read it back now and then."""
        put = self._pending = self._pending or self._next()
        again(put)
        expect = CONFLICT if self._stale else None
        attempt = await self._recorder.attempt(client, "unit", "unit.put", put_params(put), expect=expect)
        if attempt.result is not None:
            await self._accepted(client, put, attempt.result)
        elif attempt.error is not None and attempt.error.code == expect:
            refused(put, "not_executed")
            self._pending = None
        else:
            keep = await settle_refusal(client, put, attempt.error, self._rng)
            self._pending = put if keep else None
            if put.outcome == "unknown" and not self._stale:
                self._latest[put.unit_id] = None

    async def _accepted(self, client: Client, put: Put, result: dict[str, Any]) -> None:
        recorder = self._recorder
        recorder.violations += recorder.history.acknowledge_put(put, result)
        if self._stale:
            recorder.violations.append(f"I4: {put.request_id}: a put with a stale expected_version was accepted")
        self._pending = None
        self._latest[put.unit_id] = (result["version"], put.text)
        if self._rng.random() < 0.3:
            await self._read(client, put.unit_id, result["version"], put.text)

    async def _read(self, client: Client, unit_id: str, version: int, text: str) -> None:
        attempt = await self._recorder.attempt(client, "unit", "unit.get", {"unit_id": unit_id})
        found = attempt.result
        if attempt.error is not None and attempt.error.code == NOT_FOUND:
            self._recorder.violations.append(f"I5: unit {unit_id}: version {version} was acknowledged, none is found")
        if found is not None and (found["version"], found["text"]) != (version, text):
            self._recorder.violations.append(
                f"I5: unit {unit_id}: version {version} was acknowledged, version {found['version']} is read"
            )

    def _next(self) -> Put:
        self._number += 1
        unit_id = f"{self._prefix}-{self._rng.randrange(self.UNITS)}"
        known = self._latest.get(unit_id, (0, ""))
        choice = self._rng.random()
        self._stale = known is not None and known[0] > 1 and choice < 0.1
        expected: int | None = None
        if known is not None and self._stale:
            expected = known[0] - 1
        elif known is not None and choice < 0.4:
            expected = known[0]
        text = f"{sentence(self._rng)} {new_token(self._rng)} #{self._number}"
        return self._recorder.history.begin_put(
            f"{self._prefix}-put-{self._number}", unit_id, text, expected_version=expected
        )


class Reader:
    """Reads the end of a session, or one event, and compares with what had been acknowledged before it asked."""

    def __init__(self, recorder: Recorder, rng: random.Random) -> None:
        self._recorder = recorder
        self._rng = rng

    async def step(self, client: Client) -> None:
        """Read once."""
        known = self._recorder.acknowledged
        if not known:
            return
        session_id = self._rng.choice(sorted(known))
        if self._rng.random() < 0.3:
            await read_event(self._recorder, client, self._rng.choice(known[session_id]))
        else:
            await self._read_page(client, session_id)

    async def _read_page(self, client: Client, session_id: str) -> None:
        recent = self._recorder.acknowledged[session_id][-PAGE_ROWS:]
        params = {"session_id": session_id, "limit": PAGE_ROWS}
        attempt = await self._recorder.attempt(client, "history", "session.history", params)
        if attempt.result is not None:
            self._recorder.violations += check_page(session_id, recent, attempt.result["events"])


class Searcher:
    """Searches for words, and now and then for a word that exactly one acknowledged event holds (P8)."""

    def __init__(self, recorder: Recorder, rng: random.Random) -> None:
        self._recorder = recorder
        self._rng = rng

    async def step(self, client: Client) -> None:
        """Search once."""
        sessions = [appends for appends in self._recorder.acknowledged.values() if appends]
        if not sessions or self._rng.random() < 0.7:
            params: dict[str, Any] = {"query": sentence(self._rng), "limit": 5}
            await self._recorder.attempt(client, "search", "memory.search", params)
            return
        # Half of them are as young as possible: not in a generation yet.
        appends = self._rng.choice(sessions)
        wanted = appends[-1] if self._rng.random() < 0.5 else self._rng.choice(appends)
        params = {"query": wanted.token, "limit": 5}
        if self._rng.random() < 0.5:
            params["mode"] = "keyword"
        attempt = await self._recorder.attempt(client, "search", "memory.search", params)
        if attempt.result is not None:
            self._recorder.violations += check_hits(wanted, attempt.result)


def check_hits(wanted: Append, found: dict[str, Any]) -> list[str]:
    """Check that the one event with this word is among the hits (I5), unless the answer says what it lacks."""
    codes = {each["code"] for each in found["degraded"]}
    if wanted.event_id in {hit["id"] for hit in found["hits"]} or codes & NOT_ALL_EVENTS:
        return []
    return [
        f"I5: {wanted.request_id} was acknowledged as seq {wanted.seq} before a search for its word "
        f"{wanted.token!r} began, and is not among its {len(found['hits'])} hits "
        f"(generation {found['generation']}, covers {found['covers']}, degraded {sorted(codes)})"
    ]


def check_page(session_id: str, known: list[Append], events: list[dict[str, Any]]) -> list[str]:
    """Check the last page of a session against what had been acknowledged before it was asked for (I5)."""
    by_id = {event["event_id"]: event for event in events}
    first = events[0]["seq"] if events else 0
    wrong = []
    for append in known:
        assert append.seq is not None
        event = by_id.get(append.event_id or "")
        if event is None and append.seq >= first:
            wrong.append(f"I5: session {session_id!r}: acknowledged seq {append.seq} is not in its last page")
        elif event is not None and event["content"] != append.content:
            wrong.append(f"I4: session {session_id!r}: seq {append.seq} is read with other content than was sent")
    return wrong


async def read_event(recorder: Recorder, client: Client, append: Append) -> None:
    """Read one acknowledged event and compare."""
    attempt = await recorder.attempt(client, "history", "event.get", {"event_id": append.event_id})
    if attempt.error is not None and attempt.error.code == NOT_FOUND:
        recorder.violations.append(f"I5: {append.request_id}: acknowledged as seq {append.seq}, but not found")
    found = attempt.result
    if found is not None and (found["seq"], found["content_hash"]) != (append.seq, content_hash(append.content)):
        recorder.violations.append(f"I4: {append.request_id}: read as seq {found['seq']} with another content hash")


NOT_FOUND = 1013


async def settle_refusal(client: Client, write: Append | Put, error: RpcError | None, rng: random.Random) -> bool:
    """Note a write that was not acknowledged; say whether it is to be repeated.

    Some of those refused as not executed are given up, so that their absence can be checked.
    """
    if error is None:
        refused(write, "unknown")
        return True
    refused(write, error.outcome)
    if error.code == POISON:
        return await clear_poison(client)
    if not error.data.get("retryable") or (write.outcome == "not_executed" and rng.random() < 0.25):
        return False
    await trio.sleep(min(RETRY_S_MAX, max(RETRY_S_MIN, (error.data.get("retry_after_ms") or 0) / 1000)))
    return True


async def clear_poison(client: Client) -> bool:
    """Have the daemon forget which messages its actors died of; False when it has no such command."""
    try:
        await client.call("poison.clear", {})
    except RpcError as error:
        return error.code != NO_METHOD
    return True


def append_params(append: Append) -> dict[str, Any]:
    """Return the parameters of event.append."""
    return {
        "session_id": append.session_id,
        "actor": "user",
        "content": append.content,
        "request_id": append.request_id,
    }


def put_params(put: Put) -> dict[str, Any]:
    """Return the parameters of unit.put."""
    params: dict[str, Any] = {
        "unit_id": put.unit_id,
        "type": "plan",
        "scope": "global",
        "text": put.text,
        "request_id": put.request_id,
    }
    if put.expected_version is not None:
        params["expected_version"] = put.expected_version
    return params


async def append_until_acknowledged(client: Client, append: Append, history: History) -> list[str]:
    """Send an append, and again with the same request_id, until it is acknowledged; return contradictions.

    Raises RpcError for a refusal that is final, or after a minute.
    """
    give_up = time.monotonic() + GIVE_UP_S
    while True:
        try:
            return history.acknowledge(append, await client.call("event.append", append_params(append)))
        except RpcError as error:
            refused(append, error.outcome)
            cleared = error.code == POISON and await clear_poison(client)
            if not (cleared or error.data.get("retryable")) or time.monotonic() > give_up:
                raise
        await trio.sleep(RETRY_S_MIN)


def sentence(rng: random.Random) -> str:
    """Return a few words that look like a note."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 12)))


def new_token(rng: random.Random) -> str:
    """Return a word that nothing else holds."""
    return "zq" + "".join(rng.choice(LETTERS) for _ in range(12))
