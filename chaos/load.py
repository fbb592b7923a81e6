"""Clients that keep a daemon busy and note what they are told."""

import random
import time
from typing import Any

import msgspec
import trio

from chaos.client import Client, Disconnected, RpcError
from chaos.history import Append, History

TEXT = (
    "deploy rollback index writer 记忆 检索 乌龙茶 project deadline sqlite lance fsync 会议 周一 预算 Anna 陈伟 "
    "latency budget error-42 build_7 v2.3.1 config.toml 部署 数据库 备份"
)
WORDS = TEXT.split()
PAUSE_S = 0.05
GIVE_UP_S = 60.0


class Sample(msgspec.Struct, frozen=True):
    """One operation: when it began (monotonic seconds), how long it took, what came of it."""

    at: float
    operation: str
    seconds: float
    error: str | None = None
    degraded: tuple[str, ...] = ()
    generation: int | None = None


def sentence(rng: random.Random) -> str:
    """Return a few words that look like a note."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 12)))


async def append_until_acknowledged(client: Client, append: Append, history: History) -> list[str]:
    """Send an append, and again with the same request_id, until it is acknowledged; return contradictions."""
    give_up = time.monotonic() + GIVE_UP_S
    params = {
        "session_id": append.session_id,
        "actor": "user",
        "content": append.content,
        "request_id": append.request_id,
    }
    while True:
        try:
            return history.acknowledge(append, await client.call("event.append", params))
        except RpcError as error:
            if not error.data.get("retryable") or time.monotonic() > give_up:
                raise
        await trio.sleep(PAUSE_S)


async def search_steadily(client: Client, samples: list[Sample], rng: random.Random, *, pause_s: float = 0.02) -> None:
    """Search again and again, for ever, and note each answer."""
    while True:
        began = time.monotonic()
        sample: Sample
        try:
            found: dict[str, Any] = await client.call("memory.search", {"query": sentence(rng), "limit": 5})
            codes = tuple(sorted({each["code"] for each in found["degraded"]}))
            took = time.monotonic() - began
            sample = Sample(began, "search", took, degraded=codes, generation=found["generation"])
        except (RpcError, Disconnected) as error:
            sample = Sample(began, "search", time.monotonic() - began, error=str(error))
        samples.append(sample)
        await trio.sleep(pause_s)


async def append_steadily(
    client: Client, session_id: str, history: History, samples: list[Sample], rng: random.Random
) -> None:
    """Append again and again, for ever, each until it is acknowledged."""
    number = 0
    while True:
        number += 1
        append = history.begin(f"{session_id}-{number}", session_id, f"{sentence(rng)} #{number}")
        began = time.monotonic()
        await append_until_acknowledged(client, append, history)
        samples.append(Sample(began, "append", time.monotonic() - began))
        await trio.sleep(rng.random() * 0.02)


def percentile(values: list[float], share: float) -> float:
    """Return a percentile (0 for no values)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
