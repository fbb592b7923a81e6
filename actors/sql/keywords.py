"""The keyword index of the truth: an FTS5 file beside a database of the truth, derived from it and replaceable.

For core_writer and transcript_appender. It owns `keywords.db`, and reads the truth through a read-only attachment to
join hits with their rows. It follows the truth by a cursor, in slices: in idle time, and before a search answers.

Promises:
* what was committed before `catch_up` began is found by the next `find`, or counted as behind;
* deleting the file at any time loses nothing; a damaged, foreign or outdated one is deleted and built again;
* nothing that happens to it ever reaches a write of the truth;
* filters apply before the limit, so a rare match is not lost behind frequent ones.

The index is contentless (`content=''`): a row is taken out by handing in the same terms again, which SQLite before
3.43 needs and which works as the analyser is pure and its version is kept in the file.

Scores are BM25 as Lucene and LanceDB compute it (k1 = 1.2, b = 0.75, idf = ln(1 + (N - n + 0.5) / (n + 0.5))). FTS5's
own has the same term weights but an idf that collapses to 0.000001 for terms in more than half of the rows, which in
a young store is every term. Therefore each term is asked for alone and its share is put right by the quotient of the
two: exact, and 1.3 to 3 times the cost of one OR query (measured: 2 µs a posting, 60,000 rows).
"""

import hashlib
import math
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from actors.child import StoreLost
from actors.errors import BulkheadError, DiskFull, Interrupted, Quarantined, StoreBusy
from actors.sql import meta
from actors.sql.database import (
    Database,
    FileKind,
    Until,
    attach_reader,
    checkpoint,
    file_bytes,
    open_writer,
    remove_database,
    transaction,
)
from actors.sql.filters import Where
from actors.text import ANALYSER_VERSION, FTS5_TOKENIZE

FILE_NAME = "keywords.db"
REBUILDS_MAX = 3
REBUILDS_WINDOW_S = 3600.0
_RETRY_S = 5.0
_SLICE_S = 30.0
# Up to which size the file is read through at the start (5 ms a MiB), and FTS5's own check made (25 ms a MiB).
_CHECK_BYTES_MAX = 64 * 1024 * 1024
_INTEGRITY_BYTES_MAX = 8 * 1024 * 1024
# What one posting of a term costs a search, and what it costs to count it: for choosing terms that fit the time.
_POSTING_NS = 3000
_COUNT_NS = 100
_MERGE_PAGES = 64  # about 10 ms

KIND = FileKind(
    name="keyword index",
    application_id=0x62684B57,  # "bhKW"
    user_version=1,
    schema=f"""
        PRAGMA application_id = {0x62684B57};
        PRAGMA user_version = 1;
        -- cursor: up to where the truth is indexed; mark: what stood there; seal: a hash of both; documents: rows in
        -- the index; analyser: its version.
        CREATE TABLE meta (name TEXT PRIMARY KEY, value ANY NOT NULL) STRICT, WITHOUT ROWID;
        CREATE VIRTUAL TABLE keywords USING fts5(terms, content = '', tokenize = "{FTS5_TOKENIZE}");
        CREATE VIRTUAL TABLE vocabulary USING fts5vocab(keywords, row);
    """,
    # Kept in step with the truth by its cursor, so losing the last commits to a power cut costs nothing.
    synchronous="NORMAL",
    check_bytes_max=_CHECK_BYTES_MAX,
)


class Document(NamedTuple):
    """A row of the truth as the index sees it: its number, and its terms with a space between them."""

    rowid: int
    terms: str


class Slice(NamedTuple):
    """The next rows of the truth. With them in, everything up to `cursor` is; `mark` identifies the row there."""

    added: list[Document]
    removed: list[Document]
    cursor: int
    mark: str


