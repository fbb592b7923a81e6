"""The search worker's entry point: what it takes, and on which lane.

Owns the process: one store of open generations, the embedding models. Promises: loading a generation or a model delays
no query, and neither delays reading a note. Nothing heavy is imported before it is used, so a fresh worker reads notes
0.1 s after its start, while LanceDB and the model are still coming up on lanes of their own.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Mapping

import msgspec

from actors.child import CallContext, serve
from actors.errors import BulkheadError
from actors.frames import Setup
from actors.lance_import import leave_out_catalogues
from actors.messages.base import Done, Message, Row
from actors.messages.index import GenerationRef
from actors.messages.searcher import (
    DropGeneration,
    Folder,
    LoadGeneration,
    Query,
    ReadLines,
    ResolveFolder,
    SearcherWork,
    WarmUp,
)
from actors.priority import GENTLE_NICE, giving_way
from actors.redaction import Redactor
from actors.searcher.documents import DocumentLimits, read_lines, resolve_folder
from actors.searcher.models import Models
from actors.searcher.query_vectors import QueryVectors
from actors.searcher.store import GenerationStore
from actors.settings import RoomSetup


class SearcherRoom:
    """The room as the child loop sees it."""

    work: object = SearcherWork

    def __init__(self, setup: Setup) -> None:
        self._setup = msgspec.msgpack.decode(setup.settings, type=RoomSetup)
        self._settings = self._setup.searcher
        self._redactor = Redactor(self._setup.redaction)
        self.lanes: Mapping[type[Message], str] = {
            Query: "search",
            ReadLines: "read",
            ResolveFolder: "read",
            LoadGeneration: "load",
            DropGeneration: "load",
            WarmUp: "warm",
        }
        self.pools = {"search": self._settings.threads}
        self._store = GenerationStore(cache_bytes=self._settings.cache_bytes_max)
        self._models = Models(self._setup.embedding, threads=self._settings.threads)

    def open(self, lane: str) -> dict[str, int | float | str | bool | None]:
        """Open nothing: generations and the model come by message, so that the worker is ready at once."""
        return {}

    def handle(self, message: Message, call: CallContext) -> msgspec.Struct:
        """Do one call."""
        match message:
            case Query():
                return self._search(message, call)
            case ReadLines():
                return Row(row=read_lines(message, self._document_limits(), call.check, self._redactor))
            case ResolveFolder():
                return Folder(path=resolve_folder(message.path))
            case LoadGeneration():
                self._store.load(message.generation, deadline_ns=call.deadline_ns, anew=message.anew)
                self._open_earlier_model(message.generation)
            case DropGeneration():
                self._store.drop(message.view)
            case WarmUp():
                self._warm_up(gently=message.gently)
            case _:
                raise AssertionError(f"a search worker does not take {type(message).__name__}")
        return Done()

    def interrupt(self, lane: str) -> None:
        """Do nothing: a query ends at its own deadline, a read at its next block, a load only with the process."""

    def idle(self, lane: str) -> bool:
        """Do nothing."""
        return False

    def close(self, lane: str) -> None:
        """Do nothing: nothing is ever written here."""

    def _search(self, query: Query, call: CallContext) -> msgspec.Struct:
        from actors.searcher.search import Searching

        searching = Searching(
            query,
            store=self._store,
            vectors=self._models.of(self._store.get(query.view).identity),
            settings=self._settings,
            deadline_ns=call.deadline_ns,
            redactor=self._redactor,
        )
        return searching.run()

    def _warm_up(self, *, gently: bool) -> None:
        """Load what takes seconds. A model that cannot be opened is no reason to stay cold: every reply will say so.

        Gently means giving way to others: whoever serves meanwhile needs the CPU more.
        """
        with giving_way() if gently else contextlib.nullcontext():
            loading = threading.Thread(target=self._load_libraries, args=(gently,), name="load-libraries")
            loading.start()
            loading.join()
            _open_model(self._models.configured)

    def _open_earlier_model(self, generation: GenerationRef) -> None:
        """Have the model of a generation at hand when it is not the configured one, which `WarmUp` opens."""
        vectors = self._models.of(generation.identity)
        if vectors is not self._models.configured and vectors.identity is None:
            _open_model(vectors)

    def _load_libraries(self, gently: bool) -> None:
        if gently and sys.platform == "linux":  # elsewhere the nice value belongs to the whole process
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GENTLE_NICE)
        import actors.searcher.search  # noqa: F401

        self._store.warm_up()

    def _document_limits(self) -> DocumentLimits:
        return DocumentLimits(
            lines_max=self._settings.document_lines_max,
            bytes_max=self._settings.document_bytes_max,
            suffixes=self._setup.generation_builder.suffixes,
        )


def _open_model(vectors: QueryVectors) -> None:
    try:
        vectors.warm_up()
    except BulkheadError as error:
        print(f"embedding model not opened: {error.message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    leave_out_catalogues()
    serve(SearcherRoom)
