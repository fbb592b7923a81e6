"""What is said about forgetting: to core_writer, who keeps the orders, and by it to those who carry them out.

A tombstone says that an item is forgotten. It names the item and holds none of its content; it is kept for ever.
"""

from typing import Literal

from actors.messages.base import Corpus, Done, EventKind, Message, Row, Rows, Struct

ForgetState = Literal["ordered", "masked", "erased", "gone"]
OPEN_STATES: tuple[ForgetState, ...] = ("ordered", "masked", "erased")


class ForgetScope(Struct, frozen=True, kw_only=True):
    """What is to be forgotten: these ids, or everything that fulfils all given members, or all of the tenant.

    `source` is the channel of an event, `before` is exclusive, in µs. Exactly one of the three ways is given.
    """

    ids: tuple[str, ...] = ()
    session_id: str | None = None
    source: str | None = None
    before: int | None = None
    kinds: tuple[EventKind, ...] = ()
    tags: tuple[str, ...] = ()
    everything_of_tenant: bool = False


class ForgetMemory(Message, frozen=True, kw_only=True):
    """Forget: ordered durably and masked everywhere when this is answered; erased behind that.

    With `dry_run` nothing is changed: how many events and units it would be.
    """

    answer = Row
    scope: ForgetScope
    reason: str
    dry_run: bool = False
    tenant: str = "default"
    request_id: str | None = None

    def may_repeat(self) -> bool:
        """Say whether it has an id by which a repetition is recognised."""
        return self.dry_run or self.request_id is not None


class ProveForgotten(Message, frozen=True, kw_only=True):
    """Say how far an order is, by looking where its items were; NotFound when there is no such order."""

    answer = Row
    forget_id: str
    tenant: str = "default"


# ---------------------------------------------------------------- the actor to its worker


class OrderForget(Message, frozen=True, kw_only=True):
    """Note an order. Of events those with seq <= `event_until` are meant, of units those that exist."""

    answer = Row
    scope: ForgetScope
    reason: str
    event_until: int
    tenant: str = "default"
    request_id: str | None = None


class CountForgettable(Message, frozen=True, kw_only=True):
    """Return in `count` how many units a scope holds."""

    answer = Rows
    scope: ForgetScope
    tenant: str = "default"


class ForgetOrder(Struct, frozen=True, kw_only=True):
    """An order as the worker keeps it. The cursors say how far it has come; `event_until` is where its events end."""

    forget_seq: int
    forget_id: str
    tenant: str
    scope: ForgetScope
    state: ForgetState
    event_until: int
    event_cursor: int
    generation_after: int | None = None


class ForgetOrders(Struct, frozen=True, kw_only=True):
    """Orders, the oldest first."""

    orders: list[ForgetOrder]


class ListOpenForgets(Message, frozen=True, kw_only=True):
    """Return orders of all tenants that are not carried out yet, or the one with this id."""

    answer = ForgetOrders
    forget_id: str | None = None
    limit: int = 16


class ForgetSlice(Struct, frozen=True, kw_only=True):
    """A slice of work was done: on how many rows, and whether there is more. `waits`: something must happen first."""

    rows: int
    more: bool
    waits: bool = False


class ForgetUnits(Message, frozen=True, kw_only=True):
    """Put a tombstone in the place of the next units of an order."""

    answer = ForgetSlice
    forget_seq: int


class ForgottenEvent(Struct, frozen=True, kw_only=True, array_like=True):
    """An event by its id and place."""

    event_id: str
    seq: int


class ForgetEvents(Message, frozen=True, kw_only=True):
    """Put tombstones for events that belong to an order; those up to `cursor` are all known then."""

    answer = Done
    forget_seq: int
    events: list[ForgottenEvent]
    cursor: int


class Tombstone(Struct, frozen=True, kw_only=True, array_like=True):
    """A forgotten item. `seq` is the event's, 0 for a unit. Tombstones are numbered in the order of their making."""

    tombstone_seq: int
    corpus: Corpus
    id: str
    seq: int


