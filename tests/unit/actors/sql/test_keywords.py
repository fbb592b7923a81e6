"""The keyword index: what it finds, how it scores, and how it survives whatever happens to its file."""

import math
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from actors.errors import Quarantined
from actors.sql import keywords
from actors.sql.database import FileKind, Until, open_writer
from actors.sql.filters import Where
from actors.sql.keywords import Document, KeywordIndex, Question, Slice

EVERYTHING = Where("t.hidden = 0", {})
TRUTH = FileKind(
    name="truth",
    application_id=1,
    user_version=1,
    schema="""
        PRAGMA application_id = 1;
        PRAGMA user_version = 1;
        CREATE TABLE docs (n INTEGER PRIMARY KEY, words TEXT NOT NULL, hidden INTEGER NOT NULL) STRICT;
    """,
    synchronous="OFF",
)


class Docs:
    """A truth of documents that are words already."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "truth.db"
        self.connection = open_writer(self.path, TRUTH)
        self.replaced: dict[int, int] = {}

    def add(self, *documents: str, hidden: bool = False) -> None:
        for words in documents:
            self.connection.execute("INSERT INTO docs (words, hidden) VALUES (?, ?)", (words, hidden))

    def replace(self, old: int, words: str) -> None:
        """Add a document in place of another one, which is to leave the index."""
        self.add(words)
        self.replaced[self.latest()] = old

    def words(self, n: int) -> str:
        (words,) = self.connection.execute("SELECT words FROM docs WHERE n = ?", (n,)).fetchone()
        return str(words)

    def latest(self) -> int:
        return int(self.connection.execute("SELECT coalesce(max(n), 0) FROM docs").fetchone()[0])

    def slice(self, after: int, rows_max: int) -> Slice | None:
        rows = self.connection.execute("SELECT n, words FROM docs WHERE n > ? LIMIT ?", (after, rows_max)).fetchall()
        if not rows:
            return None
        gone = [self.replaced[n] for n, _ in rows if n in self.replaced]
        removed = [Document(n, self.words(n)) for n in gone]
        added = [Document(*row) for row in rows if row[0] not in self.replaced.values()]
        return Slice(added, removed, rows[-1][0], self.mark(rows[-1][0]) or "")

    def mark(self, rowid: int) -> str | None:
        return self.words(rowid) if 0 < rowid <= self.latest() else None


@pytest.fixture
def docs(tmp_path: Path) -> Iterator[Docs]:
    made = Docs(tmp_path)
    yield made
    made.connection.close()


@pytest.fixture
def index(docs: Docs) -> Iterator[KeywordIndex]:
    made = KeywordIndex(docs.path.with_name(keywords.FILE_NAME), docs.path, docs)
    made.open()
    yield made
    made.close()


def question(*terms: str, newer_than: int = 0, limit: int = 100, condition: Where = EVERYTHING) -> Question:
    return Question(terms, newer_than, "truth.docs AS t ON t.n = h.rowid", condition, limit)


def search(index: KeywordIndex, *terms: str, newer_than: int = 0, limit: int = 100) -> list[tuple[int, float]]:
    asked = question(*terms, newer_than=newer_than, limit=limit)
    hits, behind = index.search(asked, until=Until.after(60), rows_per_slice=10)
    assert behind == 0
    return [(hit.rowid, hit.score) for hit in hits]


def found(index: KeywordIndex, *terms: str) -> list[int]:
    return [rowid for rowid, _ in search(index, *terms)]


def lucene(documents: Sequence[list[str]], terms: Sequence[str]) -> list[tuple[int, float]]:
    """Return (number, score), the best first and the newer of equals first, by the textbook's BM25."""
    average = sum(map(len, documents)) / len(documents)
    scores: dict[int, float] = {}
    for term in dict.fromkeys(terms):
        n = sum(term in document for document in documents)
        idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
        for number, document in enumerate(documents, start=1):
            if frequency := document.count(term):
                norm = 1.2 * (0.25 + 0.75 * len(document) / average)
                scores[number] = scores.get(number, 0) + idf * frequency * 2.2 / (frequency + norm)
    return sorted(scores.items(), key=lambda item: (item[1], item[0]), reverse=True)


