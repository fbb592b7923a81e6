"""What a scan leaves out, and how it is told: every surprise by name, the routine by number, all within bounds.

A note that is silently not there is a fault, so each skip that a person could be surprised by is listed with its
reason. What everybody expects to be left out (hidden files, `.gitignore`) is counted, one line a root.
Pure.
"""

import os
from collections import Counter

from actors.messages.index import Skip

SKIPS_MAX = 1000

# Reasons of single files and folders.
TOO_LARGE = "too_large"
TOO_MANY = "too_many_files"
UNREADABLE = "unreadable"  # permission, I/O error: what was indexed of it before is kept
OFFLINE = "offline"  # a placeholder whose content is elsewhere: kept as well
BINARY = "binary"
NOT_UTF8 = "not_utf8"
CHANGED = "changed_while_read"
NOT_A_FILE = "not_a_file"
BAD_NAME = "name_not_utf8"
LINK_OUTSIDE = "symlink_outside"
LINK_DANGLING = "symlink_dangling"
LINK_LOOP = "symlink_loop"
DEFERRED = "waits"  # too large for a delta: the next generation reads it, what was indexed of it before is kept
# Reasons of whole roots.
HANGS = "does_not_answer"  # its file system: kept as it was, and looked at again when it answers
WALKING = "not_walked_yet"  # its first walk takes long: kept as it was until then
VANISHED = "vanished"
NOT_A_FOLDER = "not_a_folder"
EMPTIED = "emptied"
# Not a skip: the line that counts, and the one that ends a long list.
ROUTINE = "routine"
MORE = "more"


class SkipList:
    """Skips in the order in which they were found, at most SKIPS_MAX of them by name."""

    def __init__(self) -> None:
        self._listed: list[Skip] = []
        self._more = 0
        self._routine: dict[str, Counter[str]] = {}

    def add(self, path: str, reason: str, detail: str = "") -> None:
        """List a skip that a person could be surprised by."""
        if len(self._listed) < SKIPS_MAX:
            self._listed.append(Skip(path=printable(path), reason=reason, detail=detail))
        else:
            self._more += 1

    def extend(self, skips: list[Skip]) -> None:
        """List skips that were found elsewhere; what their list had no room for is counted here."""
        for skip in skips:
            if skip.reason == MORE:
                self._more += int(skip.detail.split()[0])
            else:
                self.add(skip.path, skip.reason, skip.detail)

    def take_in(self, other: "SkipList") -> None:
        """List and count what another list holds."""
        for skip in other._listed:
            self.add(skip.path, skip.reason, skip.detail)
        self._more += other._more
        for root, counted in other._routine.items():
            self._routine.setdefault(root, Counter()).update(counted)

    def count(self, root: str, what: str) -> None:
        """Count something that everybody expects to be left out."""
        self._routine.setdefault(root, Counter())[what] += 1

    def list(self) -> list[Skip]:
        """Return what was left out: the named ones, how many more, and one line a root for the routine."""
        skips = list(self._listed)
        if self._more:
            skips.append(Skip(path="", reason=MORE, detail=f"{self._more} more are not listed"))
        for root, counted in self._routine.items():
            detail = ", ".join(f"{count} {what}" for what, count in sorted(counted.items()))
            skips.append(Skip(path=printable(root), reason=ROUTINE, detail=detail))
        return skips


def printable(path: str) -> str:
    """Return a path that can be encoded: bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
