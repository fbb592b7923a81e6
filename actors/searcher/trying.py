"""Asks a view the questions of a verification, as people's questions are asked: the same queries, the same tables.

What is found is handed back as it is; whether it is enough, the builder says, who knows the answers. What was asked
lately is asked again, by words only (a remote model is not to be paid for a verification): that it can be answered
at all is what counts.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence

from actors.messages.base import Candidate
from actors.messages.searcher import FoundRow, Query, QueryResult, Search, Tried, TryView

Ask = Callable[[Query], Awaitable[QueryResult]]


async def try_view(message: TryView, recent: Sequence[Search], ask: Ask) -> Tried:
    """Ask one question after the other and return what was found. Raises what `ask` raises."""
    view = message.view.view
    words, vectors = [], []
    for word in message.sample.words:
        query = Query(
            view=view, query=word.query, limit=message.limit, corpora=(word.corpus,), mode="keyword", tenant=word.tenant
        )
        words.append(_by_words((await ask(query)).text))
    for near in message.sample.vectors:
        query = Query(view=view, query="", limit=message.nearest, mode="vector", tenant=near.tenant, vector=near.vector)
        vectors.append(_by_vector((await ask(query)).vector))
    answered = 0
    for search in recent:
        query = Query(
            view=view,
            query=search.query,
            limit=message.limit,
            corpora=search.corpora,
            filters=search.filters,
            mode="keyword",
            tenant=search.tenant,
        )
        answered += bool((await ask(query)).text)
    return Tried(words=words, vectors=vectors, recent=len(recent), recent_answered=answered)


def _by_words(found: Iterable[Candidate]) -> list[FoundRow]:
    return [FoundRow(corpus=row.corpus, id=row.id, part=row.part, score=row.text_score or 0.0) for row in found]


def _by_vector(found: Iterable[Candidate]) -> list[FoundRow]:
    return [FoundRow(corpus=row.corpus, id=row.id, part=row.part, score=row.vector_score or 0.0) for row in found]
