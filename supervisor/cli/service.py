"""init, serve, stop, stdio, status: the daemon and its doors."""

import argparse
import os
import select
import socket
import struct
import time

from supervisor import paths
from supervisor.cli.answers import FAILED, OK, SHUTTING_DOWN, ask, member, note, number, say, say_json, table
from supervisor.cli.arguments import Verbs
from supervisor.client import Client, DaemonAbsent, RequestFailed

# A drain is over after 15 s, whatever hangs.
STOP_WAIT_S = 20.0
ACTIONS = ("append", "write", "read", "search", "build", "cache")


def register(verbs: Verbs) -> None:
    """Add the verbs of this file."""
    verbs.add("init", run_init, "create the data directory and say where things are")
    serve = verbs.add("serve", run_serve, "be the daemon, in the foreground")
    serve.add_argument("--stdio", action="store_true", help="speak the protocol on stdin and stdout as well")
    verbs.add("stop", run_stop, "let the daemon finish what it has in hand and end")
    verbs.add("stdio", run_stdio, "speak the protocol on stdin and stdout (what MCP hosts start)")
    verbs.add("status", run_status, "say how the daemon and its actors are doing")


def run_init(options: argparse.Namespace) -> int:
    """Create the data directory, if it is missing, and print the places. Starts nothing."""
    data = paths.data_directory(options.data)
    try:
        created = paths.make_data_directory(data)
        places = {
            "data": data,
            "created": created,
            "socket": paths.socket_path(data),
            "config": paths.config_file(options.config),
            "logs": os.path.join(data, paths.LOGS),  # noqa: PTH118 (paths.py speaks in strings)
        }
    except OSError as error:
        note(f"bulkhead: data directory {data!r} not created: {error.strerror or error}")
        return FAILED
    if options.json:
        say_json(places)
        return OK
    say(f"data directory  {data}{'' if created else '  (was there already)'}")
    say(f"socket          {places['socket']}")
    say(f"configuration   {places['config'] or 'defaults'}")
    say(f"logs            {places['logs']}")
    return OK


def run_serve(options: argparse.Namespace) -> int:
    """Be the daemon. Plain uses never come here: the launcher takes them without the command line."""
    from supervisor.launcher import serve

    return serve(options.data, options.config, stdio=options.stdio)


def run_stdio(options: argparse.Namespace) -> int:
    """Be a bridge. Plain uses never come here either."""
    from supervisor import bridge

    return bridge.main(paths.data_directory(options.data), paths.config_file(options.config), options.token_file)


def run_stop(options: argparse.Namespace) -> int:
    """Ask the daemon to drain, and wait until its process has ended. None running is no failure."""
    client = Client(options.data, options.config, start=False)
    try:
        connection = client.connect()
    except DaemonAbsent:
        _report_stopped(options, None)
        return OK
    pid = peer_pid(connection)
    watch = _open_process(pid)
    with client:
        try:
            client.request("system.drain", {}, STOP_WAIT_S)
        except RequestFailed as error:
            # It may end so quickly that its answer gets lost, or be ending already; that it ends is what counts.
            if error.outcome != "unknown" and error.code != SHUTTING_DOWN:
                raise
        if not _wait_for_end(connection, watch):
            note(f"bulkhead: daemon (pid {pid}) has not ended within {STOP_WAIT_S:g} s")
            return FAILED
    _report_stopped(options, pid)
    return OK


def run_status(options: argparse.Namespace) -> int:
    """Print what `system.status` says."""
    with Client(options.data, options.config) as client:
        status = ask(client, "system.status")
    if options.json:
        say_json(status)
        return OK
    uptime = _duration(member(status, "uptime_s"))
    say(f"bulkhead {member(status, 'version')}, pid {member(status, 'pid')}, up {uptime}")
    say(f"data      {client.data}  ({member(status, 'data_dir_id')})")
    ready = [action for action in ACTIONS if member(status, "ready", action) is True]
    missing = [action for action in ACTIONS if action not in ready]
    say(f"ready     {', '.join(ready) or 'nothing'}" + (f"; not ready: {', '.join(missing)}" if missing else ""))
    say(f"index     {describe_index(member(status, 'index'))}")
    lag = [f"{name} {member(status, 'loop_lag_ms', name)} ms" for name in ("p50", "p99", "max")]
    say(f"loop lag  {', '.join(lag)}")
    say()
    say(table(_actor_rows(status), ("actor", "state", "restarts", "pid", "waiting", "in hand")))
    return OK


