"""What a damaged daemon may say: a few events and units whose every byte is known, and a comparison with the answers.

Wrong is: a row that was never stored, a row with other content, and a row that is missing from a complete answer of an
actor that claims to be whole. Not wrong: a typed error, and an answer that says what it lacks.
"""

import random
from typing import Any

from chaos.client import Client, RpcError
from chaos.history import read_session
from chaos.load import new_token, sentence

SESSION = "book"
# What a client may be told by an actor that cannot read its file, or is just being replaced.
TYPED = frozenset({1002, 1003, 1004, 1008, 1009, 1010, 1011, 1012, 1013})
NOT_FOUND = 1013
PROBES = 5


class Book:
    """Events by id, units by id, as they were acknowledged."""

    def __init__(self) -> None:
        self.events: dict[str, tuple[int, str, str]] = {}  # seq, content, the one word that only it holds
        self.units: dict[str, tuple[int, str]] = {}

    async def fill(self, client: Client, rng: random.Random, count: int) -> None:
        """Write so many events and a few units."""
        for _ in range(count):
            token = new_token(rng)
            content = f"{sentence(rng)} {token}"
            stored = await client.call(
                "event.append", {"session_id": SESSION, "actor": "user", "content": content, "request_id": token}
            )
            self.events[stored["event_id"]] = (stored["seq"], content, token)
        for _ in range(max(1, count // 4)):
            text = f"{sentence(rng)} {new_token(rng)}"
            unit = await client.call("unit.put", {"type": "plan", "scope": "global", "text": text})
            self.units[unit["unit_id"]] = (unit["version"], text)

    async def compare_events(self, client: Client) -> tuple[list[str], set[str]]:
        """Read all events; return what is wrong with them, and the ids that no answer holds."""
        wrong: list[str] = []
        try:
            found = await read_session(client, SESSION)
        except RpcError as error:
            return refusal("session.history", error), set(self.events)
        for event in found:
            known = self.events.get(event["event_id"])
            if known is not None and (event["seq"], event["content"]) != known[:2]:
                wrong.append(f"event {event['event_id']} is read as {event['seq']} {event['content']!r}, was {known}")
            elif known is None and event["seq"] <= len(self.events):
                wrong.append(f"event {event['event_id']} was never stored: {event['content']!r}")
        return wrong, set(self.events) - {event["event_id"] for event in found}

    async def compare_units(self, client: Client) -> tuple[list[str], set[str]]:
        """Read all units; return what is wrong with them, and the ids that no answer holds."""
        wrong: list[str] = []
        missing = set()
        for unit_id, (version, text) in self.units.items():
            try:
                unit = await client.call("unit.get", {"unit_id": unit_id})
            except RpcError as error:
                wrong += refusal("unit.get", error)
                missing.add(unit_id)
                continue
            if (unit["version"], unit["text"]) != (version, text):
                wrong.append(f"unit {unit_id} is read as {unit['version']} {unit['text']!r}, was {version} {text!r}")
        return wrong, missing

    async def compare_search(self, client: Client, rng: random.Random, *, complete: bool) -> tuple[list[str], Any]:
        """Search for some events by their own word; return what is wrong with the hits, and the last answer.

        With `complete` every one of them must be the first hit.
        """
        wrong: list[str] = []
        found: Any = None
        for event_id, (_, content, token) in rng.sample(sorted(self.events.items()), min(PROBES, len(self.events))):
            try:
                found = await client.call("memory.search", {"query": token, "limit": 5})
            except RpcError as error:
                wrong += refusal("memory.search", error)
                continue
            hits = {hit["id"]: hit["snippet"] for hit in found["hits"]}
            if complete and event_id not in hits:
                wrong.append(f"{token!r} finds {sorted(hits)} and not {event_id}, degraded {found['degraded']}")
            if event_id in hits and token not in hits[event_id]:
                wrong.append(f"the hit for {token!r} shows {hits[event_id]!r}, the event is {content!r}")
        return wrong, found


def refusal(method: str, error: RpcError) -> list[str]:
    """Return nothing for an error that a damaged file may cause, and what is wrong with any other."""
    return [] if error.code in TYPED else [f"{method} failed with {error.code}: {error.message}"]
