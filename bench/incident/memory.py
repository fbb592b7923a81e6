"""What a client does with a system, whichever it is, and where it finds it.

Not part of load.py: that is run as a program, and a class of a program is not the same as that of the module.
"""

from typing import ClassVar, Protocol

import msgspec


class Refused(Exception):
    """An operation failed; `outcome` says how, as in `results.Op`."""

    def __init__(self, outcome: str) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Memory(Protocol):
    """What a client does with a system. Operations raise Refused. Used by one thread at a time."""

    def append(self, number: int) -> None:
        """Append turn `number` of the conversation, durably."""
        ...

    def approve(self, number: int) -> None:
        """Write approval `number`, durably."""
        ...

    def search(self, number: int) -> tuple[str, ...]:
        """Ask question `number`; return what the answer says it lacks."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class BulkheadSpec(msgspec.Struct, frozen=True, kw_only=True, tag="bulkhead"):
    """Where a daemon is."""

    works_in_clients: ClassVar[bool] = False

    data: str


class MonolithSpec(msgspec.Struct, frozen=True, kw_only=True, tag="monolith"):
    """Where the one file is, and the port of its embedding endpoint."""

    works_in_clients: ClassVar[bool] = True

    database: str
    endpoint_port: int


Spec = BulkheadSpec | MonolithSpec