class Tombstones(Struct, frozen=True, kw_only=True):
    """Tombstones in the order of their numbers."""

    tombstones: list[Tombstone]
    more: bool


class ListTombstones(Message, frozen=True, kw_only=True):
    """Return tombstones of all tenants after a number, or of one order; `corpus` narrows."""

    answer = Tombstones
    after: int
    limit: int
    forget_seq: int | None = None
    corpus: Corpus | None = None


class EraseUnits(Message, frozen=True, kw_only=True):
    """Remove the content of the next forgotten units of an order, and what kept results of requests have of them."""

    answer = ForgetSlice
    forget_seq: int


class AdvanceForget(Message, frozen=True, kw_only=True):
    """Note that an order has come to a state, never back."""

    answer = Row
    forget_seq: int
    state: ForgetState


class ScourKeywords(Message, frozen=True, kw_only=True):
    """Let no word of what was taken out stay in the file of the keyword index; a bounded step of it."""

    answer = ForgetSlice


class ScourWal(Message, frozen=True, kw_only=True):
    """Let no copy of what was removed stay in a WAL of the truth. `waits`: somebody is reading just now."""

    answer = ForgetSlice


class LookForForgotten(Message, frozen=True, kw_only=True):
    """Count what a room's files still hold of an order's items: `rows` with content."""

    answer = ForgetSlice
    forget_seq: int = 0
    seqs: tuple[int, ...] = ()


class GetForget(Message, frozen=True, kw_only=True):
    """Return the receipt of an order; NotFound."""

    answer = Row
    forget_id: str
    tenant: str = "default"


class ListForgets(Message, frozen=True, kw_only=True):
    """Return receipts, the newest first, older than `before` (a forget_seq) when given."""

    answer = Rows
    limit: int
    before: int | None = None
    tenant: str = "default"


# ---------------------------------------------------------------- to transcript_appender


class ForgettableEvents(Struct, frozen=True, kw_only=True):
    """Events of a scope, in the order of seq; everything up to `cursor` was looked at."""

    events: list[ForgottenEvent]
    cursor: int
    more: bool


class FindForgettable(Message, frozen=True, kw_only=True):
    """Find the events of a scope with after < seq <= until; those that are forgotten already do not count."""

    answer = ForgettableEvents
    scope: ForgetScope
    after: int
    until: int
    limit: int
    tenant: str = "default"


class HideEvents(Message, frozen=True, kw_only=True):
    """Answer nobody with these events from now on. Durable on answer; `rows` is how many are hidden in all."""

    answer = ForgetSlice
    seqs: tuple[int, ...]


class UnindexEvents(Message, frozen=True, kw_only=True):
    """Take hidden events out of the keyword index, as long as their words can still be read."""

    answer = ForgetSlice
    seqs: tuple[int, ...]


class EraseEvents(Message, frozen=True, kw_only=True):
    """Remove the content of hidden events; they must be out of the keyword index."""

    answer = ForgetSlice
    seqs: tuple[int, ...]


# ---------------------------------------------------------------- in generation_builder


class CountGenerations(Message, frozen=True, kw_only=True):
    """The builder to its worker: count what is on the disk of generations with this number or a lower one."""

    answer = ForgetSlice
    until: int


ForgetMessage = (
    OrderForget
    | CountForgettable
    | ListOpenForgets
    | ForgetUnits
    | ForgetEvents
    | ListTombstones
    | EraseUnits
    | AdvanceForget
    | ScourKeywords
    | ScourWal
    | LookForForgotten
    | GetForget
    | ListForgets
)
ForgetterMessage = ForgetMemory | ProveForgotten  # the actor's own: they take more than one room
TranscriptForgetMessage = (
    FindForgettable | HideEvents | UnindexEvents | EraseEvents | ScourKeywords | ScourWal | LookForForgotten
)