class KeywordSource(Protocol):
    """What the index follows. Called on the thread of the index."""

    def latest(self) -> int:
        """Return the number of the last row of the truth, 0 when there is none. Numbers have no gaps."""
        ...

    def slice(self, after: int, rows_max: int) -> Slice | None:
        """Return the rows after a number, at most `rows_max` of them and of moderate size; None when there is none."""
        ...

    def mark(self, rowid: int) -> str | None:
        """Return what identifies the row with this number, None when there is none."""
        ...


class Question(NamedTuple):
    """What to find: any of the terms, in rows after `newer_than` that fulfil the condition, at most `limit` of them.

    `rows` joins the table of the truth, named `t`, to the hits, named `h`: "truth.events AS t ON t.seq = h.rowid".
    Rows after `until` are not looked at.
    """

    terms: Sequence[str]
    newer_than: int
    rows: str
    condition: Where
    limit: int
    until: int = 2**63 - 1


class Hit(NamedTuple):
    """A row that was found and its BM25 score (larger is better)."""

    rowid: int
    score: float


class Found(NamedTuple):
    """The best hits, best first. Not `complete`: time ran out before every term was looked up in every row."""

    hits: list[Hit]
    complete: bool


class Weight(NamedTuple):
    """A term that occurs: in how many rows, and what turns FTS5's score of it into Lucene's."""

    term: str
    documents: int
    factor: float


