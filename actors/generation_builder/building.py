"""One build, step by step: page the truth, stage, fetch known vectors, write, index, test, seal.

A generation is everything up to `covers`; a delta is the same steps over what came after its generation, of which the
delta before hands on what it has. The steps are short calls to the worker, so progress is visible, each has a deadline,
and a kill loses only this build.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from actors.actor import House
from actors.errors import BulkheadError
from actors.mailbox import deadline_after
from actors.messages.base import CORPORA, Done, Message, Rows
from actors.messages.builder_work import (
    BeginBuild,
    BeginDelta,
    IndexTable,
    SealGeneration,
    Staged,
    StageDocuments,
    StageEvents,
    StageUnits,
    StageVectors,
    TestGeneration,
    WriteTable,
)
from actors.messages.cache_manager import GetVectors, Vectors
from actors.messages.core_writer import (
    AllocateGeneration,
    GenerationNumber,
    ListChangedUnits,
    PageUnits,
    SourceRoot,
    UnitIds,
)
from actors.messages.index import Covers, EmbeddingIdentity, GenerationRef
from actors.messages.transcript_appender import EventPage, PageEvents
from actors.settings import GenerationBuilderSettings

Answer = TypeVar("Answer", bound=msgspec.Struct)

ASK_S = 30.0
CACHE_S = 2.0
KEYS_PER_GET = 2048


class Work(Protocol):
    """Make a call to the builder's worker."""

    async def __call__(self, message: Message, answer: type[Answer], *, seconds: float | None = None) -> Answer: ...


Step = Callable[[str, int, int, int], Awaitable[None]]


class BuildPlan:
    """What to build, and with whose help. `previous` is the view that serves meanwhile."""

    def __init__(
        self,
        *,
        house: House,
        work: Work,
        step: Step,
        limits: GenerationBuilderSettings,
        covers: Covers,
        sources: list[SourceRoot],
        identity: EmbeddingIdentity | None,
        previous: GenerationRef | None,
        lender: GenerationRef | None = None,
        at_least: int,
    ) -> None:
        self.house = house
        self.work = work
        self.step = step
        self.limits = limits
        self.covers = covers
        self.sources = sources
        self.identity = identity
        self.previous = previous
        self.lender = lender
        self.at_least = at_least
        self.generation = 0
        self.after = Covers()  # what need not be paged


class TooMuchForDelta(Exception):
    """So much has changed that a new generation is due instead."""


async def build(plan: BuildPlan) -> GenerationRef:
    """Build a complete generation up to the seal and return it. Nothing of it is visible to anybody before the flip."""
    plan.generation = await _allocate(plan)
    await plan.step("begin", plan.generation, 0, 0)
    begin = BeginBuild(
        generation=plan.generation,
        covers=plan.covers,
        identity=plan.identity,
        previous=plan.previous,
        lender=plan.lender,
        sources=plan.sources,
        # Nothing serves yet, so large notes would delay all others; the generation after this one reads them.
        note_bytes_max=plan.limits.delta_note_bytes_max if plan.previous is None else None,
    )
    await plan.work(begin, Done)
    return await _finish(plan)


async def build_delta(plan: BuildPlan, *, base: GenerationRef, delta: int, changes_max: int) -> GenerationRef:
    """Build a delta over a generation up to the seal and return the view of both.

    The delta of `plan.previous` hands its rows on when it lies over the same generation. Raises TooMuchForDelta when
    more than `changes_max` units have changed since.
    """
    plan.generation = base.generation
    before = plan.previous
    if before is None or before.generation != base.generation or before.delta is None:
        before = None
    plan.after = (base if before is None else before).covers
    await plan.step("begin", plan.generation, 0, 0)
    begin = BeginDelta(
        base=base,
        before=before,
        delta=delta,
        covers=plan.covers,
        sources=plan.sources,
        changed_units=await _changed_units(plan, changes_max),
        note_bytes_max=plan.limits.delta_note_bytes_max,
        notes_bytes_max=plan.limits.delta_notes_bytes_max,
    )
    handed = await plan.work(begin, Staged)
    await _fetch_wanted(plan, handed)
    return await _finish(plan)


