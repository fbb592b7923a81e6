"""What the clients were told, and what the daemon says now: the material of the invariants I1 to I5.

A client notes each append and each unit.put before it sends it, and what came of every attempt. Afterwards
everything is read back; `chaos.checker` compares. The notes live in this process only: the daemon never sees them.
"""

import hashlib
import time
from typing import Any, Protocol, TypeVar

import msgspec

from chaos.client import RpcError

PAGE = 500
NOT_FOUND = 1013


class Caller(Protocol):
    """Whatever makes calls: a client, or a stage that connects again by itself."""

    async def call(self, method: str, params: dict[str, Any] | None = None) -> Any:
        """Send a request and return its result."""
        ...


class Append(msgspec.Struct, kw_only=True):
    """One append as its client saw it. `outcome` is `ok` once it was acknowledged.

    `maybe` says that some attempt may have taken effect: it was lost, or refused with outcome `unknown`.
    """

    request_id: str
    session_id: str
    content: str
    outcome: str = "unknown"
    seq: int | None = None
    event_id: str | None = None
    token: str = ""  # a word that no other event has
    maybe: bool = False
    began_at: float = 0.0
    acknowledged_at: float = 0.0


class Put(msgspec.Struct, kw_only=True):
    """One unit.put as its client saw it; the same words as `Append`."""

    request_id: str
    unit_id: str
    text: str
    expected_version: int | None = None
    outcome: str = "unknown"
    version: int | None = None
    core_seq: int | None = None
    maybe: bool = False


Write = Append | Put
W = TypeVar("W", Append, Put)


class History:
    """Every append and every unit.put of a run."""

    def __init__(self) -> None:
        self.appends: dict[str, Append] = {}
        self.puts: dict[str, Put] = {}

    # ------------------------------------------------------------ appends

    def begin(self, request_id: str, session_id: str, content: str, *, token: str = "") -> Append:
        """Note an append that is about to be sent; a retry is the same append."""
        append = Append(
            request_id=request_id, session_id=session_id, content=content, token=token, began_at=time.monotonic()
        )
        return self.appends.setdefault(request_id, append)

    def acknowledge(self, append: Append, result: dict[str, Any]) -> list[str]:
        """Note an acknowledgement; return what is wrong with it, if it contradicts what is known."""
        wrong = []
        if append.outcome == "ok" and (append.seq, append.event_id) != (result["seq"], result["event_id"]):
            wrong.append(f"I3: {append.request_id}: acknowledged twice, as seq {append.seq} and {result['seq']}")
        if append.outcome != "ok":
            append.acknowledged_at = time.monotonic()
        append.outcome, append.seq, append.event_id = "ok", result["seq"], result["event_id"]
        return wrong

    def acknowledged(self) -> list[Append]:
        """Return the appends that were acknowledged."""
        return [append for append in self.appends.values() if append.outcome == "ok"]

    def writes(self) -> list[Write]:
        """Return all appends and puts."""
        return [*self.appends.values(), *self.puts.values()]

    def unresolved(self) -> list[Write]:
        """Return the writes of which nobody knows whether they took effect."""
        return [write for write in self.writes() if write.outcome == "unknown"]

    # ------------------------------------------------------------ units

    def begin_put(self, request_id: str, unit_id: str, text: str, *, expected_version: int | None = None) -> Put:
        """Note a unit.put that is about to be sent; a retry is the same put."""
        put = Put(request_id=request_id, unit_id=unit_id, text=text, expected_version=expected_version)
        return self.puts.setdefault(request_id, put)

    def acknowledge_put(self, put: Put, result: dict[str, Any]) -> list[str]:
        """Note the acknowledgement of a put; return contradictions."""
        wrong = []
        if put.outcome == "ok" and (put.version, put.core_seq) != (result["version"], result["core_seq"]):
            wrong.append(f"I3: {put.request_id}: acknowledged twice, as version {put.version} and {result['version']}")
        if result["text"] != put.text:
            wrong.append(f"I4: {put.request_id}: acknowledged with the text of another put")
        put.outcome, put.version, put.core_seq = "ok", result["version"], result["core_seq"]
        return wrong

    # ------------------------------------------------------------ reading back

    async def check(self, client: Caller) -> list[str]:
        """Read every event back and return every violation (an empty list is what is wanted)."""
        from chaos.checker import check_appends

        # What is acknowledged while we read is not judged: the copy is taken first.
        known = snapshot(self.appends)
        return check_appends(known, await read_events(client, self), everything=self.appends)


def snapshot(writes: dict[str, W]) -> dict[str, W]:
    """Return a copy that goes on saying what was known now."""
    return {request_id: msgspec.structs.replace(write) for request_id, write in writes.items()}


def again(write: Write) -> None:
    """Note that a refused write is sent once more: until its answer, nobody knows."""
    if write.outcome == "not_executed":
        write.outcome = "unknown"


def refused(write: Write, outcome: str) -> None:
    """Note that an attempt did not succeed; `outcome` is what the error said became of it."""
    if outcome == "not_executed" and not write.maybe:
        write.outcome = "not_executed"
    elif write.outcome != "ok":
        write.maybe = write.maybe or outcome != "not_executed"
        write.outcome = "unknown"


def content_hash(content: str) -> str:
    """Return the hash that an event with this content carries."""
    return hashlib.sha256(content.encode()).hexdigest()


async def read_events(client: Caller, history: History) -> list[dict[str, Any]]:
    """Return all events of all sessions of the history."""
    stored: list[dict[str, Any]] = []
    for session_id in sorted({append.session_id for append in history.appends.values()}):
        stored += await read_session(client, session_id)
    return stored


async def read_session(client: Caller, session_id: str) -> list[dict[str, Any]]:
    """Return all events of a session, in order."""
    events: list[dict[str, Any]] = []
    after = 0
    while True:
        params = {"session_id": session_id, "after_seq": after, "limit": PAGE}
        page = await client.call("session.history", params)
        events += page["events"]
        if not page["more"]:
            return events
        after = page["events"][-1]["seq"]


async def read_versions(client: Caller, unit_id: str) -> list[dict[str, Any]]:
    """Return all versions of a unit, the oldest first; none when there is no such unit."""
    versions: list[dict[str, Any]] = []
    params: dict[str, Any] = {"unit_id": unit_id, "limit": PAGE}
    while True:
        try:
            page = await client.call("unit.history", params)
        except RpcError as error:
            if error.code == NOT_FOUND:
                return []
            raise
        versions += page["versions"]
        if not page["more"]:
            return versions[::-1]
        params["before_version"] = page["versions"][-1]["version"]


def check_order(events: list[dict[str, Any]], *, breaks: int = 0) -> list[str]:
    """Return what is wrong with the seqs of all events of a data directory: no gaps, no repetitions.

    `breaks` is how many gaps are allowed: one for each damaged segment that was sealed.
    """
    from chaos.checker import check_order as check

    return check([event["seq"] for event in events], breaks=breaks)
