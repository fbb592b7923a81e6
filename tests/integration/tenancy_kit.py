"""A daemon of several tenants, each with canaries in everything that it stores."""

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import trio

from chaos.client import Client, Disconnected, Hung, RpcError, open_socket
from chaos.daemon import Daemon, wait_gone
from supervisor.principals import token_digest
from tests.integration.attacks import COMMON, Loot
from tests.integration.conftest import CONFIG, indexed

# Names that a pattern, a folding or a prefix would take for one another. The last two never attack: one is looked at
# from outside by the other, which nobody's requests have changed.
TENANTS = {"a": "a_b", "b": "aXb", "c": "A_B", "d": "a.b", "w": "bystander", "v": "vault"}
OPERATOR = "operator"
SESSIONS, EVENTS, UNITS, NOTES = 4, 5, 8, 3
DRAIN_S = 20.0


class Tenant(NamedTuple):
    """One tenant: the letter of its canaries and the name under which it is known."""

    letter: str
    name: str

    @property
    def principal(self) -> str:
        """Return who may do everything there that is not an operator's."""
        return f"{self.letter}-user"

    @property
    def admin(self) -> str:
        """Return who adds its notes."""
        return f"{self.letter}-admin"


ALL = tuple(Tenant(letter, name) for letter, name in TENANTS.items())
*ATTACKERS, BYSTANDER, VICTIM = ALL


def token_of(principal: str) -> str:
    """Return the token of a principal of these tests."""
    return f"token of {principal}"


def configure(folder: Path, extra: str = "") -> str:
    """Write the file of principals and return a configuration that names it."""
    entries = [_entry(OPERATOR, "operators", ["admin", "read"])]
    for tenant in ALL:
        entries.append(_entry(tenant.principal, tenant.name, ["read", "write", "forget"]))
        entries.append(_entry(tenant.admin, tenant.name, ["read", "write", "forget", "admin"]))
    path = folder / "principals.toml"
    path.write_text("".join(entries), encoding="utf-8")
    path.chmod(0o600)
    return f'{CONFIG}{extra}[principals]\nfile = "{path}"\n'


def _entry(name: str, tenant: str, may: list[str]) -> str:
    members = {"name": name, "tenant": tenant, "may": may, "token_sha256": token_digest(token_of(name))}
    return "[[principal]]\n" + "".join(f"{key} = {value!r}\n" for key, value in members.items())


@asynccontextmanager
async def connected(daemon: Daemon, principal: str) -> AsyncIterator[Client]:
    """Connect as somebody."""
    async with open_socket(daemon.socket_path) as client:
        await client.call("hello", {"client": "test", "token": token_of(principal)})
        yield client


@asynccontextmanager
async def running(data: Path, text: str) -> AsyncIterator[Daemon]:
    """Run a daemon on this configuration."""
    config = data.with_name("config.toml")
    config.write_text(text, encoding="utf-8")
    daemon = Daemon(data, config)
    daemon.start()
    try:
        await daemon.connected()
        yield daemon
    finally:
        with trio.CancelScope(shield=True):
            await drain(daemon)


async def drain(daemon: Daemon) -> None:
    """Stop it as an operator does."""
    pid = daemon.pid()
    try:
        async with connected(daemon, OPERATOR) as operator:
            await operator.call("system.drain")
    except (OSError, RpcError, Disconnected, Hung):
        daemon.kill()
    if not await wait_gone(pid, DRAIN_S):
        daemon.kill()
        raise TimeoutError("the daemon did not drain")
    if daemon.process is not None:
        daemon.process.wait(5)
        daemon.process = None