class KeywordIndex:
    """One keyword index. Never raises for the state of its file: without one it finds nothing and is behind."""

    def __init__(self, path: Path, truth: Path, source: KeywordSource) -> None:
        self.path = path
        self.rebuilt = 0
        self._truth = truth
        self._source = source
        self._database: Database | None = None
        self._cursor = 0
        self._retry_at = 0.0
        self._tend_at = 0.0
        self._damages: list[float] = []
        self._merging = False

    @property
    def cursor(self) -> int:
        """Return the number of the last row of the truth that is in the index."""
        return self._cursor

    def open(self) -> None:
        """Open the file, or make a new one when it can't be used."""
        self._usable()

    def close(self) -> None:
        """Close the file."""
        if self._database is not None:
            self._database.close()
            self._database = None

    def interrupt(self) -> None:
        """Stop the running statement when its call has expired."""
        database = self._database
        if database is not None:
            database.interrupt()

    def search(self, question: Question, *, until: Until, rows_per_slice: int) -> tuple[list[Hit], int]:
        """Catch up, then find; return the hits and how many rows may hold more of them (0: the answer is complete)."""
        for _ in range(2):
            rebuilt = self.rebuilt
            behind = self.catch_up(until, rows_per_slice)
            found = self.find(question, until)
            if found.complete or self.rebuilt == rebuilt:
                break  # otherwise the file was found damaged: once more with the new one
        if not found.complete:
            behind = max(behind, self._source.latest() - question.newer_than)
        return found.hits, behind

    def catch_up(self, until: Until, rows_per_slice: int) -> int:
        """Index what the truth has more than the index, until the deadline; return the number of rows still missing."""
        latest = self._source.latest()
        self._usable()  # if the file is a new one, the cursor stands at its beginning
        while self._cursor < latest and not until.expired() and self.advance(rows_per_slice):
            pass
        return max(0, latest - self._cursor)

    def tend(self, rows_max: int) -> bool:
        """Index one slice in idle time, unless that failed a moment ago; return whether there may be more."""
        return time.monotonic() >= self._tend_at and self.advance(rows_max)

    def advance(self, rows_max: int) -> bool:
        """Index one slice in one transaction; return whether another may follow at once."""
        database = self._usable()
        if database is None or (part := self._source.slice(self._cursor, rows_max)) is None:
            return False
        until = Until.after(_SLICE_S)
        try:
            with database.during(until, "keyword index failed") as connection, transaction(connection, until):
                _write_slice(connection, part)
        except StoreLost:
            self._drop_damaged()
            return self._database is not None
        except BulkheadError:
            # The disk is full or busy. The truth goes on; searches say how far behind the index is.
            self._tend_at = time.monotonic() + _RETRY_S
            return False
        self._cursor = part.cursor
        return True

    def remove(self, documents: Sequence[Document], until: Until) -> int:
        """Take rows out, given the terms with which they were put in; return how many were in it.

        Raises what the file does: a row that is forgotten is not out before this says so.
        """
        database = self._usable()
        if database is None:
            raise StoreBusy("rows not taken out: the keyword index can't be used at the moment")
        with database.during(until, "keyword index failed") as connection, transaction(connection, until):
            removed = [document for document in documents if _is_indexed(connection, document.rowid)]
            _take_out(connection, removed)
            meta.write(connection, "documents", meta.read_counter(connection, "documents") - len(removed))
        return len(removed)

    def holds(self, rowids: Sequence[int]) -> list[int]:
        """Return which of these rows are in the index."""
        database = self._usable()
        if database is None:
            raise StoreBusy("not known: the keyword index can't be used at the moment")
        return [rowid for rowid in rowids if _is_indexed(database.connection, rowid)]

    def discard(self) -> None:
        """Delete the file and begin a new one: it holds words that can't be taken out any more."""
        self.close()
        self._cursor = 0
        self._remove()

    def scour(self, until: Until) -> bool:
        """Merge some of the index, so that what was taken out leaves the file; return whether there is more to do.

        FTS5 notes what is taken out beside what was put in, until a merge of all brings the two together.
        """
        database = self._usable()
        if database is None:
            return True
        with database.during(until, "keyword index failed") as connection:
            before = connection.total_changes
            with transaction(connection, until):
                # A negative number gathers everything into one structure first, a positive one goes on with that.
                pages = _MERGE_PAGES if self._merging else -_MERGE_PAGES
                connection.execute("INSERT INTO keywords (keywords, rank) VALUES ('merge', ?)", (pages,))
            self._merging = connection.total_changes - before >= 2
            return self._merging or not checkpoint(connection, "TRUNCATE")

    def find(self, question: Question, until: Until) -> Found:
        """Find the rows that hold any of the terms and fulfil the condition, the best first, the newer of equals first.

        When the time does not suffice for all terms, the rarest are looked up; when not even for one, in the newest
        rows.
        """
        database = self._usable()
        if database is None:
            return Found([], complete=False)
        try:
            with database.during(until, "keyword search failed") as connection:
                weights = _weights(connection, question.terms)
                span, time_ns = self._cursor - question.newer_than, until.deadline_ns - time.monotonic_ns()
                affordable, rows = _affordable(weights, span, time_ns)
                hits = self.hits(connection, affordable, question._replace(newer_than=self._cursor - rows))
                return Found(hits, complete=(len(affordable), rows) == (len(weights), span))
        except Interrupted:
            return Found([], complete=False)
        except StoreLost:
            self._drop_damaged()
            return Found([], complete=False)

    # ------------------------------------------------------------ for a truth of several files

    def attach(self, connection: sqlite3.Connection) -> None:
        """Give a new connection the truth to read from."""
        attach_reader(connection, self._truth, "truth")

    def hits(self, connection: sqlite3.Connection, weights: Sequence[Weight], question: Question) -> list[Hit]:
        """Return the best rows that hold any of the terms, best first."""
        return find_hits(connection, weights, question)

    # ------------------------------------------------------------ the file

    def _usable(self) -> Database | None:
        """Return the open file, opened or made anew where need be; None when that is not possible at the moment."""
        if self._database is not None and not self._database.in_place():
            self.close()  # somebody deleted it, which is allowed; what may be left of it does not fit together
            self._remove()
        if self._database is None and time.monotonic() >= self._retry_at:
            self._database = self._open()
            if self._database is None:
                self._retry_at = time.monotonic() + _RETRY_S
            self._cursor = meta.read_counter(self._database.connection, "cursor") if self._database else 0
        return self._database

    def _open(self) -> Database | None:
        """Open the file as it is; delete it and make a new one when it is outdated or damaged."""
        try:
            existing = self._open_file()
            if existing is not None:
                return existing
        except (DiskFull, StoreBusy):
            return None
        except (BulkheadError, StoreLost, sqlite3.Error):
            if not self._may_rebuild():
                return None
        try:
            return self._open_file() if self._remove() else None
        except (BulkheadError, StoreLost, sqlite3.Error):
            return None

    def _open_file(self) -> Database | None:
        """Open the file, or make an empty one; None when it does not fit to the truth or the analyser."""
        database = Database(open_writer(self.path, KIND), self.path)
        fits = False
        try:
            with database.during(Until.after(_SLICE_S), "opening the keyword index failed") as connection:
                self.attach(connection)
                _probe(connection, file_bytes(self.path))
                if meta.read_text(connection, "analyser") is None:
                    meta.write(connection, "analyser", str(ANALYSER_VERSION))
                fits = self._fits(connection)
        finally:
            if not fits:
                database.close()
        return database if fits else None

    def _fits(self, connection: sqlite3.Connection) -> bool:
        """Say whether the index was made by this analyser from this truth: a restored backup may be older or other."""
        cursor = meta.read_counter(connection, "cursor")
        if meta.read_text(connection, "analyser") != str(ANALYSER_VERSION):
            return False
        return cursor == 0 or meta.read_text(connection, "mark") == self._source.mark(cursor)

    def _drop_damaged(self) -> None:
        """Close a file that can't be trusted and make a new one, unless that has happened too often."""
        self.close()
        self._cursor = 0
        if self._may_rebuild() and self._remove():
            self._usable()

    def _remove(self) -> bool:
        """Delete the file to make a new one; return whether that was possible."""
        try:
            remove_database(self.path)
        except OSError:
            return False  # there is something else under its name, or the folder can't be written to
        self.rebuilt += 1
        return True

    def _may_rebuild(self) -> bool:
        """Count a damage; refuse when they are so frequent that the disk or we must be the cause."""
        now = time.monotonic()
        self._damages = [at for at in self._damages if now - at < REBUILDS_WINDOW_S]
        if len(self._damages) >= REBUILDS_MAX:
            self._retry_at = now + REBUILDS_WINDOW_S
            return False
        self._damages.append(now)
        return True


