"""Vector search by size: exact and by the index, rows × dimensions; build time, bytes, memory, recall.

Every cell is a generation made by the builder's own code (written, indexed, self-tested) and searched by the search
worker's own code (`GenerationStore.nearest`: 100 candidates, the filter on the tenant), each in a process of its own,
so that peak memory belongs to it. The index is built at every size, to see where it begins to pay; the line *policy*
says what the builder would do. Recall is that of the first 10, by distance, against the exact search.

Vectors grow out of a base: real embeddings (`--base FILE.npy`, with `--asked FILE.npy` for embedded questions), or
ones drawn at random with the spectrum and the clusters of real ones. A grown vector is one of the base, moved by the
difference of two of its neighbours, so it lies where the base has its mass. For other dimensions the base is turned
into them by a random rotation, which keeps all angles where there are more dimensions than the base has.

What was measured is kept in a file, line by line; a cell that is there is not measured again.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench import vectors_figure
from chaos.daemon import data_directory
from chaos.load import percentile

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

ROWS = (1_000, 10_000, 100_000)
DIMENSIONS = (256, 384, 768, 1536)
QUESTIONS = 60
CANDIDATES = 100
NEAREST = 10
CACHE_BYTES = 512 << 20
BATCH = 1000
NEIGHBOURS = 20
SEED = 1
TOLERANCE = 1e-5
RESULTS = Path("bench/out/vectors.jsonl")


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured at one size. Times in ms, unless named otherwise; `filtered` keeps one row of 20."""

    rows: int
    dimensions: int
    policy: str
    partitions: int
    probes: int
    write_s: float
    index_s: float
    test_s: float
    table_bytes: int
    index_bytes: int
    build_rss_bytes: int
    search_rss_bytes: int
    exact_p50: float
    exact_p99: float
    index_p50: float
    index_p99: float
    filtered_exact_p50: float
    filtered_p50: float
    recall_10: float
    recall_100: float
    filtered_recall_10: float


# ---------------------------------------------------------------- vectors


class Source:
    """Vectors of any number and size, the same ones in every run."""

    def __init__(self, base: "Matrix", asked: "Matrix | None", dimensions: int, questions: int) -> None:
        import numpy as np

        rng = np.random.default_rng(SEED)
        turn = _rotation(rng, base.shape[1], dimensions)
        self._base = _units(base @ turn)
        self._neighbours = _neighbours(self._base)
        if asked is None:
            self.questions = self._grown(np.random.default_rng(SEED + 1), questions)
        else:
            self.questions = _units(asked[rng.permutation(len(asked))[:questions]] @ turn)

    def batches(self, rows: int) -> "Iterator[Matrix]":
        """Yield the base, then what grows out of it, in batches."""
        import numpy as np

        rng = np.random.default_rng(SEED + 2)
        for first in range(0, rows, BATCH):
            count = min(BATCH, rows - first)
            known = self._base[first : first + count]
            yield known if len(known) == count else np.concatenate([known, self._grown(rng, count - len(known))])

    def _grown(self, rng: "np.random.Generator", count: int) -> "Matrix":
        near = self._neighbours.shape[1]
        start = rng.integers(0, len(self._base), count)
        one = self._neighbours[start, rng.integers(0, near, count)]
        other = self._neighbours[start, rng.integers(0, near, count)]
        reach = rng.uniform(0.3, 0.8, (count, 1)).astype("float32")
        return _units(self._base[start] + reach * (self._base[one] - self._base[other]))


def synthetic_base(count: int = 4_000, dimensions: int = 384, clusters: int = 100) -> "Matrix":
    """Return vectors of unequal clusters around a common direction; their variance falls with the dimension."""
    import numpy as np

    rng = np.random.default_rng(SEED)
    spectrum = (1 / np.sqrt(1 + np.arange(dimensions) / 8)).astype("float32")
    shares = 1 / np.arange(1, clusters + 1)
    centres = rng.standard_normal((clusters, dimensions), dtype="float32") * spectrum
    chosen = rng.choice(clusters, size=count, p=shares / shares.sum())
    spread = rng.standard_normal((count, dimensions), dtype="float32") * spectrum
    return _units(2 * spectrum + centres[chosen] + spread)


