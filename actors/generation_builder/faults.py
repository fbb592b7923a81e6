"""From what the system and LanceDB raise to the errors of the house.

LanceDB raises RuntimeError, ValueError and OSError with the cause in their text; a full disk is told only there.
"""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from actors.errors import BuildFailed, BulkheadError, DiskFull

ERROR_CHARS_MAX = 500
# EFBIG: a limit on the size of files (RLIMIT_FSIZE) means the same to a build as a full disk.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_TEXTS = tuple(f"os error {number})" for number in _FULL)


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn errors of files and of LanceDB into DiskFull or BuildFailed, which say what was being done."""
    try:
        yield
    except BulkheadError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise build_error(what, error) from error


def build_error(what: str, error: Exception) -> BulkheadError:
    """Return the error of the house for one that stopped a build."""
    if is_full(error):
        return DiskFull(
            f"{what}: no room on the disk of the index: {brief(error)}",
            hint="free some space; the generation before goes on serving, and the build is tried again",
        )
    return BuildFailed(f"{what}: {brief(error)}")


def is_full(error: BaseException) -> bool:
    """Say whether a full disk is behind the error."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    return any(text in str(error) for text in _FULL_TEXTS)


def brief(error: BaseException) -> str:
    """Return an error as one line that is short enough for a reply."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= ERROR_CHARS_MAX else f"{text[:ERROR_CHARS_MAX]} …"
