"""Every operating error of the house: what went wrong, what it means for the caller, what to do.

An operating error is the world's fault (a full disk, a late answer, a bad request) and is answered.
Whatever is not in this tree is a bug: it is not caught in an actor, it crashes it, and the supervisor
answers the callers with `ActorDied`.

Each class has a stable positive code. JSON-RPC reserves -32768 to -32000 for the protocol and MCP
hands out a part of that range, so application codes are positive; `InvalidParams` is the one that maps to
a protocol code (-32602). `outcome` tells the caller whether the effect took place; a caller who reads
`unknown` retries with the same `request_id` and is given the first result.
"""

from typing import ClassVar, Literal

import msgspec

Outcome = Literal["not_executed", "committed", "unknown"]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error as plain data: what crosses a worker's pipe and what a client reads in `error.data`."""

    code: int
    message: str
    outcome: Outcome = "not_executed"
    retryable: bool = False
    retry_after_ms: int | None = None
    hint: str | None = None
    actor: str | None = None
    epoch: int | None = None


class BulkheadError(Exception):
    """The root of the operating errors. `message` says what was attempted, on what, and which limit was in the way."""

    code: ClassVar[int] = 1000
    retryable: ClassVar[bool] = False
    outcome_default: ClassVar[Outcome] = "not_executed"

    def __init__(
        self,
        message: str,
        *,
        outcome: Outcome | None = None,
        retry_after_ms: int | None = None,
        hint: str | None = None,
        actor: str | None = None,
        epoch: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.outcome: Outcome = outcome if outcome is not None else self.outcome_default
        self.retry_after_ms = retry_after_ms
        self.hint = hint
        self.actor = actor
        self.epoch = epoch

    def info(self) -> ErrorInfo:
        """Return the error as plain data."""
        return ErrorInfo(
            code=self.code,
            message=self.message,
            outcome=self.outcome,
            retryable=self.retryable,
            retry_after_ms=self.retry_after_ms,
            hint=self.hint,
            actor=self.actor,
            epoch=self.epoch,
        )


class Overloaded(BulkheadError):
    """The mailbox is full: refused at once, nothing was done. Try again after `retry_after_ms`."""

    code = 1001
    retryable = True


class ActorDied(BulkheadError):
    """The actor died with this message in hand. A write may or may not have committed."""

    code = 1002
    retryable = True
    outcome_default = "unknown"


class ActorRestarting(BulkheadError):
    """The actor is between two incarnations and will not be back before the deadline. Nothing was done."""

    code = 1003
    retryable = True


class DeadlineExceeded(BulkheadError):
    """The deadline passed. `not_executed` when it was still queued, `unknown` once it was under way."""

    code = 1004
    retryable = True


class DiskFull(BulkheadError):
    """The disk had no room for the write; the transaction was rolled back. Reads go on."""

    code = 1005
    retryable = True


class PoisonMessage(BulkheadError):
    """Two incarnations died with this message in hand; it is not dispatched again."""

    code = 1006


class ShuttingDown(BulkheadError):
    """The daemon is draining and takes nothing new."""

    code = 1007
    retryable = True


class GenerationSuspect(BulkheadError):
    """Files of a generation are missing, damaged or not what the manifest says; it is not served."""

    code = 1008
    retryable = True


class Quarantined(BulkheadError):
    """The truth failed its verification and is kept as it is until it is restored by command: nothing is written to
    it, and what of it can't be trusted is read by nobody.
    """

    code = 1009


class ActorUnavailable(BulkheadError):
    """The actor has spent its restarts and is probed from time to time; its mail is refused meanwhile."""

    code = 1010
    retryable = True


class StoreBusy(BulkheadError):
    """The database stayed locked for longer than its busy timeout; the transaction was rolled back."""

    code = 1011
    retryable = True


class StoreBroken(BulkheadError):
    """The database reported an I/O error or damage; whether the write is on disk is unknown."""

    code = 1012
    outcome_default = "unknown"
    retryable = True


class NotFound(BulkheadError):
    """There is no such item, or it is not visible to this client."""

    code = 1013


class Conflict(BulkheadError):
    """The item changed since the version the client expected, or the id is taken by another item."""

    code = 1014


class Held(BulkheadError):
    """Somebody else holds it at present. Nothing was done; try again after `retry_after_ms`."""

    code = 1019
    retryable = True


class PermissionDenied(BulkheadError):
    """Who asks may not do this, or has not proved who it is. Nothing was done."""

    code = 1020


class InvalidParams(BulkheadError):
    """The client's request is not acceptable; says which field, the value and the limit."""

    code = -32602


class EmbeddingUnavailable(BulkheadError):
    """The embedding provider did not give a usable answer: down, slow, rate-limited, or a wrong shape."""

    code = 1015
    retryable = True


class NoGeneration(BulkheadError):
    """No generation has been published yet, so the index has nothing to serve from."""

    code = 1016
    retryable = True


class BuildFailed(BulkheadError):
    """A generation could not be built; the one that was current goes on serving."""

    code = 1017
    retryable = True


class Interrupted(BulkheadError):
    """The work was interrupted at its deadline and rolled back."""

    code = 1018
    retryable = True


ERRORS: dict[int, type[BulkheadError]] = {
    cls.code: cls
    for cls in (
        Overloaded,
        ActorDied,
        ActorRestarting,
        DeadlineExceeded,
        DiskFull,
        PoisonMessage,
        ShuttingDown,
        GenerationSuspect,
        Quarantined,
        ActorUnavailable,
        StoreBusy,
        StoreBroken,
        NotFound,
        Conflict,
        InvalidParams,
        EmbeddingUnavailable,
        NoGeneration,
        BuildFailed,
        Interrupted,
        Held,
        PermissionDenied,
    )
}


def from_info(info: ErrorInfo) -> BulkheadError:
    """Make the exception that `info` describes; an unknown code becomes the root class."""
    return ERRORS.get(info.code, BulkheadError)(
        info.message,
        outcome=info.outcome,
        retry_after_ms=info.retry_after_ms,
        hint=info.hint,
        actor=info.actor,
        epoch=info.epoch,
    )
