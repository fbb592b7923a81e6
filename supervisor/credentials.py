"""What a program at our end says of itself with its first line: a principal's token, from the environment or a file.

Used by bridges and the command line, whose hosts set BULKHEAD_TOKEN, or BULKHEAD_TOKEN_FILE (a file of mode 0600), and
BULKHEAD_PRINCIPAL where the token alone is not clear enough for a person. Standard library only: the bridge imports it.
"""
# ruff: noqa: PTH111

import json
import os
import stat

TOKEN, TOKEN_FILE, PRINCIPAL = "BULKHEAD_TOKEN", "BULKHEAD_TOKEN_FILE", "BULKHEAD_PRINCIPAL"
# Not for a daemon that is started here, nor for its workers.
SECRETS = (TOKEN, TOKEN_FILE, PRINCIPAL)
BYTES_MAX = 4096


class TokenRefused(Exception):
    """The file of the token cannot be used; says which and why, and nothing of what is in it."""


def hello_line(request_id: str | int, client: str, token_file: str | None = None) -> bytes:
    """Return the line that proves who we are, empty when we are nobody in particular; raise TokenRefused."""
    token = find_token(token_file)
    if token is None:
        return b""
    params = {"client": client, "token": token}
    if principal := os.environ.get(PRINCIPAL):
        params["principal"] = principal
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "hello", "params": params}).encode() + b"\n"


def find_token(token_file: str | None = None) -> str | None:
    """Return the token of the file that is given, else of the environment, None when there is none."""
    if token_file:
        return _read(token_file)
    if token := os.environ.get(TOKEN):
        return token
    named = os.environ.get(TOKEN_FILE)
    return _read(named) if named else None


def _read(path: str) -> str:
    try:
        fd = os.open(os.path.expanduser(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            found = os.fstat(fd)
            content = os.read(fd, BYTES_MAX + 1) if stat.S_ISREG(found.st_mode) else None
        finally:
            os.close(fd)
    except OSError as error:
        raise TokenRefused(f"token file {path!r} not readable: {error.strerror or error}") from error
    if content is None:
        raise TokenRefused(f"token file {path!r} is not a regular file")
    if stat.S_IMODE(found.st_mode) & ~0o600 or found.st_uid != os.getuid():
        mode = stat.S_IMODE(found.st_mode)
        raise TokenRefused(f"token file {path!r} must be ours with mode 0600, its mode is {mode:04o} (chmod 600)")
    token = content.decode("utf-8", "replace").strip()
    if not token or len(content) > BYTES_MAX:
        raise TokenRefused(f"token file {path!r} must hold one token of at most {BYTES_MAX} bytes")
    return token
