"""A real daemon for a test: on a directory of its own, with a configuration of the test's, gone afterwards."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from chaos.client import Client, open_socket
from chaos.daemon import Daemon, data_directory, kill, wait_until
from tests.unit.actors.embedding.fake_endpoint import FakeEndpoint

# Chaos switches on the debug methods; without a model a test is done in seconds. Tests of vectors say so.
CONFIG = """
[chaos]
enabled = true
[embedding]
provider = "none"
[generation_builder]
nice = 0
idle_class = false
settle_ms = 50
build_every_ms = 50
duty_percent_max = 100
"""

FAMILY_S = 5.0

Serve = Callable[..., AbstractAsyncContextManager[tuple[Daemon, Client]]]


@asynccontextmanager
async def running(data: Path, config: Path, text: str) -> AsyncIterator[tuple[Daemon, Client]]:
    """Run a daemon on exactly this configuration, and a client on its socket."""
    config.write_text(text, encoding="utf-8")
    daemon = Daemon(data, config)
    daemon.start()
    try:
        await daemon.connected()
        async with open_socket(daemon.socket_path) as client:
            yield daemon, client
    finally:
        with trio.CancelScope(shield=True):
            await daemon.stop()


def embedding_by(
    endpoint: FakeEndpoint, *, model: str = "fake", batch_max: int = 4, publish_ms: int = 200, more: str = ""
) -> str:
    """Return a configuration whose vectors come from this endpoint. Its last table is that of the builder."""
    section = (
        f'provider = "openai-compatible"\nmodel = "{model}"\nbase_url = "{endpoint.base_url}"\ndimensions = 4\n'
        f"batch_max = {batch_max}\n{more}"
    )
    return CONFIG.replace('provider = "none"', section) + f"vectors_publish_ms = {publish_ms}\n"


async def indexed(client: Client, holds: Callable[[Any], bool] = lambda status: True) -> dict[str, Any]:
    """Wait until a generation covers everything and something more holds of the index."""
    status: dict[str, Any] = await wait_until(
        client,
        lambda s: (
            s["generation"] is not None
            and s["behind"] == {"events": 0, "units": 0}
            and s["building"] is None
            and holds(s)
        ),
        method="index.status",
    )
    return status


@pytest.fixture
def data() -> Iterator[Path]:
    """Give a short path for a data directory, and make sure that no process outlives the test."""
    with data_directory() as path:
        yield path
        # A daemon that was killed takes its workers with it, which takes the system a moment.
        give_up = time.monotonic() + FAMILY_S
        while (left := Daemon(path).family()) and time.monotonic() < give_up:
            time.sleep(0.05)
        for pid in left:
            kill(pid)
        assert not left, f"processes left behind: {left}"


@pytest.fixture
def config(data: Path) -> Path:
    """Give the configuration file of most tests."""
    path = data.with_name("config.toml")
    path.write_text(CONFIG, encoding="utf-8")
    return path


@pytest.fixture
def serve(data: Path, config: Path) -> Serve:
    """Give a context that runs a daemon and a client on its socket."""

    def running_with(extra: str = "") -> AbstractAsyncContextManager[tuple[Daemon, Client]]:
        return running(data, config, CONFIG + extra)

    return running_with


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    """Give an embedding endpoint that the test may script."""
    with FakeEndpoint() as started:
        yield started


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[Daemon]:
    """Give one daemon to all tests of a module that only read or are refused."""
    with data_directory() as path:
        config = path.with_name("config.toml")
        config.write_text(CONFIG, encoding="utf-8")
        daemon = Daemon(path, config)
        daemon.start()
        trio.run(daemon.connected)
        yield daemon
        trio.run(daemon.stop)


class Calls:
    """A client that connects anew for each call, so that it works across event loops."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    async def call(self, method: str, params: dict[str, object]) -> object:
        """Make one call."""
        async with open_socket(self._daemon.socket_path) as client:
            return await client.call(method, params)


@pytest.fixture
def shared(shared_daemon: Daemon) -> Calls:
    """Give the client of the shared daemon."""
    return Calls(shared_daemon)