def test_scores_are_those_of_lucene_for_rare_and_for_common_words(docs: Docs, index: KeywordIndex) -> None:
    """Also for words that stand in most documents, whose idf FTS5 itself sets to 0.000001."""
    generator = random.Random(7)
    vocabulary = ["everywhere", *"abcdefghijklmnop"]
    documents = [["everywhere", *generator.choices(vocabulary, k=generator.randint(1, 30))] for _ in range(200)]
    docs.add(*(" ".join(document) for document in documents))
    for terms in (["everywhere"], ["a"], ["everywhere", "a", "b"], ["everywhere", "nowhere", "c"], ["d", "d"]):
        expected = lucene(documents, terms)[:100]
        actual = search(index, *terms)
        assert [score for _, score in actual] == pytest.approx([score for _, score in expected], rel=1e-9)
        assert {rowid for rowid, _ in actual[:50]} <= {rowid for rowid, _ in lucene(documents, terms)}
    everywhere = search(index, "everywhere", limit=3)
    assert len(everywhere) == 3 and everywhere == search(index, "everywhere")[:3]


def test_a_single_document_has_a_score(docs: Docs, index: KeywordIndex) -> None:
    docs.add("alone")
    ((rowid, score),) = search(index, "alone")
    assert rowid == 1
    assert score == pytest.approx(math.log(4 / 3))


def test_what_was_committed_is_found_by_the_next_search(docs: Docs, index: KeywordIndex) -> None:
    for number in range(1, 30):
        docs.add(f"word{number} common")
        assert found(index, f"word{number}") == [number]
    assert len(found(index, "common")) == 29


def test_only_newer_rows_are_found_when_asked_for(docs: Docs, index: KeywordIndex) -> None:
    docs.add(*["same word"] * 5)
    assert [rowid for rowid, _ in search(index, "word", newer_than=3)] == [5, 4]


def test_a_filter_applies_before_the_limit(docs: Docs, index: KeywordIndex) -> None:
    docs.add(*["needle needle"] * 200, hidden=True)
    docs.add("needle in a very long haystack of words")
    docs.add(*["needle needle"] * 200, hidden=True)
    hits, _ = index.search(question("needle", limit=1), until=Until.after(60), rows_per_slice=100)
    assert [hit.rowid for hit in hits] == [201]


def test_a_replaced_document_leaves_the_index_and_its_statistics(docs: Docs, index: KeywordIndex) -> None:
    docs.add("old words", "other words")
    assert found(index, "old") == [1]
    docs.replace(1, "new words")
    docs.replace(3, "newest words")
    assert found(index, "old") == found(index, "new") == []
    left = [["other", "words"], ["newest", "words"]]
    assert [score for _, score in search(index, "words")] == pytest.approx(
        [score for _, score in lucene(left, ["words"])]
    )


@pytest.mark.parametrize("term", ['"', "''", '"x" OR *', "a*", "NEAR(a", "^a", "terms:a", "-a", "(", "记忆", "\\"])
def test_no_term_is_taken_for_syntax(docs: Docs, index: KeywordIndex, term: str) -> None:
    docs.add("a b")
    hits, behind = index.search(question(term), until=Until.after(60), rows_per_slice=10)
    assert (hits, behind) == ([], 0)


def test_rows_that_can_not_be_indexed_in_time_are_counted(docs: Docs, index: KeywordIndex) -> None:
    docs.add(*["word"] * 50)
    hits, behind = index.search(question("word"), until=Until.after(-1), rows_per_slice=10)
    assert (hits, behind) == ([], 50)
    assert len(found(index, "word")) == 50


