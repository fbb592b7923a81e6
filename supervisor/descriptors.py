"""The limit of open files of the daemon, and how many clients fit below it.

The soft limit is raised at the start, the workers inherit it; they need little (measured: a search worker with two
generations open holds 17, a builder at work 20, whatever the number of notes). Where the hard limit is small, fewer
clients are let in than configured: one too many would take the descriptors that a restarting worker needs.
"""

import logging
import resource

import msgspec

from supervisor.config import ProtocolLimits

# Measured: a daemon with its six workers and one client holds 31 (three pipes for each worker). The embedder comes and
# goes, an actor that restarts has its old and its new worker for a moment, and a thread that writes needs a file.
OWN_DESCRIPTORS = 64

log = logging.getLogger("bulkhead.descriptors")


class Descriptors(msgspec.Struct, frozen=True, kw_only=True):
    """How many files this process may have open."""

    limit: int

    @classmethod
    def raise_limit(cls, wanted: int) -> "Descriptors":
        """Raise the soft limit towards `wanted`, as far as the hard one lets us; it is never lowered."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        if soft == resource.RLIM_INFINITY or soft >= reachable:
            return cls(limit=wanted if soft == resource.RLIM_INFINITY else soft)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
        except (OSError, ValueError) as error:  # macOS has a ceiling below an infinite hard limit
            log.warning("limit of open files not raised", extra={"error": str(error), "count": soft})
            return cls(limit=soft)
        return cls(limit=reachable)

    def fit_clients(self, limits: ProtocolLimits) -> ProtocolLimits:
        """Return the limits with as many clients as there are descriptors for, at least one."""
        room = max(1, self.limit - OWN_DESCRIPTORS)
        if room >= limits.clients_max:
            return limits
        log.warning(
            "fewer clients than configured: the limit of open files is small (ulimit -n)",
            extra={"count": room, "before": limits.clients_max},
        )
        return msgspec.structs.replace(limits, clients_max=room)
