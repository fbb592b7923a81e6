"""Where things are: the data directory, the runtime directory, the daemon's socket and the start lock.

Every process that serves or looks for a daemon computes the same names here: the daemon, the bridges, the command
line. Owns no state. Standard library only, and no pathlib: it is a fifth of the bridge's start-up time, and the
bridge is started anew by every host. Not the place for names inside the data directory that only a room knows.
"""
# ruff: noqa: PTH101, PTH102, PTH103, PTH111, PTH112, PTH116, PTH117, PTH118, PTH119, PTH123

import contextlib
import hashlib
import json
import os
import stat
import sys

APPLICATION = "bulkhead"
# `sun_path` holds 108 bytes on Linux and 104 on macOS, with the closing NUL.
SOCKET_BYTES_MAX = 107 if sys.platform == "linux" else 103
SOCKET_NAME_BYTES = 16 + len(".sock")
LOCK = "LOCK"
LOCK_BYTES_MAX = 4096
LOGS = "logs"
DAEMON_STDERR = "daemon.err"


class DirectoryRefused(OSError):
    """The runtime directory is not safe to use: not a folder, or another user's."""


def data_directory(given: str | None = None) -> str:
    """Return the absolute, resolved data directory: `given`, else BULKHEAD_DATA, else the default. Creates nothing."""
    return os.path.realpath(os.path.expanduser(given or os.environ.get("BULKHEAD_DATA") or _default_data()))


def config_file(given: str | None = None) -> str | None:
    """Return the absolute path of the configuration file: `given`, else BULKHEAD_CONFIG, else None."""
    path = given or os.environ.get("BULKHEAD_CONFIG")
    return os.path.realpath(os.path.expanduser(path)) if path else None


def runtime_directory() -> str:
    """Return the folder for sockets and start locks (0700, ours), created when it is missing.

    Raises DirectoryRefused when the name is taken by something else, OSError when it cannot be made.

    Hosts start bridges with an environment of a few variables, so what is not said must lead to the same place:
    /run/user/<uid> is used with and without XDG_RUNTIME_DIR, and TMPDIR is not looked at.
    """
    uid = os.getuid()
    for base in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{uid}"):
        if base and os.path.isabs(base) and _is_private_folder(base, uid):
            folder = os.path.join(base, APPLICATION)
            if len(os.fsencode(folder)) + len("/") + SOCKET_NAME_BYTES <= SOCKET_BYTES_MAX:
                return _ensure_private(folder, uid)
    return _ensure_private(f"/tmp/{APPLICATION}-{uid}", uid)  # noqa: S108 (owner and mode are checked)


def socket_path(data: str) -> str:
    """Return the path of the socket on which the daemon of this data directory listens."""
    return os.path.join(runtime_directory(), _socket_name(data))


def start_lock_path(data: str) -> str:
    """Return the path of the lock that whoever starts the daemon holds meanwhile."""
    return socket_path(data).removesuffix(".sock") + ".start.lock"


def advertised_socket(data: str) -> str | None:
    """Return the socket path that the running daemon wrote into LOCK, None when there is no readable one.

    Only a hint for clients whose environment names another runtime directory than the daemon's. A name that does
    not belong to this data directory is ignored: the folder may be a copy, LOCK included.
    """
    try:
        with open(os.path.join(data, LOCK), "rb") as file:
            content = json.loads(file.read(LOCK_BYTES_MAX))
    except (OSError, ValueError):
        return None
    path = content.get("socket") if isinstance(content, dict) else None
    if not isinstance(path, str) or not os.path.isabs(path) or len(os.fsencode(path)) > SOCKET_BYTES_MAX:
        return None
    return path if os.path.basename(path) == _socket_name(data) else None


def known_path(data: str) -> str:
    """Return the note that says that there has been a memory in this data directory. It lies outside of it, as it must
    be there when the directory is empty or not mounted."""
    base = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/state")
    return os.path.join(base, APPLICATION, "known", _socket_name(data).removesuffix(".sock"))


def daemon_stderr_path(data: str) -> str:
    """Return the file that takes what a daemon started in the background writes to stdout and stderr."""
    return os.path.join(data, LOGS, DAEMON_STDERR)


def make_data_directory(data: str) -> bool:
    """Create the data directory (0700) with its parents; return whether it was missing."""
    try:
        os.makedirs(data, mode=0o700)
    except FileExistsError:
        if not os.path.isdir(data):
            raise
        return False
    return True


def _default_data() -> str:
    # A relative XDG path is to be ignored, says its specification.
    base = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.local/share")
    return os.path.join(base, APPLICATION, "default")


def _socket_name(data: str) -> str:
    # A hash, because the path of a data directory may well be longer than a socket's may be.
    return hashlib.sha256(os.fsencode(os.path.realpath(data))).hexdigest()[:16] + ".sock"


def _is_private_folder(path: str, uid: int) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and os.access(path, os.W_OK | os.X_OK)


def _ensure_private(path: str, uid: int) -> str:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid:
        raise DirectoryRefused(
            f"runtime directory {path!r} refused: it must be a folder of user {uid} (found user {found.st_uid}); "
            "set XDG_RUNTIME_DIR to a private folder"
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        os.chmod(path, 0o700)
    return path
