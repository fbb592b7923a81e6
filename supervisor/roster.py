"""The five actors as data: how each is made, whom it may ask, how patient to be. The only file that knows the rooms.

They are started in this order and stopped in reverse. Whom each may ask must have no circle (asserted at start):
routes ask everybody; the builder asks the truth, the cache and the searcher; the searcher asks the truth.
"""

from collections.abc import Callable
from pathlib import Path

import msgspec

from actors.actor import Board
from actors.cache_manager import actor as cache_manager
from actors.core_writer import actor as core_writer
from actors.embedding import resolve_identity
from actors.generation_builder import actor as generation_builder
from actors.mailbox import Mailbox
from actors.messages.generation_builder import TruthAdvanced
from actors.notices import BuilderNotice, DiskNotice, ForgetNotice, SearchActivity, SearcherNotice
from actors.quarantine import Quarantine
from actors.searcher import actor as searcher
from actors.settings import RoomSetup
from actors.transcript_appender import actor as transcript_appender
from actors.worker import WorkerSpec
from supervisor.config import Config
from supervisor.supervise import ActorSpec, MakeActor

LANCE_START_MS = 60_000
# How long a drain waits for what an actor has in hand and in its mailbox.
TRUTH_STOP_S = 5.0
DERIVED_STOP_S = 1.0


class Boards:
    """The notice boards: of the two actors that have one, and of the watch of the disk."""

    def __init__(self, config: Config) -> None:
        self.builder = Board(BuilderNotice(identity=resolve_identity(config.embedding)))
        self.searcher = Board(SearcherNotice())
        self.searching = Board(SearchActivity())
        self.disk = Board(DiskNotice())
        self.forgetting = Board(ForgetNotice())


