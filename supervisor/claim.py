"""The claim on a data directory: one daemon each, known by its identity, reachable through one socket.

Owns LOCK (held for life; never inherited by a child, or it would outlive the daemon), IDENTITY and the socket.
Refuses a network file system, where neither locks nor fsync can be relied on, and a directory without its identity.
Kept free of heavy imports: the socket must take connections before the rest is loaded.
"""

import contextlib
import fcntl
import json
import os
import socket
import time
import uuid
from pathlib import Path

from supervisor import exit_codes, paths
from supervisor.version import VERSION

BACKLOG = 128
IDENTITY = "IDENTITY"
# In a directory that a restore has made (restoring.py), until it has its name and everything that belongs to it.
INTERRUPTED_RESTORE = "RESTORE.json"
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "fuse.sshfs", "ceph", "glusterfs"}
)


class Refused(Exception):
    """The daemon cannot run here; says why, and with which exit code it leaves."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Claim:
    """The data directory, held: its lock, its identity, its socket."""

    def __init__(self, data: Path) -> None:
        self.data = data
        try:
            self._refuse_half_restored()
            paths.make_data_directory(str(data))
            self._refuse_network()
            self.lock_fd = self._take_lock()
            self._refuse_half_restored()  # that may have begun before the lock was ours
            self.identity = self._identity()
            self._remember()
            self.socket_path = paths.socket_path(str(data))
            self.socket = self._listen()
            self._write_lock()
        except OSError as error:
            raise Refused(f"data directory {str(data)!r} cannot be used: {error}", exit_codes.CANNOT_CREATE) from error

    def _refuse_network(self) -> None:
        kind = file_system_of(self.data)
        if kind in NETWORK_FILE_SYSTEMS:
            raise Refused(
                f"data directory {str(self.data)!r} is on a {kind} file system; locks and fsync cannot be relied on "
                "there, use a local disk",
                exit_codes.CANNOT_CREATE,
            )

    def _refuse_half_restored(self) -> None:
        """A directory that is about to be replaced by a complete one must not be begun anew or written to."""
        if (draft_of(self.data) / INTERRUPTED_RESTORE).exists():
            raise Refused(
                f"data directory {str(self.data)!r} is being restored, or that was interrupted; run `bulkhead restore` "
                "again, it completes what is missing",
                exit_codes.TEMPORARY,
            )

    def _take_lock(self) -> int:
        """Take the lock for life. The descriptor is not inheritable, so no child can keep it after our death."""
        fd = os.open(self.data / paths.LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(fd)
            raise Refused(
                f"another daemon holds {str(self.data)!r}; connect to it with `bulkhead stdio`, or stop it with "
                "`bulkhead stop`",
                exit_codes.TEMPORARY,
            ) from error
        return fd

    def held(self) -> bool:
        """Say whether the lock still protects the directory: the file at its path is the one that is locked."""
        try:
            found = (self.data / paths.LOCK).stat()
        except OSError:
            return False
        mine = os.fstat(self.lock_fd)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _write_lock(self) -> None:
        """Say who holds it. Informative only, and for clients that would compute another socket path."""
        content = {"pid": os.getpid(), "started_at": time.time(), "version": VERSION, "socket": self.socket_path}
        os.ftruncate(self.lock_fd, 0)
        os.pwrite(self.lock_fd, json.dumps(content).encode() + b"\n", 0)

    def _identity(self) -> str:
        """Return the uuid of this data directory; a directory that was known and is empty now is refused."""
        path = self.data / IDENTITY
        with contextlib.suppress(FileNotFoundError):
            return path.read_text(encoding="ascii").strip()
        if (self.data / "core_writer" / "core.db").exists():
            raise Refused(
                f"data directory {str(self.data)!r} holds memory but its {IDENTITY} file is gone; put it back from "
                "a backup, its content is also in core.db (table meta)",
                exit_codes.CANNOT_CREATE,
            )
        self._refuse_emptied()
        identity = str(uuid.uuid4())
        temporary = path.with_suffix(".tmp")
        with temporary.open("w", encoding="ascii") as file:
            file.write(identity + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        folder = os.open(self.data, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return identity

    def _refuse_emptied(self) -> None:
        """Refuse to begin a memory where there has been one: the disk may not be mounted, or the files moved away."""
        note = Path(paths.known_path(str(self.data)))
        try:
            known = note.read_text(encoding="utf-8").split("\n")[0]
        except (OSError, UnicodeDecodeError):
            return
        raise Refused(
            f"data directory {str(self.data)!r} held a memory (identity {known[:36]!r}) and is empty now: is its disk "
            f"mounted? To begin an empty one, delete {str(note)!r}; to restore a backup: bulkhead restore",
            exit_codes.CANNOT_CREATE,
        )

    def _remember(self) -> None:
        """Note that there is a memory here. Best effort: without the note only an emptied directory goes unnoticed."""
        note = Path(paths.known_path(str(self.data)))
        with contextlib.suppress(OSError):
            if not note.exists() or note.read_text(encoding="utf-8").split("\n")[0] != self.identity:
                note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                temporary = note.with_name(f"{note.name}.{os.getpid()}.tmp")
                temporary.write_text(f"{self.identity}\n{self.data}\n", encoding="utf-8")
                temporary.replace(note)

    def _listen(self) -> socket.socket:
        """Bind the socket. Under the lock a socket file that is there is a dead daemon's, and may go."""
        with contextlib.suppress(FileNotFoundError):
            Path(self.socket_path).unlink()
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listening.bind(self.socket_path)
        finally:
            os.umask(before)
        listening.listen(BACKLOG)
        listening.setblocking(False)
        return listening

    def release(self) -> None:
        """Remove the socket and let go of the lock; the lock file itself stays, or two could hold it."""
        with contextlib.suppress(OSError):
            Path(self.socket_path).unlink()
        self.socket.close()
        os.close(self.lock_fd)


def draft_of(data: Path) -> Path:
    """Return where a restore makes the directory that is to replace this one."""
    return data.with_name(f"{data.name}.restore.tmp")


def file_system_of(path: Path) -> str | None:
    """Return the type of the file system that holds a path, or None where it cannot be told."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].replace("\\040", " ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind
