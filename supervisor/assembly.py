"""Everything that runs in the daemon, wired together, from the first start to the drain."""

import gc
import logging
import os
import signal
import threading
import time
import uuid

import trio

from actors.errors import InvalidParams
from actors.quarantine import Quarantine
from supervisor import exit_codes, poison_file, principals_file
from supervisor.backups import ROOMS, BackupKeeper
from supervisor.claim import Claim
from supervisor.config import Config, ConfigError
from supervisor.descriptors import Descriptors
from supervisor.disk import DiskWatch
from supervisor.health import Health
from supervisor.incidents import Incidents
from supervisor.lifecycle import RestartBudget
from supervisor.listener import Listener, StdioStream
from supervisor.loop_watch import LoopWatch
from supervisor.notify import Notifier
from supervisor.roster import Boards, Roster
from supervisor.routes.routing import Routes
from supervisor.routes.table import METHODS
from supervisor.supervise import Supervisor
from supervisor.version import VERSION
from supervisor.watchdog import keep_watch

LISTENER_RESTARTS_MAX = 10
GUARD_EVERY_S = 1.0

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
        self.exit_code = exit_codes.OK
        self.incidents = Incidents(claim.data / "incidents", config.logs)
        self.quarantine = Quarantine(
            monotonic_s=time.monotonic, wall_us=lambda: time.time_ns() // 1000, condemned=poison_file.load(claim.data)
        )
        self.poison = poison_file.PoisonFile(claim.data, self.quarantine.condemned)
        self.quarantine.changed = self.poison.changed
        roster = Roster(
            config=config, data=claim.data, identity=claim.identity, boards=boards, quarantine=self.quarantine
        )
        self.supervisor = Supervisor(roster.specs(), on_death=self.incidents.report_death)
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
            disk=boards.disk,
            version=VERSION,
            data_dir_id=claim.identity,
            data_dir=str(claim.data),
        )
        mailboxes = {name: child.mailbox for name, child in self.supervisor.children.items()}
        self.disk = DiskWatch(
            data=claim.data,
            limits=config.disk,
            board=boards.disk,
            builder=boards.builder,
            cache=mailboxes["cache_manager"],
        )
        self.backups = BackupKeeper(
            mailboxes={name: mailboxes[name] for name in ROOMS},
            limits=config.backup,
        )
        self.routes = Routes(
            mailboxes=mailboxes,
            health=self.health,
            quarantine=self.quarantine,
            disk=self.disk,
            config=config,
            backups=self.backups,
            drain=self._stopping.set,
            epoch=uuid.uuid4().hex,
            methods=METHODS,
            principals=principals_file.load(config.principals),
        )
        descriptors = Descriptors.raise_limit(config.supervision.descriptors_max)
        self.listener = Listener(self.routes, descriptors.fit_clients(config.protocol))
        self._notifier = Notifier()

    async def run(self, pipes: tuple[int, int] | None) -> int:
        """Run until a signal, `system.drain`, the end of stdin when a client is on it, or the end of all hope.

        Returns the exit code: 0, or that of what made it impossible to go on (see daemon.py).
        """
        # Modules and tables are here to stay. A full collection that walks them stops the loop for 30 to 90 ms.
        gc.freeze()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._obey_signals)
            nursery.start_soon(self.loop.run)
            nursery.start_soon(self.incidents.run)
            nursery.start_soon(self.poison.run)
            nursery.start_soon(self.disk.run)
            nursery.start_soon(self.backups.run)
            await nursery.start(self.supervisor.run)
            every_ms = self._config.supervision.watch_every_ms
            nursery.start_soon(keep_watch, self.supervisor, every_ms)
            nursery.start_soon(self._keep_listening)
            nursery.start_soon(self._guard)
            nursery.start_soon(self._notifier.run, self.health, self.supervisor.stuck)
            if pipes is not None:
                nursery.start_soon(self._serve_stdio, pipes)
            await self._stopping.wait()
            self._notifier.send(STOPPING=1)
            await self._drain()
            nursery.cancel_scope.cancel("drained")
        return self.exit_code

    def _give_up(self, code: int, why: str) -> None:
        """End in order, with an exit code that tells an outer manager why."""
        log.critical("giving up", extra={"cause": why})
        self.incidents.report("giving-up", f"{why}\n")
        self.exit_code = code
        self._stopping.set()

    async def _keep_listening(self) -> None:
        """Serve the socket; a bug that ends it costs the clients their connections, and after too many the daemon."""
        budget = RestartBudget(restarts_max=LISTENER_RESTARTS_MAX, window_s=60.0, backoff_s_min=0.05, backoff_s_max=1.0)
        while True:
            began = trio.current_time()
            try:
                await self.listener.serve_socket(self._claim.socket)
            except Exception:
                log.exception("listener died")
            now = trio.current_time()
            if not budget.record_failure(now, ready_for_s=now - began, succeeded=True):
                return self._give_up(
                    exit_codes.LISTENER, f"the listener died {LISTENER_RESTARTS_MAX} times in a minute"
                )
            await trio.sleep(budget.backoff_s(0.5, after_healthy_run=False))

    async def _guard(self) -> None:
        """End the daemon when it is worthless or a danger: hopeless truth, no loop watch, no lock."""
        limiter = trio.CapacityLimiter(1)
        while True:
            with trio.move_on_after(GUARD_EVERY_S):
                await self.supervisor.hopeless.wait()
                return self._give_up(exit_codes.INTERNAL, "the truth has rested for too long")
            if not self.loop.watched():
                return self._give_up(exit_codes.WATCHDOG, "the thread that watches the loop is dead")
            held = True
            with trio.move_on_after(GUARD_EVERY_S):
                held = await trio.to_thread.run_sync(self._claim.held, abandon_on_cancel=True, limiter=limiter)
            if not held:
                return self._give_up(
                    exit_codes.CANNOT_CREATE, "the lock file was removed: another daemon could start here"
                )

    async def _serve_stdio(self, pipes: tuple[int, int]) -> None:
        await self.listener.serve(StdioStream(*pipes))
        self._stopping.set()

    async def _obey_signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                if self._stopping.is_set():
                    os._exit(exit_codes.TEMPORARY)  # the second signal means now
                self._stopping.set()

    async def _drain(self) -> None:
        """Go down in order, within the soft limit; the hard one ends the process whatever hangs."""
        limits = self._config.supervision
        log.info("draining")
        timer = threading.Timer(limits.drain_hard_ms / 1000, os._exit, (exit_codes.TEMPORARY,))
        timer.daemon = True
        timer.start()
        self.health.draining = True
        self.listener.drain()
        await self.backups.stop()
        await self.supervisor.drain(soft_s=limits.drain_soft_ms / 1000)
        await self.supervisor.wait_stopped()
        timer.cancel()
