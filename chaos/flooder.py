"""A client that asks for as much as it can, in a process of its own: `python -m chaos.flooder SOCKET PLAN`.

PLAN is JSON: `{"seconds", "connections", "in_flight", "calls": [[method, params], …]}`. Every connection keeps so many
requests under way for so long, the calls in turn; in a text of the params `{n}` becomes a number that grows. At the
end it prints what it was told: how often which outcome, and of each refusal how long it took and what it asked for.
Apart from the measuring process, so that the flood costs it no time.
"""

import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import trio

from chaos.client import ROOT, Client, Disconnected, Hung, RpcError, environment, open_socket

SPARE_S = 60.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How to flood."""

    seconds: float
    calls: list[tuple[str, dict[str, Any]]]
    connections: int = 8
    in_flight: int = 32
    deadline_ms: int = 5000


class Told(msgspec.Struct, kw_only=True):
    """What a flooder was told, by method: outcomes, refusals without `retry_after_ms`, longest times in seconds."""

    outcomes: dict[str, dict[str, int]] = {}
    without_hint: int = 0
    refusal_s_max: dict[str, float] = {}
    seconds_max: float = 0.0

    def note(self, method: str, outcome: str, seconds: float) -> None:
        """Count one answer."""
        counts = self.outcomes.setdefault(method, {})
        counts[outcome] = counts.get(outcome, 0) + 1
        self.seconds_max = max(self.seconds_max, seconds)
        if outcome == "1001":
            self.refusal_s_max[method] = max(self.refusal_s_max.get(method, 0.0), seconds)

    def count(self, outcome: str, method: str | None = None) -> int:
        """Return how often an outcome came, of one method or of all."""
        return sum(counts.get(outcome, 0) for name, counts in self.outcomes.items() if method in (None, name))


async def flood(path: str, plan: Plan) -> Told:
    """Flood, and return what was told."""
    told = Told()
    numbers = itertools.count()
    until = time.monotonic() + plan.seconds

    async def one(client: Client) -> None:
        while time.monotonic() < until and not client.closed:
            number = next(numbers)
            method, params = plan.calls[number % len(plan.calls)]
            await call(client, method, numbered(params, number), plan.deadline_ms, told)

    async def connection() -> None:
        async with open_socket(path) as client, trio.open_nursery() as nursery:
            for _ in range(plan.in_flight):
                nursery.start_soon(one, client)

    async with trio.open_nursery() as nursery:
        for _ in range(plan.connections):
            nursery.start_soon(connection)
    return told


async def call(client: Client, method: str, params: dict[str, Any], deadline_ms: int, told: Told) -> None:
    """Make one call and note what came of it."""
    began = time.monotonic()
    outcome = "ok"
    try:
        given = {**params, "deadline_ms": deadline_ms}
        await client.call(method, given, deadline_s=deadline_ms / 1000)
    except RpcError as error:
        outcome = str(error.code)
        told.without_hint += error.code == 1001 and "retry_after_ms" not in error.data
    except Disconnected:
        outcome = "lost"
    except Hung:
        outcome = "hung"
    told.note(method, outcome, time.monotonic() - began)


def numbered(params: dict[str, Any], number: int) -> dict[str, Any]:
    """Return params with the number in place of `{n}`."""
    return {
        name: value.replace("{n}", str(number)) if isinstance(value, str) else value for name, value in params.items()
    }


async def flood_apart(data: Path, path: str, plan: Plan) -> Told:
    """Flood from another process, and return what it was told."""
    command = [sys.executable, "-P", "-m", "chaos.flooder", path, msgspec.json.encode(plan).decode()]
    with trio.fail_after(plan.seconds + plan.deadline_ms / 1000 + SPARE_S):
        done = await trio.run_process(command, capture_stdout=True, env=environment(data), cwd=ROOT)
    return msgspec.json.decode(done.stdout, type=Told)


def main() -> None:
    """Do what the command line asks for."""
    plan = msgspec.json.decode(sys.argv[2].encode(), type=Plan)
    told = trio.run(flood, sys.argv[1], plan)
    print(json.dumps(msgspec.to_builtins(told)))


if __name__ == "__main__":
    main()
