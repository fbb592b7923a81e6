"""Everything that runs in the daemon, wired together, from the first start to the drain."""

import logging
import os
import signal
import threading
import uuid

import trio

from actors.errors import InvalidParams
from supervisor.claim import EXIT_TEMPORARY, Claim
from supervisor.config import Config, ConfigError
from supervisor.health import Health
from supervisor.listener import Listener, StdioStream
from supervisor.loop_watch import LoopWatch
from supervisor.roster import Boards, Roster
from supervisor.routes import Routes
from supervisor.supervise import Supervisor
from supervisor.version import VERSION
from supervisor.watchdog import keep_watch

log = logging.getLogger("bulkhead.daemon")


class Assembly:
    """One daemon's parts."""

    def __init__(self, claim: Claim, config: Config) -> None:
        self._claim = claim
        self._config = config
        self._stopping = trio.Event()
        try:
            boards = Boards(config)
        except InvalidParams as error:
            raise ConfigError(f"embedding: {error.message}") from error
        roster = Roster(config=config, data=claim.data, identity=claim.identity, boards=boards)
        self.supervisor = Supervisor(roster.specs())
        self.loop = LoopWatch(
            incidents=claim.data / "incidents",
            limits=config.logs,
            warn_ms=config.supervision.loop_warn_ms,
            dead_ms=config.supervision.loop_dead_ms,
        )
        self.health = Health(
            supervisor=self.supervisor,
            loop=self.loop,
            builder=boards.builder,
            searcher=boards.searcher,
            version=VERSION,
            data_dir_id=claim.identity,
            data_dir=str(claim.data),
        )
        self.routes = Routes(
            mailboxes={name: child.mailbox for name, child in self.supervisor.children.items()},
            health=self.health,
            config=config,
            drain=self._stopping.set,
            epoch=uuid.uuid4().hex,
        )
        self.listener = Listener(self.routes, config.protocol)

    async def run(self, pipes: tuple[int, int] | None) -> None:
        """Run until a signal, `system.drain`, or the end of stdin when a client is on it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._obey_signals)
            nursery.start_soon(self.loop.run)
            await nursery.start(self.supervisor.run)
            every_ms = self._config.supervision.watch_every_ms
            nursery.start_soon(keep_watch, self.supervisor, every_ms)
            nursery.start_soon(self.listener.serve_socket, self._claim.socket)
            if pipes is not None:
                nursery.start_soon(self._serve_stdio, pipes)
            await self._stopping.wait()
            await self._drain()
            nursery.cancel_scope.cancel("drained")

    async def _serve_stdio(self, pipes: tuple[int, int]) -> None:
        await self.listener.serve(StdioStream(*pipes))
        self._stopping.set()

    async def _obey_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                if self._stopping.is_set():
                    os._exit(EXIT_TEMPORARY)  # the second signal means now
                self._stopping.set()

    async def _drain(self) -> None:
        """Go down in order, within the soft limit; the hard one ends the process whatever hangs."""
        limits = self._config.supervision
        log.info("draining")
        timer = threading.Timer(limits.drain_hard_ms / 1000, os._exit, (EXIT_TEMPORARY,))
        timer.daemon = True
        timer.start()
        self.health.draining = True
        self.listener.drain()
        await self.supervisor.drain(soft_s=limits.drain_soft_ms / 1000)
        await self.supervisor.wait_stopped()
        timer.cancel()
