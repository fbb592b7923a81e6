"""The file of principals: read once, at the start, and only if nobody else can read or change it."""

import os
import stat
import tomllib
from pathlib import Path

import msgspec

from supervisor.config import ConfigError, PrincipalSettings
from supervisor.principals import Principal, Principals

BYTES_MAX = 1024 * 1024
MODE = 0o600


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file holds."""

    principal: tuple[Principal, ...] = ()


def load(settings: PrincipalSettings) -> Principals:
    """Return who may connect; raise ConfigError where the file is missing, open to others, or makes no sense."""
    try:
        if not settings.file:
            return Principals((), anonymous=settings.anonymous)
        known = _read(Path(settings.file))
        if not known:
            raise ValueError("it names no [[principal]], so nobody could connect")
        return Principals(known, anonymous=settings.anonymous)
    except (ValueError, OSError) as error:
        where = f"{settings.file!r} (config: principals.file)" if settings.file else "(config: principals)"
        raise ConfigError(f"principals {where}: {error}") from error


def _read(path: Path) -> tuple[Principal, ...]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        refuse_open_to_others(os.fstat(fd))
        content = os.read(fd, BYTES_MAX + 1)
    finally:
        os.close(fd)
    if len(content) > BYTES_MAX:
        raise ValueError(f"it is over {BYTES_MAX} bytes")
    # What is wrong in it is said without its text: it may hold what was meant to be a digest and is a token.
    try:
        return msgspec.convert(tomllib.loads(content.decode("utf-8")), File).principal
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it is not readable as TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def refuse_open_to_others(found: os.stat_result) -> None:
    """Raise ValueError unless it is a regular file of ours that nobody else may read or write."""
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is not a regular file")
    if found.st_uid != os.getuid():
        raise ValueError(f"it belongs to user {found.st_uid}, must belong to user {os.getuid()} who runs this")
    mode = stat.S_IMODE(found.st_mode)
    if mode & ~MODE:
        raise ValueError(f"its mode is {mode:04o}, must be {MODE:04o} (chmod 600)")
