"""The state of the house as one snapshot, made from memory alone: no actor is asked and no disk is touched.

So `system.health` and `system.status` answer while every actor is dead, which is when they are needed.
"""

import os
import time
from typing import Literal

import psutil

from actors.actor import Board
from actors.gaps import count_between
from actors.notices import BuilderNotice, DiskLevel, DiskNotice, SearcherNotice
from supervisor import logs
from supervisor.lifecycle import SERVING, State
from supervisor.loop_watch import LoopWatch
from supervisor.supervise import ActorStatus, Supervisor

TRANSITIONS_SHOWN = 50
ENDS_SHOWN = 4  # builds


class Health:
    """Reads the supervisor, the boards and the loop watch."""

    def __init__(
        self,
        *,
        supervisor: Supervisor,
        loop: LoopWatch,
        builder: Board[BuilderNotice],
        searcher: Board[SearcherNotice],
        disk: Board[DiskNotice],
        version: str,
        data_dir_id: str,
        data_dir: str,
    ) -> None:
        self._supervisor = supervisor
        self._loop = loop
        self.builder = builder
        self.searcher = searcher
        self.disk = disk
        self.version = version
        self.data_dir_id = data_dir_id
        self.data_dir = data_dir
        self._started_at = time.monotonic()
        self._process = psutil.Process()
        self.draining = False

    def hurt(self, actor: str, how: Literal["raise", "cancel"]) -> bool:
        """End an actor's incarnation as a bug would (chaos only)."""
        return self._supervisor.hurt(actor, how)

    def release(self, actor: str) -> None:
        """Let a quarantined actor start again, for a command that is posted right after this."""
        self._supervisor.release(actor)

    def ready(self) -> dict[str, bool]:
        """Say per capability whether it works now. Search works as long as one of its two ways does."""
        state = {name: child.state for name, child in self._supervisor.children.items()}
        up = {name: value in SERVING and not self.draining for name, value in state.items()}
        core, transcript = (self._supervisor.children[name].without for name in ("core_writer", "transcript_appender"))
        return {
            "append": up["transcript_appender"] and "append" not in transcript and not self.disk.notice.appends_refused,
            "write": up["core_writer"] and "write" not in core and not self.disk.notice.writes_refused,
            "read": up["core_writer"] and up["transcript_appender"] and "read" not in (*core, *transcript),
            "search": up["searcher"],
            "build": up["generation_builder"] and self.disk.notice.level is DiskLevel.OK,
            "cache": up["cache_manager"],
        }

    def not_building(self) -> str | None:
        """Return why nothing is made searchable until something is done about it; None while it is, or is soon."""
        state = self._supervisor.children["generation_builder"].state
        if state in (State.BROKEN, State.QUARANTINED):
            return f"generation_builder is {state}"
        return "no builds while the disk is low" if self.builder.notice.no_room else None

    def live(self) -> bool:
        """Say whether the loop turns. Nothing else: a dead actor is a matter of readiness."""
        return self._loop.alive()

    def health(self) -> dict[str, object]:
        """Return the answer of system.health."""
        return {"live": self.live(), "draining": self.draining, "ready": self.ready()}

    def status(self) -> dict[str, object]:
        """Return the answer of system.status."""
        return {
            "version": self.version,
            "data_dir": self.data_dir,
            "data_dir_id": self.data_dir_id,
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self._started_at, 1),
            **self.health(),
            "actors": self._actors(),
            "index": self.index(),
            "searcher": self.searcher.notice,
            "disk": self.disk.notice,
            "loop_lag_ms": self._loop.lag(),
            "rss_bytes": self._process.memory_info().rss,
            "descriptors": self._process.num_fds(),
        }

    def _actors(self) -> dict[str, dict[str, object]]:
        rows = {name: _actor(name, status) for name, status in self._supervisor.statuses().items()}
        rows["searcher"]["pid"] = self.searcher.notice.active_pid
        rows["searcher"]["spare_pid"] = self.searcher.notice.spare_pid
        return rows

    def index(self) -> dict[str, object]:
        """Return what is known of the index."""
        notice = self.builder.notice
        serving = notice.serving
        covers = serving.covers if serving is not None else None
        return {
            "generation": serving.generation if serving else None,
            "delta": serving.delta if serving else None,
            "covers": {"event_seq": covers.event_seq, "core_seq": covers.core_seq} if covers else None,
            "behind": {
                "events": count_between(covers.event_seq if covers else 0, notice.event_seq, notice.event_gaps),
                "units": max(0, notice.core_seq - (covers.core_seq if covers else 0)),
            },
            "rows": serving.rows if serving else {"events": 0, "units": 0, "documents": 0},
            "vectors": {
                "have": serving.vectors_have if serving else 0,
                "want": serving.vectors_want if serving else 0,
            },
            "vector_index": serving.vector_index if serving else {},
            "identity": serving.identity if serving else None,
            "built_at": serving.built_at if serving else None,
            "previous": [ref.generation for ref in notice.previous],
            "successor": _successor(notice),
            "declined": notice.declined is not None,
            "comparison": notice.comparison,
            "building": notice.building,
            "builds": {
                "started": notice.builds_started,
                "published": notice.builds_published,
                "ended": notice.builds_ended[-ENDS_SHOWN:],
            },
            "build_ms": round(notice.build_ms, 1),
            "publish_ms": round(notice.publish_ms, 1),
            "deltas": {
                "published": notice.deltas_published,
                "building": notice.delta_building,
                "took_ms": round(notice.delta_ms, 1),
                "rows": serving.delta_rows if serving else 0,
                "error": notice.delta_error,
            },
            "workers_replaced": notice.workers_replaced,
            "paused": notice.paused or notice.no_room or notice.cancelled,
            "paused_by": _paused_by(notice),
            "last_error": notice.last_error,
            "embedding": notice.embedding,
            "files": notice.files,
            "files_waiting": serving.deferred if serving else 0,
        }

    def index_status(self) -> dict[str, object]:
        """Return the answer of index.status: the index and what was left out of it."""
        notice = self.builder.notice
        return {
            **self.index(),
            "sources": notice.sources,
            "skipped": notice.skipped,
            "held": notice.held,
            "suspects": notice.suspects,
            "scrub": notice.scrub,
        }

    def metrics(self) -> dict[str, object]:
        """Return the answer of system.metrics: every counter, and the last changes of state."""
        now_ns = time.monotonic_ns()
        return {
            "actors": self._supervisor.statuses(),
            "loop_lag_ms": self._loop.lag(),
            "loop_lag": self._loop.histogram(),
            "logs": logs.statistics(),
            "searcher": self.searcher.notice,
            "transitions": [
                {
                    "at_ns": entry.at_ns,
                    "ago_ms": round((now_ns - entry.at_ns) / 1e6),
                    "actor": entry.actor,
                    "epoch": entry.epoch,
                    "before": entry.before,
                    "after": entry.after,
                    "cause": entry.cause,
                }
                for entry in list(self._supervisor.transitions)[-TRANSITIONS_SHOWN:]
            ],
        }


