"""How to reach the worker of each actor with one request of a word of one's own.

Faults inside workers are aimed at a word (`chaos.faults`, `text=`), so they hit the request of the scenario and not one
of the mixed load. Events and units that are written so are noted in the history like those of the load, so the checker
judges them as well.
"""

import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from chaos.client import Client, Disconnected, Hung, RpcError
from chaos.history import again, refused
from chaos.load import append_params, put_params
from chaos.stage import Stage

SESSION = "probe"
NOT_FOUND = 1013
CACHE_BYTES = 1 << 40


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One road into a worker. `aim` narrows the fault down; with `by_word` the word of the request does it as well."""

    actor: str
    method: str
    params: Callable[[str], Mapping[str, object]]
    aim: Mapping[str, str]
    by_word: bool = True
    expected: int | None = None  # the error that the request gets when all is well (a read of what does not exist)
    writes: bool = False

    def fault(self, word: str) -> dict[str, object]:
        """Return what limits a fault to this request."""
        return {**self.aim, "text": word} if self.by_word else dict(self.aim)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one request; `outcome` as in `stage.Op`."""

    at: float
    seconds: float
    outcome: str
    result: Any = None
    error: RpcError | None = None

    @property
    def ok(self) -> bool:
        """Say whether it was answered as if nothing had been."""
        return self.outcome == "ok"


CORE_WRITE = Target(
    actor="core_writer", method="unit.put", params=lambda word: {}, aim={"message": "PutUnit"}, writes=True
)
CORE_READ = Target(
    actor="core_writer",
    method="unit.get",
    params=lambda word: {"unit_id": word},
    aim={"message": "GetUnit"},
    expected=NOT_FOUND,
)
TRANSCRIPT_WRITE = Target(
    actor="transcript_appender",
    method="event.append",
    params=lambda word: {},
    aim={"message": "AppendBatch"},
    writes=True,
)
TRANSCRIPT_READ = Target(
    actor="transcript_appender",
    method="event.get",
    params=lambda word: {"event_id": word},
    aim={"message": "GetEvent"},
    expected=NOT_FOUND,
)
CACHE = Target(
    actor="cache_manager", method="cache.stats", params=lambda word: {}, aim={"message": "CacheStats"}, by_word=False
)
CACHE_WRITE = Target(
    actor="cache_manager",
    method="cache.trim",
    # Another number for each word, far above what the cache holds: every request is a message of its own.
    params=lambda word: {"bytes_max": CACHE_BYTES + zlib.crc32(word.encode())},
    aim={"message": "TrimCache"},
    by_word=False,
)
SEARCH = Target(
    actor="searcher",
    method="memory.search",
    params=lambda word: {"query": word, "limit": 5},
    aim={"message": "Query"},
)
TARGETS = {
    "core_writer": CORE_WRITE,
    "core_writer_read": CORE_READ,
    "transcript_appender": TRANSCRIPT_WRITE,
    "transcript_appender_read": TRANSCRIPT_READ,
    "cache_manager": CACHE,
    "cache_manager_write": CACHE_WRITE,
    "searcher": SEARCH,
}


async def ask(stage: Stage, client: Client, target: Target, word: str, *, deadline_s: float) -> Answer:
    """Send the request of a target and return what came of it; never raises for what a daemon may answer."""
    if target is CORE_WRITE:
        return await _put(stage, client, word, deadline_s)
    if target is TRANSCRIPT_WRITE:
        return await _append(stage, client, word, deadline_s)
    return await attempt(
        client, target.method, dict(target.params(word)), deadline_s=deadline_s, expected=target.expected
    )


async def attempt(
    client: Client, method: str, params: dict[str, object], *, deadline_s: float, expected: int | None = None
) -> Answer:
    """Send one request with a deadline."""
    began = time.monotonic()
    given = {**params, "deadline_ms": int(deadline_s * 1000)}
    result, raised, outcome = None, None, "ok"
    try:
        result = await client.call(method, given, deadline_s=deadline_s)
    except RpcError as error:
        raised = error
        outcome = "ok" if error.code == expected else str(error.code)
    except Disconnected:
        outcome = "lost"
    except Hung:
        outcome = "hung"
    return Answer(at=began, seconds=time.monotonic() - began, outcome=outcome, result=result, error=raised)


async def _append(stage: Stage, client: Client, word: str, deadline_s: float) -> Answer:
    append = stage.history.begin(f"{SESSION}-{word}", SESSION, f"probe {word}", token=word)
    again(append)
    answer = await attempt(client, "event.append", dict(append_params(append)), deadline_s=deadline_s)
    if answer.result is not None:
        stage.violations.extend(stage.history.acknowledge(append, answer.result))
    else:
        refused(append, answer.error.outcome if answer.error is not None else "unknown")
    return answer


async def _put(stage: Stage, client: Client, word: str, deadline_s: float) -> Answer:
    put = stage.history.begin_put(f"{SESSION}-{word}", f"{SESSION}-{word}", f"probe {word}")
    again(put)
    answer = await attempt(client, "unit.put", dict(put_params(put)), deadline_s=deadline_s)
    if answer.result is not None:
        stage.violations.extend(stage.history.acknowledge_put(put, answer.result))
    else:
        refused(put, answer.error.outcome if answer.error is not None else "unknown")
    return answer