class Roster:
    """Makes the specifications from the configuration and the data directory."""

    def __init__(self, *, config: Config, data: Path, identity: str, boards: Boards, quarantine: Quarantine) -> None:
        self._config = config
        self._quarantine = quarantine
        self._data = data
        self._identity = identity
        self._boards = boards

    def specs(self) -> list[ActorSpec]:
        """Return the actors in the order in which they are started."""
        return [
            self._transcript_appender(),
            self._core_writer(),
            self._cache_manager(),
            self._searcher(),
            self._generation_builder(),
        ]

    def _transcript_appender(self) -> ActorSpec:
        limits = self._config.mailboxes
        spec = self._sqlite_worker("transcript_appender")
        acknowledged = transcript_appender.Acknowledged()
        return self._actor(
            "transcript_appender",
            make=lambda house: transcript_appender.TranscriptAppender(
                house, spec, self._config.transcript_appender, acknowledged
            ),
            mailbox=lambda: Mailbox(
                "transcript_appender",
                count_max=limits.transcript_appender_messages,
                bytes_max=limits.transcript_appender_bytes,
                wait_ms=limits.transcript_appender_wait_ms,
                tray_of=transcript_appender.tray_of,
                quarantine=self._quarantine,
            ),
            stop_s=TRUTH_STOP_S,
            hopeless_s=self._config.supervision.hopeless_ms / 1000,
        )

    def _core_writer(self) -> ActorSpec:
        limits = self._config.mailboxes
        spec = self._sqlite_worker("core_writer")
        return self._actor(
            "core_writer",
            make=lambda house: core_writer.CoreWriter(
                house, spec, forgetting=self._boards.forgetting, index=self._boards.builder
            ),
            mailbox=lambda: Mailbox(
                "core_writer",
                count_max=limits.core_writer_messages,
                bytes_max=limits.core_writer_bytes,
                tray_of=core_writer.tray_of,
                quarantine=self._quarantine,
            ),
            asks=("transcript_appender",),
            stop_s=TRUTH_STOP_S,
            hopeless_s=self._config.supervision.hopeless_ms / 1000,
        )

    def _cache_manager(self) -> ActorSpec:
        limits = self._config.mailboxes
        spec = self._sqlite_worker("cache_manager")
        return self._actor(
            "cache_manager",
            make=lambda house: cache_manager.CacheManager(house, spec),
            mailbox=lambda: Mailbox(
                "cache_manager",
                count_max=limits.cache_manager_messages,
                bytes_max=limits.cache_manager_bytes,
                tray_of=cache_manager.tray_of,
                own_bounds={"read": limits.cache_manager_reads},
                quarantine=self._quarantine,
            ),
            stop_s=DERIVED_STOP_S,
        )

    def _searcher(self) -> ActorSpec:
        limits = self._config.mailboxes
        patience_ms = self._config.supervision.lance_silence_ms  # until it is warm
        spec = self._lance_worker("searcher", "actors.searcher.worker", busy_silence_ms=patience_ms)
        return self._actor(
            "searcher",
            make=lambda house: searcher.Searcher(
                house,
                spec=spec,
                limits=self._config.searcher,
                embedding=self._config.embedding,
                index=self._boards.builder,
                board=self._boards.searcher,
                searching=self._boards.searching,
                forgetting=self._boards.forgetting,
                index_directory=self._data / "generation_builder",
            ),
            outlives_workers=True,
            mailbox=lambda: Mailbox(
                "searcher",
                count_max=limits.searcher_messages,
                bytes_max=limits.searcher_bytes,
                tray_of=searcher.tray_of,
                shed="least_budget",
                refuses_early=False,  # a search gives what it has when its time is up
                quarantine=self._quarantine,
            ),
            asks=("transcript_appender", "core_writer"),
            tells=("generation_builder",),
            stop_s=DERIVED_STOP_S,
        )

    def _generation_builder(self) -> ActorSpec:
        limits, supervision = self._config.mailboxes, self._config.supervision
        settings = self._config.generation_builder
        # What it does is due within a second or two; a full generation has time.
        builder = self._lance_worker("generation_builder", "actors.generation_builder.worker", nice=settings.delta_nice)
        rebuilder = msgspec.structs.replace(
            builder,
            name="rebuilder",
            settings=self._setup("generation_builder", rebuilding=True),
            nice=settings.nice,
            idle_class=settings.idle_class,
        )
        embedder = self._lance_worker(
            "embedder", "actors.generation_builder.embedder", nice=settings.nice, idle=settings.idle_class
        )
        watcher = msgspec.structs.replace(
            builder, name="source_watcher", module="actors.generation_builder.watcher", oom_score_adj=0
        )
        return self._actor(
            "generation_builder",
            make=lambda house: generation_builder.GenerationBuilder(
                house,
                builder=builder,
                rebuilder=rebuilder,
                embedder=embedder,
                watcher=watcher,
                limits=settings,
                embedding=self._config.embedding,
                board=self._boards.builder,
                searching=self._boards.searching,
                disk=self._boards.disk,
                forgetting=self._boards.forgetting,
            ),
            mailbox=lambda: Mailbox(
                "generation_builder",
                count_max=limits.generation_builder_messages,
                bytes_max=limits.generation_builder_bytes,
                tray_of=generation_builder.tray_of,
                conflated=(TruthAdvanced,),
                refuses_early=False,
                quarantine=self._quarantine,
            ),
            stop_s=0.0,  # a build is worth nothing to a daemon that goes down
            asks=("transcript_appender", "core_writer", "cache_manager", "searcher"),
            start_s=600.0,  # it verifies every byte of the generation before it says that it is ready
            backoff_s=(supervision.builder_backoff_ms_min / 1000, supervision.builder_backoff_ms_max / 1000),
        )

    def _actor(
        self,
        name: str,
        *,
        make: MakeActor,
        mailbox: Callable[[], Mailbox],
        asks: tuple[str, ...] = (),
        tells: tuple[str, ...] = (),
        start_s: float = 15.0,
        stop_s: float,
        backoff_s: tuple[float, float] | None = None,
        hopeless_s: float | None = None,
        outlives_workers: bool = False,
    ) -> ActorSpec:
        supervision = self._config.supervision
        shortest, longest = backoff_s or (supervision.backoff_ms_min / 1000, supervision.backoff_ms_max / 1000)
        return ActorSpec(
            name=name,
            make=make,
            mailbox=mailbox,
            asks=asks,
            tells=tells,
            start_s=start_s,
            stop_s=stop_s,
            restarts_max=supervision.restarts_max,
            window_s=supervision.restart_window_ms / 1000,
            backoff_s_min=shortest,
            backoff_s_max=longest,
            probe_s=supervision.probe_ms / 1000,
            hopeless_s=hopeless_s,
            outlives_workers=outlives_workers,
        )

    def _sqlite_worker(self, name: str) -> WorkerSpec:
        supervision = self._config.supervision
        return WorkerSpec(
            name=name,
            module=f"actors.{name}.worker",
            settings=self._setup(name),
            launcher=self._config.chaos.launcher or None,
            beat_ms=supervision.beat_ms,
            silence_ms=supervision.silence_ms,
            interrupt_grace_ms=supervision.interrupt_grace_ms,
            understudy=True,
        )

    def _lance_worker(
        self, name: str, module: str, *, nice: int = 0, idle: bool = False, busy_silence_ms: int | None = None
    ) -> WorkerSpec:
        """Describe a worker that LanceDB or a model makes heavy: slow to start, first to go when memory runs out."""
        supervision = self._config.supervision
        return WorkerSpec(
            name=name,
            module=module,
            settings=self._setup("generation_builder" if name == "embedder" else name),
            launcher=self._config.chaos.launcher or None,
            start_ms=LANCE_START_MS,
            beat_ms=supervision.beat_ms,
            silence_ms=supervision.lance_silence_ms,
            busy_silence_ms=busy_silence_ms,
            interrupt_grace_ms=supervision.interrupt_grace_ms,
            nice=nice,
            idle_class=idle,
            oom_score_adj=500,
        )

    def _setup(self, room: str, *, rebuilding: bool = False) -> msgspec.Raw:
        config = self._config
        setup = RoomSetup(
            directory=str(self._data / room),
            index_directory=str(self._data / "generation_builder"),
            archive_directory=str(self._data / "archives"),
            core_writer=config.core_writer,
            transcript_appender=config.transcript_appender,
            cache_manager=config.cache_manager,
            generation_builder=config.generation_builder,
            searcher=config.searcher,
            embedding=config.embedding,
            backup=config.backup,
            redaction=config.redaction,
            identity=self._identity,
            chaos=config.chaos.enabled,
            rebuilding=rebuilding,
        )
        return msgspec.Raw(msgspec.msgpack.encode(setup))
