"""What is told of a scan: what the walk found, and what the last build learned of the contents.

A scan does not read notes, so that a note is binary or could not be read is known from the build before; it is
repeated as long as the note is there, and forgotten with it.
"""

from collections.abc import Collection

from actors.generation import Manifest
from actors.generation_builder import skips
from actors.generation_builder.scan import Scan
from actors.messages import ScanResult, Skip
from actors.notes import open_note

_NO_TEXT = (skips.BINARY, skips.NOT_UTF8)
_UNREAD = (skips.UNREADABLE, skips.OFFLINE)


class FileRetries:
    """When to try again to read files that were held: they may become readable without looking any different."""

    PROBES_MAX = 8
    WAIT_S_MIN, WAIT_S_MAX = 60.0, 3600.0

    def __init__(self) -> None:
        self._due: dict[str, tuple[float, float]] = {}  # path: (when, and how long to wait after that)

    def any_readable(self, paths: list[str], now_s: float) -> bool:
        """Probe a few of the files that are due; say whether one of them can be read now.

        A file that was found readable waits like the others: should the build fail on it again, builds do not spin.
        """
        self._due = {path: self._due.get(path, (now_s, self.WAIT_S_MIN)) for path in paths}
        due = sorted((when, path) for path, (when, _) in self._due.items() if when <= now_s)
        for _, path in due[: self.PROBES_MAX]:
            wait_s = self._due[path][1]
            self._due[path] = (now_s + wait_s, min(self.WAIT_S_MAX, 2 * wait_s))
            if _can_read(path):
                return True
        return False


def report(scan: Scan, manifest: Manifest | None, retries: FileRetries, now_s: float) -> ScanResult:
    """Return the answer of a scan. `manifest` is that of the current generation, `now_s` a monotonic time."""
    digest, held, skipped = scan.digest, list(scan.held), scan.skipped.list()
    if manifest is not None:
        known = [skip for skip in (*manifest.skipped, *manifest.held) if skip.reason in (*_NO_TEXT, *_UNREAD)]
        present = _paths(scan) if known else set()
        still = [skip for skip in known if skip.path in present]
        # The scan itself stays as it is: a delta is made of it, and would add what is repeated here to what it knows.
        skipped += [skip for skip in still if skip.reason in _NO_TEXT]
        unread = [skip for skip in still if skip.reason in _UNREAD]
        held += unread
        if retries.any_readable([skip.path for skip in unread], now_s):
            digest = f"{digest} and readable again"
    return ScanResult(
        digest=digest,
        files=sum(root.state.files for root in scan.roots),
        bytes=sum(note.size for root in scan.roots for note in root.notes),
        skipped=skipped,
        held=held,
    )


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


def _can_read(path: str) -> bool:
    try:
        with open_note(path) as file:
            file.read(1)
    except OSError:
        return False
    return True
