"""Poison: messages that incarnations died with, and those that are not dispatched again because of it.

A message is known by the hash of its content, so a client's retry counts as the same one. It is blamed for a death
that found it in hand, acquitted when it (or another with the same content) succeeds, and condemned at the second blame
without a success between them: a read that many clients repeat is not condemned for being there at two kills. A
condemned message is answered with PoisonMessage, by whichever daemon runs on the data directory (the supervisor
persists what is in here), until it is cleared by command or the program's version changes: the fault is often the
program's.

Bounded in both lists; the oldest give way. Pure but for the clock that it is given.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

DEATHS_MAX = 2
CONDEMNED_KEPT = 256
SUSPECTS_KEPT = 1024
# A death that a message once happened to be near to is forgotten: otherwise a second one next month condemns it.
SUSPICION_S = 600.0


class Condemned(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is not dispatched again. `key` is the hash of its content in hex, `at` µs since the epoch, UTC."""

    key: str
    actor: str
    kind: str
    bytes: int
    causes: tuple[str, ...]
    at: int


class _Suspect(msgspec.Struct):
    causes: list[str]
    seen_s: float


class Quarantine:
    """What is suspected, and what is condemned.

    `monotonic_s` and `wall_us` are clocks; `changed` is called whenever the condemned change.
    """

    def __init__(
        self,
        *,
        monotonic_s: Callable[[], float],
        wall_us: Callable[[], int],
        condemned: Iterable[Condemned] = (),
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._monotonic_s = monotonic_s
        self._wall_us = wall_us
        self.changed = changed
        self._suspects: OrderedDict[bytes, _Suspect] = OrderedDict()
        self._condemned: OrderedDict[bytes, Condemned] = OrderedDict()
        for each in condemned:
            self._condemned[bytes.fromhex(each.key)] = each
        self._bound(self._condemned, CONDEMNED_KEPT)

    def blame(self, key: bytes, *, actor: str, kind: str, size: int, cause: str) -> bool:
        """Note that an incarnation died with this message in hand; say whether it is condemned now."""
        now_s = self._monotonic_s()
        suspect = self._suspects.pop(key, None)
        if suspect is None or now_s - suspect.seen_s > SUSPICION_S:
            suspect = _Suspect([], now_s)
        suspect.causes.append(cause)
        suspect.seen_s = now_s
        if len(suspect.causes) < DEATHS_MAX:
            self._suspects[key] = suspect
            self._bound(self._suspects, SUSPECTS_KEPT)
            return False
        self._condemned[key] = Condemned(
            key=key.hex(), actor=actor, kind=kind, bytes=size, causes=tuple(suspect.causes), at=self._wall_us()
        )
        self._bound(self._condemned, CONDEMNED_KEPT)
        self.changed()
        return True

    def acquit(self, key: bytes) -> None:
        """Forget a suspicion: the message has been executed, so it was not the cause."""
        self._suspects.pop(key, None)

    def find(self, key: bytes) -> Condemned | None:
        """Return the verdict on a message, or None when it may be dispatched."""
        return self._condemned.get(key)

    def condemned(self) -> list[Condemned]:
        """Return everything that is not dispatched, oldest first."""
        return list(self._condemned.values())

    def clear(self, key: str | None = None) -> int:
        """Let one message (its key in hex), or all, be dispatched again; return how many were condemned."""
        if key is None:
            count = len(self._condemned)
            self._condemned.clear()
            self._suspects.clear()
        else:
            count = sum(each.key == key for each in self._condemned.values())
            self._condemned = OrderedDict((raw, each) for raw, each in self._condemned.items() if each.key != key)
        if count:
            self.changed()
        return count

    @property
    def suspicious(self) -> bool:
        """Say whether anything is suspected, so that a success may acquit it."""
        return bool(self._suspects)

    @property
    def empty(self) -> bool:
        """Say whether nothing is condemned: the usual answer is yes, and then no message need be hashed."""
        return not self._condemned

    @staticmethod
    def _bound(entries: "OrderedDict[bytes, Condemned] | OrderedDict[bytes, _Suspect]", most: int) -> None:
        while len(entries) > most:
            entries.popitem(last=False)


def key_of(body: bytes) -> bytes:
    """Return the key of an encoded message."""
    return hashlib.blake2b(body, digest_size=16).digest()
