"""searcher, the trio side: asks the generation and the truth at the same time, and makes one answer of both.

What a reply can rest on, best first:
* the generation with the delta over it, plus the keyword hits of everything newer than both (an acknowledged write is
  found at once, P8);
* with no generation or no worker, the keyword hits of the whole truth, marked degraded;
* whatever of these came back in time (P6). A part that failed is named in `degraded`; no failure is remembered.
"""

import time
from collections import deque
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from actors.actor import Board, House, serve_tray
from actors.embedding.failures import ForeignSpace
from actors.embedding.identity import settings_for
from actors.embedding.remote_query import RemoteQueryEmbedder
from actors.embedding.space import SpaceFile
from actors.envelope import Envelope
from actors.errors import (
    ActorUnavailable,
    BulkheadError,
    GenerationSuspect,
)
from actors.mailbox import CONTROL_TRAY, DEFAULT_TRAY, deadline_after, seconds_until
from actors.messages.base import Candidate, Candidates, Done, Message, Row, SearchMode
from actors.messages.core_writer import ListSources, SearchUnits, SourceRoots
from actors.messages.generation_builder import ReportSuspect
from actors.messages.index import Comparison, EmbeddingIdentity, GenerationRef, view_name
from actors.messages.searcher import (
    CompareGenerations,
    Folder,
    GetIndexView,
    IndexView,
    PrepareGeneration,
    Query,
    QueryResult,
    ReadDocument,
    ReadLines,
    ResolveFolder,
    Search,
    SearchAnswer,
    ServeGeneration,
    Tried,
    TryView,
)
from actors.messages.transcript_appender import SearchEvents
from actors.notices import BuilderNotice, ForgetNotice, SearchActivity, SearcherNotice
from actors.searcher.asking import Asker, Inquiry, NobodyServes, NoTurn
from actors.searcher.blame import Case
from actors.searcher.comparing import RECENT, TOP, Hit, Pairing
from actors.searcher.leases import Leases
from actors.searcher.pair import Pair
from actors.searcher.pool import Pool
from actors.searcher.ranking import (
    Ranked,
    at_least,
    fuse,
    identifiers,
    low_confidence,
    mask,
    merge_overlay,
    weight_for,
)
from actors.searcher.reply import Quality, encode_reply
from actors.searcher.tombstones import DETAIL, UNKNOWN, Forgotten
from actors.searcher.truth import Owners, Truth
from actors.searcher.trying import try_view
from actors.settings import EmbeddingSettings, SearcherSettings
from actors.worker import WorkerDied, WorkerSpec

# The workers are rationed elsewhere; this bounds what is asked of the truth at a time. Measured with 64 searches of
# 300 ms at once on 2 cores: with 16 in hand 25 of them had hits, with 32 29, with 64 21; all ended by 350 ms.
AT_ONCE = 32
CONTROLS_AT_ONCE = 4
# Of the time that is left, the share for the generation: what remains is for the keyword search that replaces it.
GENERATION_SHARE = 0.7
ANSWER_NS = 30_000_000  # kept back from the deadline for ranking and encoding
FOLLOW_EVERY_S = 1.0
WORKER_WAIT_S = 15.0  # a search worker imports LanceDB first, seconds on a busy machine
COMPARE_S = 10.0  # what is compared by then is enough; the flip waits for it
REMOTE = "openai-compatible"

CONTROLS = (PrepareGeneration, ServeGeneration, CompareGenerations, TryView, GetIndexView)

Answer = TypeVar("Answer", bound=msgspec.Struct)


def tray_of(message: Message) -> str:
    """Keep what concerns the index itself apart: it must never wait behind searches."""
    return CONTROL_TRAY if isinstance(message, CONTROLS) else DEFAULT_TRAY


class Gathered:
    """What has come back for one search so far."""

    def __init__(self) -> None:
        self.begun = trio.Event()  # a worker has it in hand
        self.result: QueryResult | None = None
        self.truth = Truth()
        self.degraded: list[tuple[str, str]] = []


