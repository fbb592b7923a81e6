"""Whether a root can be watched, which events matter, and when a burst of them is over. Pure: time is an argument."""

from collections.abc import Iterable
from typing import NamedTuple

from actors.generation_builder import ignore

VENV_MARK = "pyvenv.cfg"  # makes a folder one that is passed over, like what `.gitignore` names
# Changes that another machine makes are not told here, and only some of them tell of those of this one.
REMOTE_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "afpfs",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "davfs",
        "drvfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "macfuse",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "osxfuse",
        "prl_fs",
        "sftpfs",
        "smb2",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "webdav",
    }
)


class Mount(NamedTuple):
    """A place where a file system is mounted, and of which type."""

    place: str
    kind: str


def kind_of(path: str, mounts: Iterable[Mount]) -> str:
    """Return the type of the file system that holds a resolved path; "" when no mount is known."""
    best = Mount("", "")
    for mount in mounts:
        if _holds(mount.place, path) and len(mount.place) >= len(best.place):
            best = mount  # of two at one place the later one covers the other
    return best.kind


def _holds(place: str, path: str) -> bool:
    return path == place or path.startswith(place if place.endswith("/") else f"{place}/")


def why_not_watched(kind: str, folders: int, *, folders_left: int, folders_max: int) -> str | None:
    """Return why a root must be polled, None when it can be watched. `folders_left` of `folders_max` are to be had."""
    if kind in REMOTE_FILE_SYSTEMS or kind == "fuse" or kind.startswith("fuse."):
        return f"its file system ({kind}) does not tell of all changes"
    if folders > folders_left:
        return (
            f"it has {folders} folders, of all sources {folders_max} are watched at most "
            "(config: generation_builder.watch_folders_max)"
        )
    return None


def matters(path: str, suffixes: tuple[str, ...], folders: frozenset[str]) -> bool:
    """Say whether an event at this path can change which notes there are; what is no note may still be a folder."""
    name = path.rpartition("/")[2]
    is_seen = not name.startswith(".") and (path.lower().endswith(suffixes) or name == VENV_MARK)
    return is_seen or moves_folders(path, folders)


def moves_folders(path: str, folders: frozenset[str]) -> bool:
    """Say whether an event at this path can change which folders are to be watched."""
    return path in folders or path.rpartition("/")[2] in (ignore.FILE_NAME, VENV_MARK)


class Debounce:
    """Tells when a burst of changes is over: after a time without one, at the latest after a longer time.

    The second bound is for files that are written all the time.
    """

    def __init__(self, quiet_s: float, limit_s: float) -> None:
        assert 0 <= quiet_s <= limit_s
        self._quiet_s = quiet_s
        self._limit_s = limit_s
        self._first = self._last = float("inf")

    def note(self, now_s: float) -> None:
        """Note a change."""
        self._first = min(self._first, now_s)
        self._last = now_s

    def due_at(self) -> float:
        """Return when the burst is over as far as is known now; infinity without one."""
        return min(self._last + self._quiet_s, self._first + self._limit_s)

    def take(self, now_s: float) -> bool:
        """Say whether a burst is over, and forget it if so."""
        if now_s < self.due_at():
            return False
        self._first = self._last = float("inf")
        return True