class Canaries:
    """Makes the canaries of a tenant: secret ones, and those that everybody may know."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self._chance = random.Random(letter)

    def __call__(self) -> str:
        """Return a new one."""
        return f"qz{self._letter}x{self._chance.randrange(16**10):010x}"


async def populate(daemon: Daemon, folder: Path) -> Loot:
    """Give every tenant something of everything, and return what attackers know of it."""
    loot: Loot = defaultdict(list)
    for tenant in ALL:
        async with connected(daemon, tenant.admin) as client:
            await _fill(client, tenant, folder, loot)
    async with connected(daemon, OPERATOR) as operator:
        await indexed(operator, lambda status: status["rows"]["documents"] >= len(ALL) * NOTES)
    loot["word"] += COMMON
    return dict(loot)


async def _fill(client: Client, tenant: Tenant, folder: Path, loot: Loot) -> None:
    canary = Canaries(tenant.letter)
    loot["tenant"].append(tenant.name)
    fill = _Filling(client, canary, loot)
    sessions = [await fill.session() for _ in range(SESSIONS)]
    events = [await fill.event(session) for session in sessions for _ in range(EVENTS)]
    for number in range(UNITS):
        await fill.unit(sessions[number % SESSIONS], events[number])
    await fill.coordination(sessions)
    await fill.notes(folder)


class _Filling:
    """Fills one tenant. What goes into `loot` is known to everybody; whatever else has a canary is secret."""

    def __init__(self, client: Client, canary: Canaries, loot: Loot) -> None:
        self._call: Callable[[str, dict[str, Any]], Awaitable[Any]] = client.call
        self._canary = canary
        self._loot = loot

    def _known(self, kind: str, value: str) -> str:
        self._loot[kind].append(value)
        return value

    def _text(self) -> str:
        return f"The {' '.join(COMMON)} of the year {self._canary()} and what came of it"

    async def session(self) -> str:
        session = self._known("session", f"{self._canary()}-session")
        agent = self._known("agent", self._canary())
        opened = await self._call(
            "session.open",
            {
                "session_id": session,
                "title": self._canary(),
                "agent": agent,
                "meta": {self._canary(): self._canary()},
                "request_id": self._known("request", self._canary()),
            },
        )
        self._known("cursor", opened["cursor"])
        return session

    async def event(self, session: str) -> str:
        event = self._known("event", self._canary())
        self._known("item", event)
        appended = await self._call(
            "event.append",
            {
                "session_id": session,
                "actor": "user",
                "content": self._text(),
                "event_id": event,
                "tags": ["shared", self._known("tag", self._canary()), self._canary()],
                "meta": {"note": self._canary()},
                "channel": self._canary(),
                "project": self._canary(),
                "trace_id": self._canary(),
                "request_id": self._known("request", self._canary()),
            },
        )
        self._known("citation", f"session:{session}#{appended['seq']}")
        # One that nobody knows of.
        await self._call(
            "event.append", {"session_id": f"{self._canary()}-quiet", "actor": "tool", "content": self._text()}
        )
        return event

    async def unit(self, session: str, event: str) -> None:
        unit = self._known("unit", self._canary())
        self._known("item", unit)
        for _ in range(2):
            await self._call(
                "unit.put",
                {
                    "unit_id": unit,
                    "type": "summary",
                    "scope": "session",
                    "text": self._text(),
                    "facts": {self._canary(): [self._canary()]},
                    "tags": ["shared", self._canary()],
                    "session_id": session,
                    "event_refs": [event, self._canary()],
                    "parent_unit_id": self._canary(),
                    "request_id": self._known("request", self._canary()),
                },
            )

    async def coordination(self, sessions: list[str]) -> None:
        for session in sessions[:2]:
            claim = await self._call(
                "claim.acquire", {"session_id": session, "holder": self._canary(), "lease_ms": 300_000}
            )
            self._known("claim", claim["claim_id"])
        for number in range(3):
            made = await self._call(
                "approval.request",
                {"action": self._text(), "detail": {"why": self._canary()}, "session_id": sessions[0]},
            )
            self._known("approval", made["approval_id"])
            self._known("cursor", made["approval_id"])
            if number:
                decision = {"approval_id": made["approval_id"], "decision": "denied", "reason": self._canary()}
                await self._call("approval.decide", decision)
        for kind in ("summarize", "verify", "archive"):
            key = self._known("key", self._canary())
            job = await self._call(
                "job.add", {"kind": kind, "payload": {"what": self._canary()}, "key": key, "session_id": sessions[0]}
            )
            self._known("job", job["job_id"])
        quiet = {"session_id": f"{self._canary()}-gone", "actor": "user", "content": self._text()}
        gone = await self._call("event.append", quiet)
        order = {"ids": [gone["event_id"]], "reason": self._canary()}
        self._known("forget", (await self._call("memory.forget", order))["forget_id"])

    async def notes(self, folder: Path) -> None:
        root = folder / self._canary()
        root.mkdir()
        name = self._known("source", self._canary())
        for _ in range(NOTES):
            note = root / f"{self._canary()}.md"
            note.write_text(f"# {self._canary()}\n\n{self._text()}\n", encoding="utf-8")
            self._known("path", f"{name}/{note.name}")
            self._known("item", f"{name}/{note.name}#L1-L3")
            self._known("path", str(note))
        # What cannot be read is told in index.status, with its path and why.
        (root / f"{self._canary()}.md").write_bytes(b"\x00\x01\x02" * 100)
        added = await self._call("source.add", {"path": str(root), "name": name})
        self._known("source", added["source_id"])
        self._known("path", str(root))