def indexed_rows(path: Path) -> int:
    """Return how far an index reaches without opening it for work; 0 when there is none that can be believed."""
    if not path.exists():
        return 0
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return 0
    try:
        cursor, mark = meta.read_counter(connection, "cursor"), meta.read_text(connection, "mark") or ""
        return cursor if meta.read_text(connection, "seal") == _seal(cursor, mark) else 0
    except (sqlite3.Error, ValueError):
        return 0
    finally:
        connection.close()


def require_rows(truth: Path, what: str, last: int) -> None:
    """Raise Quarantined when the truth ends before its index does: rows that were acknowledged are gone.

    The index only ever holds what was committed, with fsync, before. `last` is the number of the last row, 0 when the
    file is missing or empty. A lost WAL, or a file deleted while the daemon was down, shows in nothing else.
    """
    indexed = indexed_rows(truth.with_name(FILE_NAME))
    if last < indexed:
        raise Quarantined(
            f"{what} {str(truth)!r} ends at row {last}, but its keyword index covers {indexed}: rows are missing",
            hint=f"restore {truth.name} from a backup; if you did so just now, remove {FILE_NAME}, which is made again",
        )


def _seal(cursor: int, mark: str) -> str:
    """Return what tells a cursor that we wrote from one that the disk made up: a truth is refused on its word."""
    return hashlib.sha256(f"{cursor} {mark}".encode()).hexdigest()


def _probe(connection: sqlite3.Connection, size: int) -> None:
    """Use the index once, and check all of it when that is quick; SQLite's own check does not look into FTS5."""
    connection.execute("SELECT rowid FROM keywords WHERE keywords MATCH '\"probe\"' LIMIT 1").fetchall()
    if size <= _INTEGRITY_BYTES_MAX:
        connection.execute("INSERT INTO keywords (keywords) VALUES ('integrity-check')")