def describe_index(index: object) -> str:
    """Return a line about the index: what is served, how complete it is, how far behind, what is being built."""
    generation = member(index, "generation")
    parts = ["no generation yet"] if generation is None else _describe_generation(index)
    behind = number(index, "behind", "events") + number(index, "behind", "units")
    if behind:
        parts.append(f"{behind:,} items behind (they are found by keyword)")
    elif generation is not None:
        parts.append("up to date")
    if (building := member(index, "building")) is not None:
        parts.append(f"building: {_describe_build(building)}")
    return "; ".join(parts)


def _describe_build(building: object) -> str:
    """Return the stage of a build, how much of it is done and how long it will take, as far as that is known."""
    text = str(member(building, "stage"))
    if isinstance(percent := member(building, "percent"), int | float) and percent:
        text += f", {percent:.0f} %"
    if isinstance(seconds := member(building, "eta_s"), int):
        text += f", {seconds:,} s left"
    return text


def _time_left(index: object) -> str:
    """Return how long the embedding will take, when that is known."""
    embedding = member(index, "embedding")
    seconds = member(embedding, "eta_s") if isinstance(embedding, dict) else None
    if not isinstance(seconds, int) or not seconds:
        return ""
    return f" (about {seconds // 3600} h left)" if seconds >= 7200 else f" (about {-(-seconds // 60)} min left)"


def _describe_generation(index: object) -> list[str]:
    delta = member(index, "delta")
    parts = [f"generation {member(index, 'generation')}" + (f", delta {delta}" if delta else "")]
    rows = member(index, "rows")
    if isinstance(rows, dict):
        parts.append("rows " + ", ".join(f"{name} {count:,}" for name, count in rows.items()))
    want = number(index, "vectors", "want")
    if want:
        parts.append(f"vectors {number(index, 'vectors', 'have'):,} of {want:,}{_time_left(index)}")
    return parts


def peer_pid(connection: socket.socket) -> int:
    """Return the process id of the daemon at the other end, 0 where the system does not tell."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return 0
    pid: int = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, option, 12))[0]
    return pid


def _open_process(pid: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends; a pid alone may be another's by then."""
    try:
        return os.pidfd_open(pid) if pid else None
    except (AttributeError, OSError):
        return None


def _wait_for_end(connection: socket.socket, watch: int | None) -> bool:
    """Wait until the daemon's process has ended, or at least closed its connections; return whether it has."""
    poll = select.poll()
    poll.register(connection if watch is None else watch, select.POLLIN)
    expires = time.monotonic() + STOP_WAIT_S
    while (remaining := expires - time.monotonic()) > 0:
        if not poll.poll(remaining * 1000):
            return False
        # On the connection more answers may arrive before its end.
        if watch is not None or _at_end(connection):
            return True
    return False


def _at_end(connection: socket.socket) -> bool:
    try:
        return connection.recv(65536) == b""
    except OSError:
        return True


def _report_stopped(options: argparse.Namespace, pid: int | None) -> None:
    if options.json:
        say_json({"stopped": pid is not None, "pid": pid})
    elif pid is None:
        say("no daemon is running")
    else:
        say(f"stopped (pid {pid})")


def _actor_rows(status: object) -> list[tuple[object, ...]]:
    actors = member(status, "actors")
    return [
        (
            name,
            member(actor, "state"),
            member(actor, "restarts"),
            member(actor, "pid") or "",
            member(actor, "mailbox", "count"),
            f"{number(actor, 'in_hand_ms'):,} ms" if member(actor, "in_hand_ms") else "",
        )
        for name, actor in (actors.items() if isinstance(actors, dict) else ())
    ]


def _duration(seconds: object) -> str:
    if not isinstance(seconds, int | float):
        return "?"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s"
