"""Small real generations for the searcher's tests, made after the contract in `actors/generation.py`."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lancedb
import msgspec
import pyarrow as pa
from lancedb.index import FTS, IvfSq

from actors.generation import (
    FORMAT,
    STRING_COLUMNS,
    Manifest,
    VectorIndex,
    build_path,
    fsync_tree,
    generation_path,
    reference,
    write_manifest,
)
from actors.messages.base import CORPORA, Corpus
from actors.messages.index import Covers, EmbeddingIdentity, GenerationRef
from actors.text import LANCE_TOKENIZE, analyse, index_text

IDENTITY = EmbeddingIdentity(
    provider="test", model="toy", dimensions=4, normalised=True, prefix="", chunking="paragraph-200"
)


class MadeRow(msgspec.Struct, kw_only=True):
    """A row as a test writes it."""

    id: str
    text: str
    part: int = 0
    version: int = 0
    seq: int = 0
    ts: int = 0
    tenant: str = "default"
    scope: str | None = None
    session_id: str | None = None
    actor: str | None = None
    kind: str | None = None
    type: str | None = None
    path: str | None = None
    heading: str | None = None
    from_line: int | None = None
    to_line: int | None = None
    tags: Sequence[str] = ()
    vector: Sequence[float] | None = None


def make_generation(
    index: Path,
    number: int,
    tables: dict[Corpus, list[MadeRow]],
    *,
    identity: EmbeddingIdentity | None = IDENTITY,
    fts: bool = True,
    vector_indexes: dict[str, VectorIndex] | None = None,
) -> GenerationRef:
    """Build and seal a generation with these rows; corpora that are not named are empty tables."""
    folder = build_path(index, number)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    connection = lancedb.connect(str(folder))
    schema = _schema(identity)
    versions: dict[str, int] = {}
    for corpus in CORPORA:
        rows = tables.get(corpus, [])
        data = pa.Table.from_pylist([_row(row, identity) for row in rows], schema)
        table = connection.create_table(corpus, data, on_bad_vectors="null") if rows else None
        if table is None:
            table = connection.create_table(corpus, schema=schema)
        if rows and fts:
            table.create_index(
                "terms",
                config=FTS(**LANCE_TOKENIZE, with_position=False),
            )
        if vector_indexes is not None and corpus in vector_indexes:
            partitions = vector_indexes[corpus].partitions
            table.create_index("vector", config=IvfSq(distance_type="cosine", num_partitions=partitions))
        versions[corpus] = table.version
    have = sum(row.vector is not None for rows in tables.values() for row in rows)
    manifest = Manifest(
        format=FORMAT,
        generation=number,
        delta=None,
        covers=Covers(event_seq=len(tables.get("events", []))),
        identity=identity,
        rows={corpus: len(tables.get(corpus, [])) for corpus in CORPORA},
        vectors_have=have,
        vectors_want=sum(map(len, tables.values())),
        lancedb_version=lancedb.__version__,
        table_versions=versions,
        built_at=0,
        skipped=[],
        held=[],
        sources=[],
        files=fsync_tree(folder),
        vector_indexes=vector_indexes or {},
    )
    write_manifest(folder, manifest)
    sealed = generation_path(index, number)
    folder.rename(sealed)
    return reference(sealed, manifest)


def _schema(identity: EmbeddingIdentity | None) -> Any:
    columns = [
        ("id", pa.string()),
        ("part", pa.int32()),
        ("version", pa.int64()),
        ("seq", pa.int64()),
        ("ts", pa.int64()),
        *((name, pa.string()) for name in STRING_COLUMNS),
        ("from_line", pa.int32()),
        ("to_line", pa.int32()),
        ("tags", pa.list_(pa.string())),
        ("text", pa.string()),
        ("terms", pa.string()),
        ("hash", pa.binary(32)),
    ]
    if identity is not None:
        columns.append(("vector", pa.list_(pa.float32(), identity.dimensions)))
    return pa.schema(columns)


def _row(row: MadeRow, identity: EmbeddingIdentity | None) -> dict[str, object]:
    facts = msgspec.structs.asdict(row)
    facts["tags"] = list(row.tags)
    facts["terms"] = index_text(analyse(row.text))
    facts["hash"] = hashlib.sha256(row.text.encode()).digest()
    if identity is None:
        del facts["vector"]
    return facts