def _write_slice(connection: sqlite3.Connection, part: Slice) -> None:
    removed = [document for document in part.removed if _is_indexed(connection, document.rowid)]
    _take_out(connection, removed)
    for document in part.added:
        connection.execute("INSERT INTO keywords (rowid, terms) VALUES (:rowid, :terms)", document._asdict())
    documents = meta.read_counter(connection, "documents")
    meta.write(connection, "documents", documents + len(part.added) - len(removed))
    meta.write(connection, "cursor", part.cursor)
    meta.write(connection, "mark", part.mark)
    meta.write(connection, "seal", _seal(part.cursor, part.mark))


def _take_out(connection: sqlite3.Connection, documents: Sequence[Document]) -> None:
    for document in documents:
        connection.execute(
            "INSERT INTO keywords (keywords, rowid, terms) VALUES ('delete', :rowid, :terms)", document._asdict()
        )


def _is_indexed(connection: sqlite3.Connection, rowid: int) -> bool:
    row = connection.execute("SELECT 1 FROM keywords_docsize WHERE id = :rowid", {"rowid": rowid}).fetchone()
    return row is not None


def _weights(connection: sqlite3.Connection, terms: Sequence[str]) -> list[Weight]:
    """Return the terms that occur, the rarest first, with what turns FTS5's score of a term into Lucene's."""
    total = meta.read_counter(connection, "documents")
    weights = []
    for term in dict.fromkeys(terms):
        row = connection.execute("SELECT doc FROM vocabulary WHERE term = :term", {"term": term}).fetchone()
        if row is not None:
            (documents,) = row
            weights.append(Weight(term, documents, _factor(total, documents)))
    return sorted(weights, key=lambda weight: weight.documents)


def _factor(total: int, documents: int) -> float:
    ratio = (total - documents + 0.5) / (documents + 0.5)
    idf_of_fts5 = math.log(ratio)
    # FTS5's rank is negative, so that the best comes first in ascending order.
    return -math.log1p(ratio) / (idf_of_fts5 if idf_of_fts5 > 0 else 1e-6)


def _affordable(weights: Sequence[Weight], span: int, time_ns: int) -> tuple[Sequence[Weight], int]:
    """Return how many of the terms, the rarest, and of the newest `span` rows can be read in the time."""
    cost = 0
    for index, weight in enumerate(weights):
        cost += min(weight.documents, span) * _POSTING_NS + weight.documents * _COUNT_NS
        if cost > time_ns:
            return (weights[:index], span) if index > 0 else (weights[:1], min(span, max(0, time_ns) // _POSTING_NS))
    return weights, span


def find_hits(connection: sqlite3.Connection, weights: Sequence[Weight], question: Question) -> list[Hit]:
    """Return the best rows that hold any of the terms, best first, the newer of equals first."""
    if not weights:
        return []
    postings = " UNION ALL ".join(
        f"SELECT rowid, rank * :k_factor_{index} AS score FROM keywords"
        f" WHERE keywords MATCH :k_term_{index} AND rowid > :k_newer_than AND rowid <= :k_until"
        for index in range(len(weights))
    )
    parameters: dict[str, str | int | float] = {
        **question.condition.parameters,
        "k_newer_than": question.newer_than,
        "k_until": question.until,
        "k_limit": question.limit,
    }
    for index, weight in enumerate(weights):
        parameters[f"k_factor_{index}"] = weight.factor
        parameters[f"k_term_{index}"] = '"' + weight.term.replace('"', '""') + '"'
    # `rank` and not bm25(): in a compound SELECT that feeds an aggregate the function has lost its cursor.
    return [
        Hit(rowid, score)
        for rowid, score in connection.execute(
            f"""
            SELECT h.rowid, h.score
            FROM (SELECT rowid, sum(score) AS score FROM ({postings}) GROUP BY rowid) AS h
            JOIN {question.rows}
            WHERE {question.condition.sql}
            ORDER BY h.score DESC, h.rowid DESC
            LIMIT :k_limit
            """,
            parameters,
        )
    ]