async def _changed_units(plan: BuildPlan, changes_max: int) -> list[str]:
    after, until = plan.after.core_seq, plan.covers.core_seq
    ids: list[str] = []
    while after < until:
        message = ListChangedUnits(after=after, until=until, limit=plan.limits.page_rows)
        page = await plan.house.ask("core_writer", message, UnitIds, deadline_ns=deadline_after(ASK_S))
        ids += page.ids
        if len(ids) > changes_max:
            raise TooMuchForDelta(f"{len(ids)} units changed")
        if not page.more:
            break
        after = page.last_seq
    return ids


async def _finish(plan: BuildPlan) -> GenerationRef:
    await _stage_events(plan)
    await _stage_units(plan)
    await _stage_documents(plan)
    for corpus in CORPORA:
        await plan.step(f"write {corpus}", plan.generation, 0, 0)
        await plan.work(WriteTable(corpus=corpus), Done)
    for corpus in CORPORA:
        await plan.step(f"index {corpus}", plan.generation, 0, 0)
        await plan.work(IndexTable(corpus=corpus), Done)
    await plan.step("test", plan.generation, 0, 0)
    await plan.work(TestGeneration(), Done)
    await plan.step("seal", plan.generation, 0, 0)
    return await plan.work(SealGeneration(), GenerationRef)


async def _allocate(plan: BuildPlan) -> int:
    answer = await plan.house.ask(
        "core_writer",
        AllocateGeneration(at_least=plan.at_least),
        GenerationNumber,
        deadline_ns=deadline_after(ASK_S),
    )
    return answer.generation


async def _stage_events(plan: BuildPlan) -> None:
    after, total = plan.after.event_seq, plan.covers.event_seq
    more = total > after
    while more:
        await plan.step("events", plan.generation, after, total)
        page = await plan.house.ask(
            "transcript_appender",
            PageEvents(after=after, until=total, limit=plan.limits.page_rows, bytes_max=plan.limits.page_bytes_max),
            EventPage,
            deadline_ns=deadline_after(ASK_S),
        )
        await _stage(plan, StageEvents(rows=page.rows))
        assert page.last_seq > after or not page.more, "a page of events must move on"
        after, more = page.last_seq, page.more


async def _stage_units(plan: BuildPlan) -> None:
    after, total = plan.after.core_seq, plan.covers.core_seq
    more = total > after
    while more:
        await plan.step("units", plan.generation, after, total)
        message = PageUnits(after=after, until=total, limit=plan.limits.page_rows)
        page = await plan.house.ask("core_writer", message, Rows, deadline_ns=deadline_after(ASK_S))
        await _stage(plan, StageUnits(rows=page.rows))
        rows = msgspec.msgpack.decode(page.rows, type=list[_Sequenced])
        assert rows or not page.more, "a page of units must move on"
        after, more = (rows[-1].core_seq if rows else total), page.more


class _Sequenced(msgspec.Struct):
    """The one member of a unit row that paging needs."""

    core_seq: int


async def _stage_documents(plan: BuildPlan) -> None:
    more = bool(plan.sources)
    if more:
        await plan.step("documents", plan.generation, 0, 0)  # the worker reports how many files it has read
    while more:
        staged = await _stage(plan, StageDocuments(files_max=plan.limits.files_per_step))
        more = staged.more


async def _stage(plan: BuildPlan, message: Message) -> Staged:
    """Stage rows, and give the worker the vectors that the cache has for them."""
    staged = await plan.work(message, Staged)
    await _fetch_wanted(plan, staged)
    return staged


async def _fetch_wanted(plan: BuildPlan, staged: Staged) -> None:
    for start in range(0, len(staged.wanted), KEYS_PER_GET):
        await _fetch_vectors(plan, staged.wanted[start : start + KEYS_PER_GET])


async def _fetch_vectors(plan: BuildPlan, keys: list[bytes]) -> None:
    assert plan.identity is not None, "no vectors are wanted without an embedder"
    try:
        vectors = await plan.house.ask(
            "cache_manager",
            GetVectors(identity=plan.identity.key, keys=keys),
            Vectors,
            deadline_ns=deadline_after(CACHE_S),
        )
    except BulkheadError:
        return  # a cache that is away is a miss: the rows are found by their words, and embedded later
    if vectors.found:
        found = [keys[index] for index in vectors.found]
        await plan.work(StageVectors(keys=found, dimensions=vectors.dimensions, blob=vectors.blob), Done)
