"""The .gitignore files of a tree: which of its entries they leave out. Matching is `pathspec`'s.

As in git: the rules of the nearest folder are asked first, then those above it, and the first that has an opinion
decides; an ignored folder is not entered, so nothing below it can be brought back. A pattern that is not valid is
passed over, as git does, and does not take the rest of its file with it.
"""

import re
from typing import NamedTuple

from pathspec import GitIgnoreSpec

FILE_NAME = ".gitignore"
FILE_BYTES_MAX = 1 << 20


class Rules(NamedTuple):
    """The rules of one .gitignore file, which holds for what is below `folder`, over those of the folders above."""

    folder: str
    spec: GitIgnoreSpec
    above: "Rules | None"


def add_rules(above: Rules | None, folder: str, content: bytes) -> Rules | None:
    """Return the rules below `folder` (relative to the root, "" for the root itself), given its .gitignore file."""
    valid = [line for line in content[:FILE_BYTES_MAX].decode("utf-8", "replace").splitlines() if _is_valid(line)]
    return Rules(folder, GitIgnoreSpec.from_lines(valid, backend="simple"), above) if valid else above


def _is_valid(line: str) -> bool:
    """Say whether the line is a pattern, and not blank, a comment or a mistake."""
    if not line.strip() or line.startswith("#"):
        return False
    try:
        GitIgnoreSpec.from_lines([line], backend="simple")
    except (ValueError, re.error):
        return False
    return True


def is_ignored(rules: Rules | None, relative: str, *, folder: bool) -> bool:
    """Say whether the entry at `relative` (to the root) is left out."""
    while rules is not None:
        path = relative[len(rules.folder) + 1 :] if rules.folder else relative
        included = rules.spec.check_file(f"{path}/" if folder else path).include
        if included is not None:
            return bool(included)
        rules = rules.above
    return False