def _paused_by(notice: BuilderNotice) -> str | None:
    """Return why no build is made by itself."""
    if notice.no_room:
        return "disk"
    return "rollback" if notice.paused else "cancel" if notice.cancelled else None


def _successor(notice: BuilderNotice) -> dict[str, object] | None:
    """Return how far the generation of another embedding model is."""
    successor = notice.successor
    if successor is None:
        return None
    return {
        "generation": successor.generation,
        "identity": successor.identity,
        "vectors": {"have": successor.vectors_have, "want": successor.vectors_want},
    }


def _actor(name: str, status: ActorStatus) -> dict[str, object]:
    # The worker that the actor is named for first: the builder's may be younger than those beside it.
    workers = sorted(status.workers, key=lambda worker: worker.name != name)
    row: dict[str, object] = {
        "state": status.state,
        "epoch": status.epoch,
        "restarts": status.restarts,
        "pid": workers[0].pid if workers else None,
        "workers": [{"name": each.name, "pid": each.pid, "rss_bytes": each.rss_bytes} for each in workers],
        "mailbox": {
            "count": status.mailbox.count,
            "bytes": status.mailbox.bytes,
            "peak": status.mailbox.peak,
        },
        "in_hand_ms": status.mailbox.in_hand_ms,
    }
    if status.reason is not None:
        row["reason"] = status.reason
    if status.last_death is not None:
        row["last_death"] = status.last_death
    return row
