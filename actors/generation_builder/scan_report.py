"""What is told of a scan: what the walk found, and what the last build learned of the contents.

A scan does not read notes, so that a note is binary or could not be read is known from the build before; it is
repeated as long as the note is there, and forgotten with it.
"""

from collections.abc import Callable, Collection

from actors.generation import Manifest
from actors.generation_builder import skips
from actors.generation_builder.patience import PATIENCE_S, Patience
from actors.generation_builder.scan import Scan
from actors.messages.builder_work import ScanResult
from actors.messages.index import Skip
from actors.notes import open_note

_NO_TEXT = (skips.BINARY, skips.NOT_UTF8)
_UNREAD = (skips.UNREADABLE, skips.OFFLINE)
_KEPT = (*_UNREAD, skips.DEFERRED)


class FileRetries:
    """When to try again to read files that were held: they may become readable without looking any different."""

    PROBES_MAX = 8
    WAIT_S_MIN, WAIT_S_MAX = 60.0, 3600.0

    def __init__(self, patience: Patience | None = None) -> None:
        self._patience = Patience(PATIENCE_S) if patience is None else patience
        self._due: dict[str, tuple[float, float]] = {}  # path: (when, and how long to wait after that)

    def any_readable(self, paths: list[str], now_s: float, root_of: Callable[[str], str] = lambda path: "") -> bool:
        """Probe a few of the files that are due; say whether one of them can be read now.

        A root (by `root_of` a path) whose file system does not answer is given up for this time.
        A file that was found readable waits like the others: should the build fail on it again, builds do not spin.
        """
        self._due = {path: self._due.get(path, (now_s, self.WAIT_S_MIN)) for path in paths}
        due = sorted((when, path) for path, (when, _) in self._due.items() if when <= now_s)
        for _, path in due[: self.PROBES_MAX]:
            wait_s = self._due[path][1]
            self._due[path] = (now_s + wait_s, min(self.WAIT_S_MAX, 2 * wait_s))
            if self._can_read(root_of(path), path):
                return True
        return False

    def _can_read(self, root: str, path: str) -> bool:
        try:
            self._patience.open(root, lambda: open_note(path)).close()
        except OSError:
            return False
        return True


def report(scan: Scan, manifest: Manifest | None, retries: FileRetries, now_s: float) -> ScanResult:
    """Return the answer of a scan. `manifest` is that of the current generation, `now_s` a monotonic time."""
    digest, held, skipped = scan.digest, list(scan.held), scan.skipped.list()
    if manifest is not None:
        known = [skip for skip in (*manifest.skipped, *manifest.held) if skip.reason in (*_NO_TEXT, *_KEPT)]
        present = _paths(scan) if known else set()
        still = [skip for skip in known if skip.path in present]
        # The scan itself stays as it is: a delta is made of it, and would add what is repeated here to what it knows.
        skipped += [skip for skip in still if skip.reason in _NO_TEXT]
        held += [skip for skip in still if skip.reason in _KEPT]
        unread = [skip for skip in still if skip.reason in _UNREAD]
        if retries.any_readable([skip.path for skip in unread], now_s, lambda path: _root_of(scan, path)):
            digest = f"{digest} and readable again"
    return ScanResult(
        digest=digest,
        files=sum(root.state.files for root in scan.roots),
        bytes=sum(note.size for root in scan.roots for note in root.notes),
        skipped=skipped,
        held=held,
        files_of={root.source.source_id: root.state.files for root in scan.roots},
        held_roots=_held_roots(scan),
        walk_ms_of={name: took_s * 1000 for name, took_s in scan.took_s.items()},
        unfinished=list(scan.unfinished),
    )


def _held_roots(scan: Scan) -> dict[str, Skip]:
    """Return why roots are held as a whole, by source_id."""
    reasons = {skip.path: skip for skip in reversed(scan.held)}
    return {
        root.source.source_id: reasons[root.source.path]
        for root in scan.roots
        if root.held == [""] and root.source.path in reasons
    }


def no_text(manifest: Manifest, scan: Scan, *, read: Collection[tuple[str, str]]) -> list[Skip]:
    """Return what a manifest says of notes that are no text and that lie there still, but for those that were `read`
    since (source_id and place below it).
    """
    again = {
        f"{root.source.path.rstrip('/')}/{note.relative}"
        for root in scan.roots
        for note in root.notes
        if (root.source.source_id, note.relative) in read
    }
    known = [skip for skip in manifest.skipped if skip.reason in _NO_TEXT and skip.path not in again]
    present = _paths(scan) if known else set()
    return [skip for skip in known if skip.path in present]


def _paths(scan: Scan) -> set[str]:
    """Return the notes as skips name them."""
    return {f"{root.source.path.rstrip('/')}/{note.relative}" for root in scan.roots for note in root.notes}


def _root_of(scan: Scan, path: str) -> str:
    """Return the id of the root that a note lies in."""
    owners = (root.source for root in scan.roots if path.startswith(f"{root.source.path.rstrip('/')}/"))
    owner = next(owners, None)
    return "" if owner is None else owner.source_id
