"""Who may speak to the daemon, for which tenant, and what each may do: the rules, without I/O.

A principal is proved by a token, of which only the sha256 is kept. `hello` binds a connection to one principal,
once. Without principals in the configuration there is one: the owner of the socket, who may do everything. What is
done for a tenant is narrowed to that tenant by the stores; here it is only decided which tenant that is.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from actors.errors import InvalidParams, PermissionDenied
from actors.messages.base import Caller

Capability = Literal["read", "write", "forget", "admin"]
CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
DIGEST = re.compile(r"[0-9a-f]{64}")
# What the owner of the socket was called before principals could be configured.
OWNER_NAMES = ("owner", "local")
HOW = "say hello with a token (bulkhead: BULKHEAD_TOKEN or --token-file)"


class Principal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Somebody who may connect. Without a digest nobody can prove to be it."""

    name: str
    tenant: str
    may: frozenset[Capability]
    token_sha256: str = ""


LOCAL = Principal(name="local", tenant="default", may=CAPABILITIES)


class Principals:
    """All that are known, and the one that a connection is before it says who it is (None: nobody)."""

    def __init__(self, known: Iterable[Principal], *, anonymous: str = "") -> None:
        """Raise ValueError where the set makes no sense; the message says which principal and what is wrong."""
        self._known = tuple(known)
        for principal in self._known:
            _check(principal)
        _refuse_twice("name", (principal.name for principal in self._known))
        _refuse_twice("token_sha256", (each.token_sha256 for each in self._known if each.token_sha256))
        self.configured = bool(self._known)
        self.anonymous = self._anonymous(anonymous)

    @property
    def several_tenants(self) -> bool:
        """Say whether there is more than one tenant, whose doings must not be told to one another."""
        return len({principal.tenant for principal in self._known}) > 1

    def _anonymous(self, name: str) -> Principal | None:
        if not self.configured and not name:
            return LOCAL
        if not name:
            return None
        found = next((each for each in self._known if each.name == name), None)
        if found is None:
            raise ValueError(f"anonymous is {name!r}, but there is no principal of that name")
        return found

    def identify(self, name: str | None, token: str | None) -> Principal:
        """Return the principal that a token proves; raise PermissionDenied without saying what of it was wrong.

        The token is compared with every digest, to the end, so that the time tells nothing of which came close.
        """
        if not self.configured:
            return _owner(name, token)
        if token is None:
            raise PermissionDenied("hello refused: a token is missing", hint=HOW)
        digest = token_digest(token)
        found = None
        for principal in self._known:
            same = hmac.compare_digest(digest, principal.token_sha256 or "-" * len(digest))
            if same and name in (None, principal.name):
                found = principal
        if found is None:
            raise PermissionDenied("hello refused: no principal has this name and this token", hint=HOW)
        return found


def _owner(name: str | None, token: str | None) -> Principal:
    """Return the only principal there is when none is configured; a token that nobody checks is refused."""
    if name is not None and name not in OWNER_NAMES:
        raise InvalidParams(
            f"hello: unknown principal {name!r}", hint="the socket is private to its owner; leave principal out"
        )
    if token is not None:
        raise InvalidParams(
            "hello: a token was given, but no principals are configured to compare it with",
            hint="leave token out, or name a file of principals (config: principals.file)",
        )
    return LOCAL


class Visitor:
    """The one at the other end of a connection. Becomes somebody once, by hello, and stays that."""

    def __init__(self, principals: Principals) -> None:
        self._principals = principals
        self._proved = not principals.configured
        self._client = ""
        self.principal = principals.anonymous

    def introduce(self, *, client: str, name: str | None, token: str | None) -> Principal:
        """Take what hello says and return who it is from now on; raise PermissionDenied."""
        if name is None and token is None and self.principal is not None:
            found = self.principal
        else:
            found = self._principals.identify(name, token)
            if self._proved and found != self.principal:
                raise PermissionDenied(
                    "hello refused: this connection has said already who it is", hint="open another connection"
                )
            self._proved = True
        self.principal = found
        self._client = client
        return found

    @property
    def caller(self) -> Caller:
        """Return who asks, as messages carry it."""
        if self.principal is None:
            return NOBODY
        return Caller(tenant=self.principal.tenant, principal=self.principal.name, client=self._client)

    @property
    def may(self) -> frozenset[Capability]:
        """Return what it may do."""
        return self.principal.may if self.principal is not None else frozenset()


# A connection that has not said who it is. No message leaves the routes under this name.
NOBODY = Caller(tenant="", principal="")


def require(needs: Capability | None, may: frozenset[Capability], caller: Caller, method: str) -> None:
    """Raise PermissionDenied unless somebody who may do these things may call this method."""
    if needs is None or needs in may:
        return
    if caller == NOBODY:
        raise PermissionDenied(f"{method} refused: this connection has not said who it is", hint=HOW)
    raise PermissionDenied(
        f"{method} refused: it needs {needs!r}, and principal {caller.principal!r} may {', '.join(sorted(may))}",
        hint="the file of principals says who may do what (config: principals.file)",
    )


def token_digest(token: str) -> str:
    """Return what is kept of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _check(principal: Principal) -> None:
    for member, value in (("name", principal.name), ("tenant", principal.tenant)):
        if NAME.fullmatch(value) is None:
            raise ValueError(
                f"principal {principal.name!r}: {member} is {value!r}, must be 1 to 64 letters, digits and ._@- "
                "and begin with a letter or digit"
            )
    if not principal.may:
        raise ValueError(f"principal {principal.name!r}: may is empty, must be some of {sorted(CAPABILITIES)}")
    if principal.token_sha256 and DIGEST.fullmatch(principal.token_sha256) is None:
        raise ValueError(
            f"principal {principal.name!r}: token_sha256 is not the sha256 of a token in 64 lower-case hex digits "
            "(`bulkhead token` makes one)"
        )


def _refuse_twice(member: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            shown = repr(value) if member == "name" else "the same value"
            raise ValueError(f"two principals have {shown} as {member}")
        seen.add(value)
