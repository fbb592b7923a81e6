"""What the clients were told, and whether the daemon still says the same (invariants I1 to I5).

A client notes each append before it sends it and again when it is acknowledged. Afterwards the whole of every
session is read back and compared: acknowledged events are there exactly once with their content and seq, events that
were refused as `not_executed` are absent, those of unknown outcome are there at most once, seq has no gaps.
"""

import hashlib
from typing import Any

import msgspec

from chaos.client import Client

PAGE = 500


class Append(msgspec.Struct, kw_only=True):
    """One append as its client saw it. `outcome` is `ok` once it was acknowledged."""

    request_id: str
    session_id: str
    content: str
    outcome: str = "unknown"
    seq: int | None = None
    event_id: str | None = None


class History:
    """Every append of a run."""

    def __init__(self) -> None:
        self.appends: dict[str, Append] = {}

    def begin(self, request_id: str, session_id: str, content: str) -> Append:
        """Note an append that is about to be sent; a retry is the same append."""
        append = Append(request_id=request_id, session_id=session_id, content=content)
        return self.appends.setdefault(request_id, append)

    def acknowledge(self, append: Append, result: dict[str, Any]) -> list[str]:
        """Note an acknowledgement; return what is wrong with it, if it contradicts an earlier one."""
        if append.outcome == "ok" and (append.seq, append.event_id) != (result["seq"], result["event_id"]):
            return [f"{append.request_id}: acknowledged twice, as seq {append.seq} and {result['seq']}"]
        append.outcome, append.seq, append.event_id = "ok", result["seq"], result["event_id"]
        return []

    def acknowledged(self) -> list[Append]:
        """Return the appends that were acknowledged."""
        return [append for append in self.appends.values() if append.outcome == "ok"]

    async def check(self, client: Client) -> list[str]:
        """Read everything back and return every violation (an empty list is what is wanted)."""
        # What is acknowledged while we read is not judged: the copy is taken first.
        acknowledged = {append.request_id: msgspec.structs.replace(append) for append in self.acknowledged()}
        stored: list[dict[str, Any]] = []
        for session_id in sorted({append.session_id for append in self.appends.values()}):
            stored += await read_session(client, session_id)
        return self._compare(acknowledged, stored)

    def _compare(self, acknowledged: dict[str, Append], stored: list[dict[str, Any]]) -> list[str]:
        wrong = []
        by_request: dict[str, list[dict[str, Any]]] = {}
        for event in stored:
            by_request.setdefault(event["request_id"], []).append(event)
        for request_id, append in acknowledged.items():
            found = by_request.get(request_id, [])
            if len(found) != 1:
                wrong.append(f"{request_id}: acknowledged, found {len(found)} times")
            elif found[0]["seq"] != append.seq or found[0]["event_id"] != append.event_id:
                wrong.append(f"{request_id}: acknowledged as seq {append.seq}, stored as {found[0]['seq']}")
        for request_id, found in by_request.items():
            wrong += self._compare_one(request_id, found)
        return wrong

    def _compare_one(self, request_id: str, found: list[dict[str, Any]]) -> list[str]:
        append = self.appends.get(request_id)
        if append is None:
            return [f"{request_id}: stored but never sent"]
        wrong = []
        if len(found) > 1:
            wrong.append(f"{request_id}: stored {len(found)} times")
        if append.outcome == "not_executed":
            wrong.append(f"{request_id}: refused as not executed, but stored")
        expected = hashlib.sha256(append.content.encode()).hexdigest()
        if any(event["content"] != append.content or event["content_hash"] != expected for event in found):
            wrong.append(f"{request_id}: stored with other content")
        return wrong


async def read_session(client: Client, session_id: str) -> list[dict[str, Any]]:
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


def check_order(events: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the seqs of all events of a data directory: they have no gaps and no repetitions."""
    seqs = sorted(event["seq"] for event in events)
    if seqs != list(range(1, len(seqs) + 1)):
        gaps = sorted(set(range(1, seqs[-1] + 1)) - set(seqs))
        return [f"seq has gaps or repetitions: {len(seqs)} events, highest {seqs[-1]}, missing {gaps[:10]}"]
    return []