def test_the_rarest_words_and_then_the_newest_rows_are_looked_up_when_time_is_short() -> None:
    rare, usual = (keywords.Weight(term, documents, -1.0) for term, documents in (("rare", 10), ("usual", 10**6)))
    second = 10**9
    assert keywords._affordable([rare, usual], 10**7, 10 * second) == ([rare, usual], 10**7)
    assert keywords._affordable([rare, usual], 10**7, second) == ([rare], 10**7)
    assert keywords._affordable([rare, usual], 100, second) == ([rare, usual], 100), "few rows are that new"
    terms, rows = keywords._affordable([usual], 10**7, second)
    assert terms == [usual]
    assert 10**5 < rows < 10**6
    assert keywords._affordable([rare], 10**7, -1) == ([rare], 0)


def test_a_search_in_the_newest_rows_only_says_so(
    docs: Docs, index: KeywordIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs.add(*["word"] * 50)
    assert len(found(index, "word")) == 50
    monkeypatch.setattr(keywords, "_affordable", lambda weights, span, time_ns: (weights, 3))
    hits, behind = index.search(question("word"), until=Until.after(60), rows_per_slice=10)
    assert [hit.rowid for hit in hits] == [50, 49, 48]
    assert behind == 50


def reopened(docs: Docs) -> KeywordIndex:
    index = KeywordIndex(docs.path.with_name(keywords.FILE_NAME), docs.path, docs)
    index.open()
    return index


def test_the_index_goes_on_where_it_was(docs: Docs, index: KeywordIndex) -> None:
    docs.add("one", "two")
    assert found(index, "two") == [2]
    index.close()
    with closing(reopened(docs)) as again:
        assert (again.cursor, again.rebuilt) == (2, 0)
        assert found(again, "one") == [1]


def test_a_deleted_file_is_made_again_while_in_use(docs: Docs, index: KeywordIndex) -> None:
    docs.add(*["word"] * 30)
    assert len(found(index, "word")) == 30
    for file in docs.path.parent.glob("keywords.db*"):
        file.unlink()
    assert len(found(index, "word")) == 30
    assert index.rebuilt == 1
    assert index.path.exists()


@pytest.mark.parametrize("damage", ["not a database", "zeroed", "cut", "index page", "empty"])
def test_a_damaged_file_is_made_again_at_the_start(docs: Docs, index: KeywordIndex, damage: str) -> None:
    docs.add(*(f"word{number} common text" for number in range(500)))
    assert len(found(index, "common")) == 100
    index.close()
    content = bytearray(index.path.read_bytes())
    if damage == "not a database":
        content[:] = b"something else" * 1000
    elif damage == "zeroed":
        content[4096:] = bytes(len(content) - 4096)
    elif damage == "cut":
        del content[-4096:]
    elif damage == "index page":
        place = content.index(b"common")
        content[place - 20 : place + 20] = b"\xee" * 40
    else:
        content.clear()
    index.path.write_bytes(content)
    with closing(reopened(docs)) as again:
        assert again.cursor == 0
        assert len(found(again, "common")) == 100
        assert found(again, "word77") == [78]


def test_a_file_that_is_found_damaged_while_searching_is_made_again(docs: Docs, index: KeywordIndex) -> None:
    docs.add(*(f"word{number} common text" for number in range(2000)))
    assert found(index, "word1999") == [2000]
    index.close()
    with closing(reopened(docs)) as again:
        content = bytearray(again.path.read_bytes())
        content[8192:] = b"\xee" * (len(content) - 8192)
        again.path.write_bytes(content)
        assert again._database is not None
        again._database.connection.execute("PRAGMA shrink_memory")  # else it would answer from its page cache
        assert found(again, "word1999") == [2000]
        assert again.rebuilt == 1


def test_something_else_under_the_name_of_the_file_leaves_searches_behind(docs: Docs, index: KeywordIndex) -> None:
    docs.add("word")
    assert found(index, "word") == [1]
    index.path.unlink()
    index.path.mkdir()
    hits, behind = index.search(question("word"), until=Until.after(60), rows_per_slice=10)
    assert (hits, behind) == ([], 1)


def test_an_index_that_breaks_again_and_again_is_left_alone_for_a_while(docs: Docs, index: KeywordIndex) -> None:
    docs.add(*(f"word{number} common text" for number in range(300)))
    for _ in range(keywords.REBUILDS_MAX):
        assert index.cursor in (0, 300)
        index._drop_damaged()
    assert index.rebuilt == keywords.REBUILDS_MAX
    index._drop_damaged()
    hits, behind = index.search(question("common"), until=Until.after(60), rows_per_slice=100)
    assert (hits, behind) == ([], 300)
    assert index.rebuilt == keywords.REBUILDS_MAX


def test_an_index_of_another_truth_is_made_again(docs: Docs, index: KeywordIndex) -> None:
    """A backup was restored: its rows end earlier, or are not the same."""
    docs.add("one", "two", "three")
    assert found(index, "three") == [3]
    index.close()
    docs.connection.execute("DELETE FROM docs WHERE n = 3")
    docs.add("something else")
    with closing(reopened(docs)) as again:
        assert found(again, "three") == []
        assert found(again, "else") == [3]


def test_an_index_of_another_analyser_is_made_again(
    docs: Docs, index: KeywordIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    docs.add("one")
    assert found(index, "one") == [1]
    index.close()
    monkeypatch.setattr(keywords, "ANALYSER_VERSION", 10**6)
    with closing(reopened(docs)) as again:
        assert (again.cursor, again.rebuilt) == (0, 1)
        assert found(again, "one") == [1]


def test_a_full_disk_leaves_the_index_behind_but_in_use(docs: Docs, index: KeywordIndex) -> None:
    docs.add("early")
    assert found(index, "early") == [1]
    database = index._database
    assert database is not None
    (pages,) = database.connection.execute("PRAGMA page_count").fetchone()
    database.connection.execute(f"PRAGMA max_page_count = {pages}")
    docs.add(*(f"word{number} late" for number in range(2000)))
    hits, behind = index.search(question("early"), until=Until.after(60), rows_per_slice=2000)
    assert [hit.rowid for hit in hits] == [1]
    assert behind == 2000
    assert not index.tend(10)
    database.connection.execute("PRAGMA max_page_count = 100000")
    assert not index.tend(10), "idle time is not spent on a disk that was full a moment ago"
    assert len(found(index, "late")) == 100, "but a search looks again"


def test_a_truth_that_ends_before_its_index_is_quarantined(docs: Docs, index: KeywordIndex) -> None:
    docs.add("one", "two")
    keywords.require_rows(docs.path, "truth", 0)  # nothing is indexed yet
    assert found(index, "two") == [2]
    for last in (2, 3):
        keywords.require_rows(docs.path, "truth", last)
    for last in (0, 1):
        with pytest.raises(Quarantined, match=f"ends at row {last}, but its keyword index covers 2: rows are missing"):
            keywords.require_rows(docs.path, "truth", last)


def test_no_truth_is_refused_on_the_word_of_a_damaged_index(docs: Docs, index: KeywordIndex) -> None:
    docs.add("one", "two")
    assert found(index, "two") == [2]
    assert index._database is not None
    index._database.connection.execute("UPDATE meta SET value = 1000000 WHERE name = 'cursor'")
    keywords.require_rows(docs.path, "truth", 2)


def test_looking_at_an_unreadable_index_finds_no_rows(tmp_path: Path) -> None:
    path = tmp_path / keywords.FILE_NAME
    assert keywords.indexed_rows(path) == 0
    path.write_bytes(b"no database" * 500)
    assert keywords.indexed_rows(path) == 0
    path.unlink()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE other (x)")
    assert keywords.indexed_rows(path) == 0