def _rotation(rng: "np.random.Generator", before: int, after: int) -> "Matrix":
    import numpy as np

    square, _ = np.linalg.qr(rng.standard_normal((max(before, after), max(before, after))))
    turn: Matrix = square[:before, :after].astype("float32")
    return np.eye(before, dtype="float32") if before == after else turn


def _neighbours(base: "Matrix") -> "NDArray[np.int32]":
    import numpy as np

    found = np.empty((len(base), NEIGHBOURS + 1), dtype=np.int32)
    for at in range(0, len(base), 500):
        near = np.argpartition(-(base[at : at + 500] @ base.T), NEIGHBOURS, axis=1)
        found[at : at + 500] = near[:, : NEIGHBOURS + 1]
    return found


def _units(vectors: "Matrix") -> "Matrix":
    import numpy as np

    units: Matrix = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype("float32")
    return units


def load_source(options: argparse.Namespace, dimensions: int) -> Source:
    """Return the vectors that the options name."""
    import numpy as np

    base = synthetic_base() if options.base is None else np.load(options.base)
    asked = None if options.base is None or options.asked is None else np.load(options.asked)
    return Source(base, asked, dimensions, options.questions)


# ---------------------------------------------------------------- building


def record_batches(source: Source, rows: int, schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    """Yield rows of the table of events: small ones, as the vectors are what matters."""
    import pyarrow as pa

    number = 0
    for vectors in source.batches(rows):
        count = len(vectors)
        numbers = range(number, number + count)
        columns: dict[str, Any] = {
            "id": [f"e{each}" for each in numbers],
            "seq": list(numbers),
            "ts": list(numbers),
            "tenant": ["default"] * count,
            "session_id": [f"s{each % 20}" for each in numbers],
            "tags": [[]] * count,
            "text": [f"chunk {each}" for each in numbers],
            "terms": ["chunk"] * count,
            "hash": [each.to_bytes(32, "big") for each in numbers],
        }
        columns |= {name: [0] * count for name in ("part", "version")}
        arrays = [
            pa.array(columns.get(field.name, [None] * count), field.type) for field in schema if field.name != "vector"
        ]
        vector = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        yield pa.RecordBatch.from_arrays([*arrays, vector], schema=schema)
        number += count


def build(index: Path, options: argparse.Namespace, rows: int, dimensions: int) -> dict[str, Any]:
    """Make a sealed generation and return what it took."""
    from importlib.metadata import version

    from actors import generation as generations
    from actors.generation_builder import store
    from actors.generation_builder.index_policy import IndexPlan, index_policy, vector_index
    from actors.generation_builder.staging import table_schema
    from actors.messages.base import CORPORA
    from actors.messages.index import Covers, EmbeddingIdentity

    source = load_source(options, dimensions)
    folder = generations.build_path(index, 1)
    folder.mkdir(parents=True)
    identity = EmbeddingIdentity(
        provider="bench", model="base", dimensions=dimensions, normalised=True, prefix="", chunking=""
    )
    schema = table_schema(dimensions)
    begun = time.perf_counter()
    versions: dict[str, int] = {}
    for corpus in CORPORA:
        batches = record_batches(source, rows if corpus == "events" else 0, schema)
        versions[corpus] = store.write_table(folder, corpus, schema, batches)
    written = time.perf_counter()
    policy = index_policy(rows, rows, dimensions).vector
    plan = vector_index(rows, dimensions)
    store.index_table(folder, "events", IndexPlan(keyword=True, vector=None))
    before, keyword = _size(folder), time.perf_counter()
    indexed = store.index_table(folder, "events", IndexPlan(keyword=False, vector=plan))
    done = time.perf_counter()
    facts = store.TableFacts(
        rows=rows, vectors=rows, dimensions=dimensions, normalised=True, probes=(), vector_index=indexed.vector_index
    )
    indexed = store.check_table(folder, "events", facts, lambda: None)
    tested = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    manifest = generations.Manifest(
        format=generations.FORMAT,
        generation=1,
        delta=None,
        covers=Covers(event_seq=rows),
        identity=identity,
        rows={corpus: rows if corpus == "events" else 0 for corpus in CORPORA},
        vectors_have=rows,
        vectors_want=rows,
        lancedb_version=version("lancedb"),
        table_versions={**versions, "events": indexed.version},
        built_at=0,
        skipped=[],
        held=[],
        sources=[],
        files=generations.fsync_tree(folder),
        vector_indexes={"events": indexed.vector_index} if indexed.vector_index else {},
    )
    generations.write_manifest(folder, manifest)
    folder.rename(generations.generation_path(index, 1))
    return {
        "policy": "exact" if policy is None else policy.kind,
        "partitions": plan.partitions,
        "probes": indexed.vector_index.probes if indexed.vector_index else 0,
        "write_s": written - begun,
        "index_s": done - keyword,
        "test_s": tested - done,
        "table_bytes": before,
        "index_bytes": _size(generations.generation_path(index, 1)) - before,
        "build_rss_bytes": peak,
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


# ---------------------------------------------------------------- searching


def search(index: Path, options: argparse.Namespace, dimensions: int) -> dict[str, Any]:
    """Ask the same questions exactly and by the index, without and with a filter, and return times and recall."""
    from actors.generation import generation_path, read_manifest, reference
    from actors.messages.base import Filters
    from actors.searcher.store import GenerationStore

    questions = [[float(value) for value in question] for question in load_source(options, dimensions).questions]
    folder = generation_path(index, 1)
    store = GenerationStore(cache_bytes=CACHE_BYTES)
    store.load(reference(folder, read_manifest(folder)), deadline_ns=time.monotonic_ns() + 3600 * 10**9)
    opened = store.get(1)
    indexes = opened.base.vector_indexes
    narrow = Filters(session_ids=("s7",))

    def run(filters: Filters, *, by_index: bool) -> tuple[list[list[float]], list[float]]:
        opened.base.vector_indexes = indexes if by_index else {}
        _ask(store, questions[0], filters)
        timed = [_ask(store, question, filters) for question in questions]
        return [scores for scores, _ in timed], [took for _, took in timed]

    exact, exact_ms = run(Filters(), by_index=False)
    found, found_ms = run(Filters(), by_index=True)
    narrow_exact, narrow_exact_ms = run(narrow, by_index=False)
    narrow_found, narrow_found_ms = run(narrow, by_index=True)
    return {
        "search_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "exact_p50": percentile(exact_ms, 0.5),
        "exact_p99": percentile(exact_ms, 0.99),
        "index_p50": percentile(found_ms, 0.5),
        "index_p99": percentile(found_ms, 0.99),
        "filtered_exact_p50": percentile(narrow_exact_ms, 0.5),
        "filtered_p50": percentile(narrow_found_ms, 0.5),
        "recall_10": recall(found, exact, NEAREST),
        "recall_100": recall(found, exact, CANDIDATES),
        "filtered_recall_10": recall(narrow_found, narrow_exact, NEAREST),
    }


def _ask(store: Any, vector: Sequence[float], filters: Any) -> tuple[list[float], float]:
    from actors.searcher.store import Question

    question = Question(
        corpora=("events",),
        filters=filters,
        tenant="default",
        limit=CANDIDATES,
        deadline_ns=time.monotonic_ns() + 600 * 10**9,
    )
    begun = time.perf_counter()
    found = store.nearest(store.get(1), vector, question, lambda text: text)
    took = (time.perf_counter() - begun) * 1000
    return [candidate.vector_score for candidate in found], took


def recall(found: Sequence[Sequence[float]], exact: Sequence[Sequence[float]], count: int) -> float:
    """Return the share of the best `count` scores that was found, over all questions."""
    hits = wanted = 0
    for scores, best in zip(found, exact, strict=True):
        bound = best[min(count, len(best)) - 1] - TOLERANCE
        hits += sum(score >= bound for score in scores[:count])
        wanted += min(count, len(best))
    return hits / max(1, wanted)


# ---------------------------------------------------------------- the grid


def measure(options: argparse.Namespace, rows: int, dimensions: int) -> Cell:
    """Measure one cell, in two processes."""
    with data_directory() as folder:
        index = folder / "index"
        index.mkdir(parents=True)
        members: dict[str, Any] = {"rows": rows, "dimensions": dimensions}
        for step in ("build", "search"):
            command = [sys.executable, "-m", "bench", "vectors", "--step", step, "--index", str(index)]
            command += ["--rows", str(rows), "--dimensions", str(dimensions)]
            command += [word for name in ("base", "asked", "questions") for word in _passed_on(options, name)]
            environment = {**os.environ, "TMPDIR": str(folder)}
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
            members |= json.loads(answer.stdout.splitlines()[-1])
        return msgspec.convert(members, Cell)


def _passed_on(options: argparse.Namespace, name: str) -> list[str]:
    value = getattr(options, name)
    return [] if value is None else [f"--{name}", str(value)]


def known_cells(path: Path) -> list[Cell]:
    """Return what was measured before."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Cell) for line in lines]


def table(cells: Sequence[Cell]) -> str:
    """Return the cells as a table in markdown."""
    heads: tuple[str, ...] = (
        "rows",
        "dimensions",
        "policy",
        "exact p50 / p99 ms",
        "index p50 / p99 ms",
        "recall@10 / @100",
    )
    heads += ("one row of 20: exact, index ms, recall@10", "probes", "index built / tested s", "index / table MB")
    heads += ("peak RSS MB, build / search",)
    lines = [f"| {' | '.join(heads)} |", f"|{'---:|' * len(heads)}"]
    for cell in cells:
        members = (
            f"{cell.rows:,}",
            f"{cell.dimensions:,}",
            cell.policy,
            f"{cell.exact_p50:.1f} / {cell.exact_p99:.1f}",
            f"{cell.index_p50:.1f} / {cell.index_p99:.1f}",
            f"{cell.recall_10:.3f} / {cell.recall_100:.3f}",
            f"{cell.filtered_exact_p50:.1f}, {cell.filtered_p50:.1f}, {cell.filtered_recall_10:.3f}",
            f"{cell.probes} of {cell.partitions}",
            f"{cell.index_s:.1f} / {cell.test_s:.1f}",
            f"{cell.index_bytes / 1e6:.1f} / {cell.table_bytes / 1e6:.1f}",
            f"{cell.build_rss_bytes / 1e6:.0f} / {cell.search_rss_bytes / 1e6:.0f}",
        )
        lines.append(f"| {' | '.join(members)} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measure what is missing, print the table, draw the plot."""
    options = parse(arguments)
    rows, dimensions = ([int(each) for each in text.split(",")] for text in (options.rows, options.dimensions))
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "build": lambda: build(options.index, options, rows[0], dimensions[0]),
        "search": lambda: search(options.index, options, dimensions[0]),
    }
    if options.step is not None:
        print(json.dumps(steps[options.step]()))
        return
    cells = {(cell.rows, cell.dimensions): cell for cell in known_cells(options.results)}
    options.results.parent.mkdir(parents=True, exist_ok=True)
    for size in [(count, size) for count in rows for size in dimensions]:
        if size not in cells:
            cells[size] = measure(options, *size)
            with options.results.open("ab") as file:
                file.write(msgspec.json.encode(cells[size]) + b"\n")
    shown = [cells[size] for size in sorted(cells)]
    print("\n# vectors\n" + table(shown))
    if options.svg is not None:
        points = [
            vectors_figure.Point(each.rows, each.dimensions, each.exact_p50, each.index_p50, each.policy == "exact")
            for each in shown
        ]
        options.svg.write_text(vectors_figure.draw(points), encoding="utf-8")


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m bench vectors", description=__doc__)
    parser.add_argument("--rows", default=",".join(map(str, ROWS)), help="sizes, separated by commas")
    parser.add_argument("--dimensions", default=",".join(map(str, DIMENSIONS)), help="the same")
    parser.add_argument("--base", type=Path, help="float32 matrix (.npy) of embeddings from which all others grow")
    parser.add_argument("--asked", type=Path, help="the same of embedded questions")
    parser.add_argument("--questions", type=int, default=QUESTIONS, help="asked at every size")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where cells are kept, and looked up")
    parser.add_argument("--svg", type=Path, help="file for the plot")
    parser.add_argument("--step", choices=("build", "search"), help=argparse.SUPPRESS)
    parser.add_argument("--index", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)
