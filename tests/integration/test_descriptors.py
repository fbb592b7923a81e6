"""A daemon and a builder with few descriptors: no spin, no end, and nobody who is connected notices."""

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import trio

from actors.messages.base import CORPORA, Done
from actors.messages.builder_work import BeginBuild, FlipGeneration, ScanResult, ScanSources, Staged, StageDocuments
from actors.messages.core_writer import SourceRoot
from actors.messages.index import Covers
from chaos.client import Client, Disconnected, RpcError, environment, open_socket
from chaos.daemon import Daemon, wait_until
from supervisor.descriptors import OWN_DESCRIPTORS
from tests.unit.actors.generation_builder.builder_kit import Builder, source

LIMIT = 96
FILES = 2000
FOLDERS = 60


class SmallDaemon(Daemon):
    """A daemon that may have few files open, and is not able to change that."""

    def start(self) -> None:
        """Start it under the limit."""
        self.data.mkdir(parents=True, exist_ok=True)
        assert self.config is not None
        command = [sys.executable, "-P", "-m", "supervisor", "serve", "--data", str(self.data)]
        command += ["--config", str(self.config)]
        logs = self.data / "logs"
        logs.mkdir(exist_ok=True)
        with (logs / "stderr.txt").open("ab") as stderr:
            self.process = subprocess.Popen(
                ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env=environment(self.data),
            )


async def append(client: Client, number: int) -> None:
    await client.call("event.append", {"session_id": "s", "actor": "user", "content": f"event {number}"})


async def test_more_clients_than_descriptors_are_refused_and_the_others_go_on(data: Path, config: Path) -> None:
    daemon = SmallDaemon(data, config)
    daemon.start()
    try:
        await daemon.connected()
        async with open_socket(daemon.socket_path) as client:
            status = await wait_until(client, lambda status: all(status["ready"].values()))
            epochs = {name: each["epoch"] for name, each in status["actors"].items()}
            await crowd(daemon, client)
            with trio.fail_after(30):
                while not await is_let_in(daemon):  # noqa: ASYNC110 - it is the next attempt that tells
                    await trio.sleep(0.02)
            status = await client.call("system.status")
            assert {name: each["epoch"] for name, each in status["actors"].items()} == epochs
            assert status["descriptors"] <= LIMIT
    finally:
        await daemon.stop()


async def crowd(daemon: Daemon, client: Client) -> None:
    """Bring 200 clients at once, and see that the one from before is served and the daemon is at rest."""
    async with AsyncExitStack() as stack:
        connected = refused = 0
        for _ in range(200):
            other = await stack.enter_async_context(open_socket(daemon.socket_path))
            try:
                await other.call("system.health")
                connected += 1
            except (RpcError, Disconnected):
                refused += 1
        assert connected + refused == 200
        assert 0 < connected <= LIMIT - OWN_DESCRIPTORS, "as many as there are descriptors for"
        pid = daemon.pid()
        assert pid is not None
        process = psutil.Process(pid)
        before, began = process.cpu_times(), time.monotonic()
        for number in range(20):
            await append(client, number)
            await trio.sleep(0.05)
        used = process.cpu_times().user + process.cpu_times().system - before.user - before.system
        assert used < 0.6 * (time.monotonic() - began), "a loop that spins takes all of one CPU"


async def is_let_in(daemon: Daemon) -> bool:
    async with open_socket(daemon.socket_path) as client:
        try:
            await client.call("system.health")
        except (RpcError, Disconnected):
            return False
        return True


@contextmanager
def few_descriptors(count: int) -> Iterator[None]:
    """Let processes that are started now have few files open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="module")
def many_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of many small notes in many folders."""
    root = tmp_path_factory.mktemp("tree")
    for number in range(FILES):
        folder = root / f"folder {number % FOLDERS}" / "inner"
        if number < FOLDERS:
            folder.mkdir(parents=True)
        (folder / f"note {number}.md").write_text(f"# note {number}\n\nabout number {number}\n")
    return root


def test_g3_a_tree_with_more_files_than_descriptors_is_scanned_and_built(many_files: Path, tmp_path: Path) -> None:
    with few_descriptors(256):
        builder = Builder(tmp_path / "index")
    with builder:
        root = source(many_files)
        limits = psutil.Process(builder.worker.process.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert limits[0] == 256
        for _ in range(2):
            found = builder.worker.call(ScanSources(sources=[root]), ScanResult)
            assert found.files == FILES and not found.skipped and not found.held
        assert open_files(builder) < 32, "a scan keeps nothing open"
        build(builder, found.digest, root)
        assert open_files(builder) < 64, "nor does a build"


def build(builder: Builder, digest: str, root: SourceRoot) -> None:
    covers = Covers(event_seq=0, core_seq=0, sources_digest=digest)
    builder.do(BeginBuild(generation=1, covers=covers, identity=None, previous=None, sources=[root]))
    rows, more = 0, True
    while more:
        staged = builder.worker.call(StageDocuments(files_max=500), Staged)
        rows, more = rows + staged.rows, staged.more
    assert rows == FILES
    sealed = builder.finish()
    assert sealed.rows == {**dict.fromkeys(CORPORA, 0), "documents": FILES}
    builder.worker.call(FlipGeneration(generation=1), Done)


def open_files(builder: Builder) -> int:
    count: Any = psutil.Process(builder.worker.process.pid).num_fds()
    return int(count)