class Searcher:
    """One incarnation of searcher."""

    def __init__(
        self,
        house: House,
        *,
        spec: WorkerSpec,
        limits: SearcherSettings,
        embedding: EmbeddingSettings,
        index: Board[BuilderNotice],
        board: Board[SearcherNotice],
        searching: Board[SearchActivity],
        index_directory: Path,
        forgetting: Board[ForgetNotice],
    ) -> None:
        self.house = house
        self.limits = limits
        self.index = index
        self.board = board
        self._searching = searching
        self._embedding = embedding
        self._spaces = SpaceFile(index_directory)
        self._remotes: dict[str, RemoteQueryEmbedder | None] = {}  # by the key of the identity
        self._recent: deque[Search] = deque(maxlen=RECENT)
        self._pair = Pair(self._changed)
        self._asker = Asker(self._pair, seats=limits.threads)
        self._pool = Pool(house, spec, self._pair, limits=limits, suspect=self._report)
        self._leases = Leases()
        self._owners = Owners(house)
        self._forgotten = Forgotten(house, forgetting)
        self._serving: GenerationRef | None = None
        self._prepared: int | None = None  # the view that was opened last before it was published
        self._searches = 0
        self._degraded = 0

    # ------------------------------------------------------------ life

    async def run(self) -> None:
        """Serve at once by keyword; the workers come up beside that."""
        self._serve_generation(self.index.notice.serving)
        await self._forgotten.start()
        self.house.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._asker.run)
            nursery.start_soon(self._owners.run)
            nursery.start_soon(self._forgotten.run)
            nursery.start_soon(self._pool.run)
            nursery.start_soon(self._follow_index)
            nursery.start_soon(self._close_unread)
            nursery.start_soon(self._serve_controls)
            nursery.start_soon(self._serve_mail)

    def _changed(self) -> None:
        """Wake who waits for a worker, and tell the house who serves."""
        self._asker.nudge()
        active, spare = (None if slot.worker is None else slot.worker.pid for slot in self._pair)
        self.board.post(
            SearcherNotice(
                serving=None if self._serving is None else self._serving.generation,
                delta=None if self._serving is None else self._serving.delta,
                workers_ready=sum(pid is not None for pid in (active, spare)),
                loaded=0 if self._serving is None else len(self._pair.serving(self._serving.view)),
                active_pid=active,
                spare_pid=spare,
                failovers=self._pair.failovers,
                hedges=self._asker.hedges,
                repeats=self._asker.repeats,
                views=max(len(slot.held) for slot in self._pair),
                recycled=self._pool.recycled,
                searches=self._searches,
                degraded=self._degraded,
                last_error=self._pool.last_error,
            )
        )

    async def _follow_index(self) -> None:
        """Adopt what the builder serves: its message may have been lost."""
        while True:
            with trio.move_on_after(FOLLOW_EVERY_S):
                await self.index.wait_changed()
            self._serve_generation(self.index.notice.serving)

    async def _close_unread(self) -> None:
        """Close what nobody needs; a worker that takes its time over it holds up nothing else.

        Not only what served once: a view that was prepared may never be published, and one may be given up while it
        is being opened.
        """
        while True:
            for view in sorted({*self._leases.retired(), *self._pool.held()}):
                if view in self._needed():
                    continue
                # It may have come back into service by the time it is closed.
                if await self._pool.drop(view) and view in self._leases.retired():
                    self._leases.forget(view)
            self._changed()  # the counters
            await trio.sleep(FOLLOW_EVERY_S)

    def _needed(self) -> set[int]:
        """Return the views that serve, are read, or are about to be published; a build that ended publishes nothing."""
        notice = self.index.notice
        needed = set(self._leases.leased())
        if notice.serving is not None:
            needed.add(notice.serving.view)
        under_way = notice.building is not None or notice.delta_building is not None
        if self._prepared is not None and under_way:
            needed.add(self._prepared)
        return needed

    def _serve_generation(self, ref: GenerationRef | None) -> None:
        if ref == self._serving and self._leases.serving == (None if ref is None else ref.view):
            return
        self._serving = ref
        self._leases.swap(None if ref is None else ref.view)
        self._pool.want(ref)

    def _report(self, view: int, detail: str) -> None:
        """Have the builder look into a view that cannot be read."""
        self._pool.last_error = detail
        self.house.log.error("generation not readable", extra={"generation": view_name(view), "error": detail})
        self.house.tell("generation_builder", ReportSuspect(view=view, detail=detail))

    # ------------------------------------------------------------ mail

    async def _serve_controls(self) -> None:
        await serve_tray(self.house.mailbox, CONTROL_TRAY, self._serve, at_once=CONTROLS_AT_ONCE)

    async def _serve_mail(self) -> None:
        await serve_tray(self.house.mailbox, DEFAULT_TRAY, self._serve, at_once=AT_ONCE)

    async def _serve(self, envelope: Envelope) -> None:
        message = envelope.message
        answer: msgspec.Struct
        match message:
            case Search():
                answer = await self._search(message, envelope.deadline_ns, envelope.client)
            case ReadDocument():
                answer = await self._read(message, envelope.deadline_ns)
            case ResolveFolder():
                answer = await self._ask_any(message, Folder, envelope.deadline_ns)
            case PrepareGeneration():
                answer = await self._prepare(message.generation, anew=message.anew)
            case ServeGeneration():
                self._serve_generation(message.generation)
                answer = Done()
            case CompareGenerations():
                answer = await self._compare(message)
            case TryView():
                answer = await self._try(message, envelope.deadline_ns)
            case GetIndexView():
                answer = IndexView(serving=self._leases.serving, leased=self._leases.leased())
            case _:
                raise TypeError(f"searcher does not take {type(message).__name__}")
        self.house.mailbox.finish(envelope, answer)

    async def _prepare(self, generation: GenerationRef, *, anew: bool = False) -> Done:
        self._prepared = generation.view
        try:
            if await self._pool.prepare(generation, anew=anew):
                return Done()
        except WorkerDied as error:
            raise ActorUnavailable(f"search worker died while it opened the generation: {error.cause}") from error
        raise ActorUnavailable("no search worker is up to open the generation", retry_after_ms=1000)

    async def _read(self, message: ReadDocument, deadline_ns: int) -> Row:
        known = await self.house.ask(
            "core_writer", ListSources(tenant=message.tenant), SourceRoots, deadline_ns=deadline_ns
        )
        read = ReadLines(path=message.path, from_line=message.from_line, lines=message.lines, sources=known.sources)
        return await self._ask_any(read, Row, deadline_ns)

    async def _ask_any(self, message: Message, answer: type[Answer], deadline_ns: int) -> Answer:
        """Ask whichever worker lives; right after the start it is worth waiting a moment for the first."""
        with trio.move_on_after(min(WORKER_WAIT_S, seconds_until(deadline_ns))):
            while not self._pair.living():
                await self.board.wait_changed()
        try:
            return await self._asker.ask(Inquiry(message, deadline_ns=deadline_ns), answer)
        except NobodyServes:
            raise ActorUnavailable("no search worker is up", retry_after_ms=500) from None
        except WorkerDied as error:
            raise ActorUnavailable(f"search worker died: {error.cause}", retry_after_ms=500) from error

    # ------------------------------------------------------------ search

    async def _search(self, message: Search, deadline_ns: int, client: int) -> SearchAnswer:
        began = time.monotonic()
        self._searches += 1
        serving = self._serving if await self._forgotten.is_known() else None
        lease = self._leases.acquire()
        self._note_activity(+1)
        try:
            gathered = await self._gather(message, serving, deadline_ns, client)
        finally:
            self._note_activity(-1)
            if lease is not None:
                self._leases.release(lease)
        if message.mode != "keyword":
            self._recent.append(message)
        if gathered.result is not None and not await self._forgotten.is_known():
            gathered.result = None  # forgotten while this was searched for
            gathered.degraded.append((UNKNOWN, DETAIL))
        ranked, mode = self._rank(message, gathered, serving)
        if gathered.degraded:
            self._degraded += 1
        quality = Quality(
            mode=mode,
            generation=serving if gathered.result is not None else None,
            behind=_behind(serving if gathered.result is not None else None, gathered.truth),
            degraded=gathered.degraded,
            building=self.index.notice.building is not None,
            low_confidence=low_confidence(ranked, message.query, provider=self._provider(serving)),
            took_ms=(time.monotonic() - began) * 1000,
        )
        return SearchAnswer(body=encode_reply(ranked[: message.limit], quality, explained=message.explain))

    def _note_activity(self, change: int) -> None:
        in_hand = self._searching.notice.in_hand + change
        self._searching.post(SearchActivity(in_hand=in_hand, last_ns=time.monotonic_ns()))

    async def _gather(self, message: Search, serving: GenerationRef | None, deadline_ns: int, client: int) -> Gathered:
        """Ask everybody at once; when the generation does not answer, ask the truth for all instead of the newest.

        A search that waits for its turn does not ask for the newest yet: under a flood that will hardly be of use, and
        the CPU is needed for those whose turn it is.
        """
        gathered = Gathered()
        if serving is None and self._serving is not None:
            gathered.degraded.append((UNKNOWN, DETAIL))
        elif serving is None:
            self._note_no_generation(message, gathered)
        else:
            newest = (serving.covers.event_seq, serving.covers.core_seq)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._ask_newest, message, newest, deadline_ns, gathered)
                await self._ask_generation(message, serving, deadline_ns, client, gathered)
                if gathered.result is None:
                    nursery.cancel_scope.cancel("the newest alone is not enough")
        if gathered.result is None:
            gathered.truth = Truth()
            await self._ask_truth(message, (0, 0), deadline_ns, gathered.truth, patient=True)
        gathered.degraded.extend(gathered.truth.degraded)
        return gathered

    async def _ask_newest(
        self, message: Search, newer_than: tuple[int, int], deadline_ns: int, gathered: Gathered
    ) -> None:
        await gathered.begun.wait()
        await self._ask_truth(message, newer_than, deadline_ns, gathered.truth, patient=False)

    def _note_no_generation(self, message: Search, gathered: Gathered) -> None:
        wanted = set(message.corpora) & {"documents"}
        detail = "no generation is published yet; events and units were searched by keyword"
        gathered.degraded.append(("no_generation", detail + (", documents were not searched" if wanted else "")))

    async def _ask_generation(
        self, message: Search, serving: GenerationRef, deadline_ns: int, client: int, gathered: Gathered
    ) -> None:
        case = Case(self.house.quarantine, msgspec.msgpack.encode(message))
        if case.condemned:
            detail = "this query brought down search workers twice; it is answered by keyword only"
            gathered.degraded.append(("poison_query", detail))
            return
        share_ns = time.monotonic_ns() + int(seconds_until(deadline_ns) * GENERATION_SHARE * 1e9)
        query = await self._query(message, serving, gathered)
        # The worker stops a little earlier and then answers with the list that is ready.
        inquiry = Inquiry(
            query,
            deadline_ns=share_ns - ANSWER_NS,
            client=client,
            view=serving.view,
            case=case,
            begun=gathered.begun,
        )
        try:
            with trio.move_on_after(seconds_until(share_ns)):
                gathered.result = await self._asker.ask(inquiry, QueryResult)
                gathered.degraded.extend(gathered.result.degraded)
                return
            missing = "generation_late", "the generation did not answer in its share of the deadline"
        except (NobodyServes, WorkerDied, NoTurn, BulkheadError) as error:
            missing = self._missing(error, serving)
        gathered.degraded.append(missing)

    def _missing(
        self, error: NobodyServes | WorkerDied | NoTurn | BulkheadError, serving: GenerationRef
    ) -> tuple[str, str]:
        """Return why the generation gave nothing, as the reply says it."""
        match error:
            case WorkerDied():
                return "search_worker_unavailable", f"search worker died: {error.cause}"
            case NoTurn():
                return "generation_late", f"the generation would not answer in time: {error}"
            case GenerationSuspect():
                self._pool.distrust(serving.view)
                self._report(serving.view, error.message)
                return "generation_suspect", error.message
            case BulkheadError():
                return "generation_not_searched", error.message
            case _:
                return "search_worker_unavailable", "no search worker has the generation open yet"

    async def _query(self, message: Search, serving: GenerationRef, gathered: Gathered) -> Query:
        vector, mode = None, message.mode
        remote = self._remote(serving.identity)
        foreign = self.index.notice.embedding.foreign if remote is not None else None
        if remote is not None and mode != "keyword" and serving.vectors_have:
            try:
                if foreign is None:
                    vector = await remote.embed(message.query, self.limits.embed_deadline_ms / 1000)
                else:
                    gathered.degraded.append(("identity_mismatch", foreign))
            except ForeignSpace as error:
                gathered.degraded.append(("identity_mismatch", error.message))
            except BulkheadError as error:
                # A late or absent vector degrades the answer to keywords; it never delays it.
                gathered.degraded.append(("embedder_unavailable", error.message))
            mode = mode if vector is not None else "keyword"
        elif remote is not None or (self.index.notice.identity is None and mode == "hybrid"):
            mode = "keyword"  # configured so: an answer without vectors is then complete, not degraded
        return Query(
            view=serving.view,
            query=message.query,
            limit=max(self.limits.candidates_max, message.limit),
            corpora=message.corpora,
            filters=message.filters,
            mode=mode,
            tenant=message.tenant,
            vector=vector,
        )

    def _provider(self, serving: GenerationRef | None) -> str | None:
        """Return the provider of the model that vectors are compared in."""
        identity = serving.identity if serving is not None else self.index.notice.identity
        return identity.provider if identity is not None else None

    def _remote(self, identity: EmbeddingIdentity | None) -> RemoteQueryEmbedder | None:
        """Return who embeds questions for a generation of this identity; None when a worker does, or nobody can."""
        if identity is None or identity.provider != REMOTE:
            return None
        if identity.key not in self._remotes:
            settings = settings_for(identity, self._embedding)
            remote = None if settings is None else RemoteQueryEmbedder(settings, spaces=self._spaces)
            self._remotes[identity.key] = remote
        return self._remotes[identity.key]

    async def _try(self, message: TryView, deadline_ns: int) -> Tried:
        """Ask a view the questions of a verification, in the spare if it can be: searches go to the other worker."""
        self._leases.hold(message.view.view)
        try:
            await self._prepare(message.view)

            async def ask(query: Query) -> QueryResult:
                slot = next((slot for slot in reversed([*self._pair]) if slot.serves(query.view)), None)
                if slot is None or slot.worker is None:
                    raise ActorUnavailable("no search worker has the generation open", retry_after_ms=1000)
                try:
                    found: QueryResult = await slot.worker.call(query, QueryResult, deadline_ns=deadline_ns)
                except WorkerDied as error:
                    raise ActorUnavailable(f"search worker died over it: {error.cause}") from error
                return found

            return await try_view(message, tuple(self._recent), ask)
        finally:
            self._leases.release(message.view.view)

    async def _compare(self, message: CompareGenerations) -> Comparison:
        """Ask both generations what was asked lately, one question after the other, in a worker that has both open."""
        pairing = Pairing(message.earlier.generation, message.later.generation)
        with trio.move_on_after(COMPARE_S):
            for search in reversed(tuple(self._recent)):
                earlier = await self._rank_alone(search, message.earlier, both=message)
                later = await self._rank_alone(search, message.later, both=message)
                if earlier is None or later is None:
                    break
                pairing.add(
                    earlier[0],
                    later[0],
                    earlier_ms=earlier[1],
                    later_ms=later[1],
                    with_vectors=earlier[2] and later[2],
                )
        return pairing.result()

    async def _rank_alone(
        self, search: Search, ref: GenerationRef, *, both: CompareGenerations
    ) -> tuple[list[Hit], float, bool] | None:
        """Return the hits of one generation alone, how long that took (ms), and whether vectors were used."""
        began, gathered = time.monotonic(), Gathered()
        query = await self._query(search, ref, gathered)
        slots = (slot for slot in self._pair if slot.serves(both.earlier.view))
        slot = next((slot for slot in slots if slot.serves(both.later.view)), None)
        if slot is None or slot.worker is None:
            return None
        try:
            gathered.result = await slot.worker.call(query, QueryResult, deadline_ns=deadline_after(COMPARE_S))
        except (BulkheadError, WorkerDied):
            return None
        ranked, mode = self._rank(search, gathered, ref)
        hits = [
            (hit.candidate.corpus, hit.candidate.id, hit.candidate.part) for hit in ranked[: max(search.limit, TOP)]
        ]
        return hits, (time.monotonic() - began) * 1000, mode != "keyword"

    async def _ask_truth(
        self, message: Search, newer_than: tuple[int, int], deadline_ns: int, truth: Truth, *, patient: bool
    ) -> None:
        limit_ns = min(deadline_ns - ANSWER_NS, deadline_after(self.limits.overlay_deadline_ms / 1000))
        limit = max(self.limits.candidates_max, message.limit)
        async with trio.open_nursery() as nursery:
            if "events" in message.corpora:
                search_events = SearchEvents(
                    query=message.query,
                    newer_than=newer_than[0],
                    limit=limit,
                    filters=message.filters,
                    tenant=message.tenant,
                )
                nursery.start_soon(self._ask_owner, "transcript_appender", search_events, limit_ns, truth, patient)
            if "units" in message.corpora:
                search_units = SearchUnits(
                    query=message.query,
                    newer_than=newer_than[1],
                    limit=limit,
                    filters=message.filters,
                    tenant=message.tenant,
                )
                nursery.start_soon(self._ask_owner, "core_writer", search_units, limit_ns, truth, patient)

    async def _ask_owner(self, owner: str, message: Message, limit_ns: int, truth: Truth, patient: bool) -> None:
        events = owner == "transcript_appender"
        found = None
        detail = f"{owner} did not answer in time"
        try:
            found = await self._owners.ask(owner, message, limit_ns=limit_ns, patient=patient)
        except BulkheadError as error:
            detail = error.message
        if found is None:
            truth.degraded.append(("events_unavailable" if events else "units_unavailable", detail))
            return
        if events:
            truth.events = found
        else:
            truth.units = found
        if found.behind:
            text = f"{found.behind} {'events' if events else 'units'} are not in the keyword index yet"
            truth.degraded.append(("keyword_index_behind", text))
        truth.degraded.extend(found.degraded)

    def _rank(
        self, message: Search, gathered: Gathered, serving: GenerationRef | None
    ) -> tuple[list[Ranked], SearchMode]:
        overlay = [*_found(gathered.truth.events), *_found(gathered.truth.units)]
        changed = gathered.truth.units.changed if gathered.truth.units is not None else ()
        result = gathered.result
        mode: SearchMode = result.mode if result is not None else "keyword"
        text = self._forgotten.without(merge_overlay(result.text if result is not None else (), overlay, changed))
        near = self._forgotten.without(mask(result.vector, changed) if result is not None else [])
        weight = weight_for(message.query, self.limits, mode=mode, provider=self._provider(serving))
        if mode == "hybrid":
            weight *= _coverage(serving)
        list_max = max(self.limits.candidates_max, message.limit)
        ranked = fuse(text, near, weight=weight, list_max=list_max, exact=identifiers(message.query))
        return at_least(ranked, message.min_score), mode


def _coverage(serving: GenerationRef | None) -> float:
    """Return the embedded share of a generation.

    Scores are scaled over the rows that have vectors; while those are few, the best of them need not be good, and
    must not outrank what the words found.
    """
    if serving is None or not serving.vectors_want:
        return 1.0
    return serving.vectors_have / serving.vectors_want


def _found(candidates: Candidates | None) -> list[Candidate]:
    return list(candidates.found) if candidates is not None else []


def _behind(serving: GenerationRef | None, truth: Truth) -> dict[str, int]:
    """Return how many rows the generation lacks."""
    covered = (serving.covers.event_seq, serving.covers.core_seq) if serving is not None else (0, 0)
    return {"events": _newer(truth.events, covered[0]), "units": _newer(truth.units, covered[1])}


def _newer(candidates: Candidates | None, covered: int) -> int:
    """Return how many rows there are above the bound that was asked with."""
    if candidates is None:
        return 0
    return candidates.newer if candidates.newer is not None else max(0, candidates.latest - covered)
