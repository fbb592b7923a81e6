"""The daemon: one per data directory. Claims the directory, opens the doors, runs the house, drains.

The order at the start is chosen for the client that waits: the lock and the socket come before anything heavy is
imported, so connections are accepted (by the kernel's backlog) while the rest is still loading.

Exit codes: 0 drained; 70 internal error, or the truth has rested for too long; 71 the listener died too often; 72 the
loop's watching thread died; 73 the data directory cannot be created or used as it is, or its lock was removed; 75
another daemon holds it, a drain that would not end, a second signal, or the event loop stood still (1 when nothing
but faulthandler could run, because something held the GIL); 78 the configuration is not usable. An outer manager
should not start 73 and 78 again.
"""

import os
import sys
from pathlib import Path

from supervisor import exit_codes, paths
from supervisor.claim import Claim, Refused


def main(data: Path, config: Path | None, stdio: bool) -> int:
    """Run the daemon until it is told to stop; return its exit code."""
    try:
        claim = Claim(data)
    except Refused as error:
        print(f"bulkhead: {error}", file=sys.stderr)
        return error.code
    # stdout is the protocol's, or nobody's: what a library prints to fd 1 goes to stderr from here on.
    pipes = (os.dup(0), os.dup(1)) if stdio else None
    os.dup2(2, 1)
    if stdio:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
    try:
        return _run(claim, config, pipes)
    finally:
        claim.release()


def _run(claim: Claim, config_path: Path | None, pipes: tuple[int, int] | None) -> int:
    # Imported here: the socket above already takes connections.
    import logging
    import traceback

    import trio

    from supervisor import logs
    from supervisor.assembly import Assembly
    from supervisor.config import ConfigError, load

    try:
        config = load(config_path)
        logs.set_up(claim.data / paths.LOGS, config.logs)
        assembly = Assembly(claim, config)
    except ConfigError as error:
        print(f"bulkhead: {error}", file=sys.stderr)
        return exit_codes.CONFIG
    try:
        return trio.run(assembly.run, pipes)
    except Exception:
        traceback.print_exc()
        logging.getLogger("bulkhead.daemon").exception("internal error")
        return exit_codes.INTERNAL
