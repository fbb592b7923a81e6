"""The tables of one folder, a generation's or a delta's: verified, opened, checked and probed.

LanceDB keeps no checksums, opens an older version in silence when the newest one is gone, and has no type for damage;
hence all that is compared here before a table serves. LanceDB is imported on first use.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from actors.errors import GenerationSuspect
from actors.generation import Manifest
from actors.messages.base import CORPORA, Corpus
from actors.messages.index import EmbeddingIdentity, view_name, view_number
from actors.searcher.lance_filters import Condition
from actors.searcher.lance_queries import CARRIED, by_terms, by_vector
from actors.searcher.vector_index import Asked
from actors.term_counts import TermCounts, counts_path, masked_counts_path

if TYPE_CHECKING:
    from lancedb.table import AsyncTable

_REQUIRED = {*CARRIED, "tenant", "text", "terms"}


class OpenFolder:
    """The tables of a folder that have rows, and the counts of the terms in them.

    There is no `close`: a query on a closed table brings the process down. The last search that holds it frees it.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.name = view_name(view_number(manifest.generation, manifest.delta))
        self.identity: EmbeddingIdentity | None = manifest.identity
        self.masked_rows: Mapping[str, int] = manifest.masked.rows
        self.counts = _read_counts(self.name, {corpus: counts_path(path, corpus) for corpus in CORPORA})
        self.masked_counts = _read_counts(self.name, {corpus: masked_counts_path(path, corpus) for corpus in CORPORA})
        self.rows = manifest.rows
        self.vector_indexes = {
            corpus: manifest.vector_indexes[corpus] for corpus in CORPORA if corpus in manifest.vector_indexes
        }
        self.matching: dict[tuple[Corpus, tuple[Condition, ...]], int] = {}  # rows that fulfil what was asked before
        self.tables: dict[Corpus, AsyncTable] = {}


async def open_tables(path: Path, manifest: Manifest, cache_bytes: int) -> OpenFolder:
    """Open every table of a verified folder; raises GenerationSuspect, and whatever LanceDB raises."""
    import lancedb

    session = lancedb.Session(
        index_cache_size_bytes=cache_bytes * 2 // 3, metadata_cache_size_bytes=cache_bytes - cache_bytes * 2 // 3
    )
    opened = OpenFolder(path, manifest)
    connection = await lancedb.connect_async(str(path), session=session)
    for corpus in CORPORA:
        if manifest.rows.get(corpus, 0) == 0:
            continue
        table = await connection.open_table(corpus)
        await _check_table(table, opened.name, corpus, manifest)
        await _check_index(table, opened.name, corpus, manifest)
        await _probe(table, opened.name, corpus, manifest)
        opened.tables[corpus] = table
    return opened


def _read_counts(name: str, paths: Mapping[Corpus, Path]) -> dict[Corpus, TermCounts]:
    """Map the counts that there are: a generation that was sealed by an earlier version has none."""
    counts = {}
    for corpus, path in paths.items():
        try:
            if path.exists():
                counts[corpus] = TermCounts(path)
        except (OSError, ValueError, KeyError) as error:
            raise GenerationSuspect(f"generation {name}: {path.name} not readable: {error}") from error
    return counts


async def _check_table(table: "AsyncTable", name: str, corpus: Corpus, manifest: Manifest) -> None:
    """Compare a table with the manifest: LanceDB opens an older version in silence when the newest one is gone."""
    version, rows = await table.version(), await table.count_rows()
    if version != manifest.table_versions.get(corpus) or rows != manifest.rows[corpus]:
        raise GenerationSuspect(
            f"generation {name}: table {corpus} is at version {version} with {rows} rows, sealed was "
            f"version {manifest.table_versions.get(corpus)} with {manifest.rows[corpus]} rows"
        )
    schema = await table.schema()
    missing = _REQUIRED - set(schema.names)
    if missing:
        raise GenerationSuspect(f"generation {name}: table {corpus} lacks columns {sorted(missing)}")
    if manifest.identity is not None:
        size = getattr(schema.field("vector").type, "list_size", None) if "vector" in schema.names else None
        if size != manifest.identity.dimensions:
            raise GenerationSuspect(
                f"generation {name}: table {corpus} has vectors of {size} dimensions, the manifest says "
                f"{manifest.identity.dimensions}"
            )


async def _check_index(table: "AsyncTable", name: str, corpus: Corpus, manifest: Manifest) -> None:
    """Make sure that the keyword index covers every row, and the vector index as well if one was sealed.

    Listing indexes loads them, so it is done here, once, and not on the way of a query.
    """
    indexes = {tuple(index.columns): index.name for index in await table.list_indices()}
    sealed = manifest.vector_indexes.get(corpus)
    for column, what, kind in (("terms", "keyword", "FTS"), *([("vector", "vector", sealed.kind)] if sealed else [])):
        index = indexes.get((column,))
        stats = await table.index_stats(index) if index is not None else None
        if stats is None or stats.num_unindexed_rows != 0:
            uncovered = manifest.rows[corpus] if stats is None else stats.num_unindexed_rows
            raise GenerationSuspect(f"generation {name}: table {corpus} has {uncovered} rows outside its {what} index")
        if stats.index_type != kind:
            raise GenerationSuspect(
                f"generation {name}: the {what} index of table {corpus} is of kind {stats.index_type}, sealed was "
                f"{kind}"
            )


async def _probe(table: "AsyncTable", name: str, corpus: Corpus, manifest: Manifest) -> None:
    """Make one keyword and one vector query, so that files that cannot be read are found before they are needed."""
    sample = (await table.query().select(["terms"]).limit(1).to_arrow()).to_pylist()
    terms: Sequence[str] = (sample[0]["terms"] or "").split()[:1]
    if terms and (await by_terms(table, terms).select(["id", "_score"]).limit(1).to_arrow()).num_rows != 1:
        raise GenerationSuspect(f"generation {name}: table {corpus} does not find a term of its own first row")
    if manifest.identity is not None:
        count = manifest.identity.dimensions
        index = manifest.vector_indexes.get(corpus)
        everything = None if index is None else Asked(probes=index.partitions, refine=index.refine)
        probe = by_vector(table, [1 / math.sqrt(count)] * count, everything)
        await probe.select(["id", "_distance"]).limit(1).to_arrow()
