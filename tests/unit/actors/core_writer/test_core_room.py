"""Core on real files: sessions, units and their versions, roots, requests, numbers."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.core_writer import search
from actors.core_writer.worker import CoreRoom
from actors.errors import Conflict, DiskFull, InvalidParams, NotFound, Quarantined
from actors.messages.base import Candidates, Done, Filters, Message, Row, Rows, Statistics
from actors.messages.core_writer import (
    AddSource,
    AdoptSessions,
    AllocateGeneration,
    CloseSession,
    CoreStatus,
    CoreWriterMessage,
    GenerationNumber,
    GetSession,
    GetUnit,
    ListSessions,
    ListSources,
    ListUnits,
    OpenSession,
    PageUnits,
    PutUnit,
    RemoveSource,
    SearchUnits,
    SessionActivity,
    SourceRoots,
    UnitHistory,
)
from actors.settings import CoreWriterSettings
from tests.unit.actors.room_kit import ask, core, rows_of

Json = dict[str, Any]


def row(room: CoreRoom, message: Message) -> Json:
    return msgspec.json.decode(ask(room, message, Row).row, type=Json)


def page(room: CoreRoom, message: Message) -> tuple[list[Json], bool]:
    answer = ask(room, message, Rows)
    found = msgspec.json.decode(answer.rows, type=list[Json])
    assert len(found) == answer.count
    return found, answer.more


def unit(text: str = "likes tea", **members: Any) -> PutUnit:
    return PutUnit(**{"type": "profile", "scope": "user", "text": text, **members})


def searched(room: CoreRoom, query: str, **members: Any) -> list[tuple[str, int]]:
    answer = ask(room, SearchUnits(query=query, **members), Candidates)
    assert answer.behind == 0
    return [(candidate.id, candidate.version) for candidate in answer.found]


def status(room: CoreRoom) -> Json:
    return dict(ask(room, CoreStatus(), Statistics).values)


def activity(session_id: str = "s", *, last_seq: int, last_ts: int, events: int = 1, **members: Any) -> SessionActivity:
    given_members = {"tenant": "default", "first_ts": 1, **members}
    return SessionActivity(session_id=session_id, last_seq=last_seq, last_ts=last_ts, events=events, **given_members)


def adopt(room: CoreRoom, *sessions: SessionActivity, cursor: int = 0) -> None:
    ask(room, AdoptSessions(sessions=list(sessions), cursor=cursor), Done)


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Set the clock (µs)."""
    return lambda us: monkeypatch.setattr("time.time_ns", lambda: us * 1000)


# ---------------------------------------------------------------- sessions


def test_opening_creates_a_session_and_later_fills_in_what_is_given(tmp_path: Path, at: Callable[[int], None]) -> None:
    with core(tmp_path) as room:
        at(1_000_000)
        made = row(room, OpenSession(session_id="s", title="A title", meta={"k": [1]}))
        assert made == {
            "session_id": "s",
            "status": "open",
            "title": "A title",
            "agent": None,
            "meta": {"k": [1]},
            "created_at": "1970-01-01T00:00:01.000000Z",
            "updated_at": "1970-01-01T00:00:01.000000Z",
            "last_active_at": "1970-01-01T00:00:01.000000Z",
            "closed_at": None,
            "archived_at": None,
            "last_seq": 0,
            "events": 0,
            "cursor": "1000000.s",
        }
        at(2_000_000)
        again = row(room, OpenSession(session_id="s", agent="codex"))
        assert (again["title"], again["agent"], again["meta"]) == ("A title", "codex", {"k": [1]})
        assert again["created_at"] == made["created_at"]
        assert again["updated_at"] == "1970-01-01T00:00:02.000000Z"
        assert row(room, GetSession(session_id="s")) == again


def test_a_session_of_another_tenant_is_not_found(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, OpenSession(session_id="s", tenant="a"))
        for message in (GetSession(session_id="s", tenant="b"), CloseSession(session_id="s", tenant="b")):
            with pytest.raises(NotFound, match="there is no session 's'"):
                row(room, message)
        assert row(room, OpenSession(session_id="s", tenant="b"))["title"] is None


def test_sessions_are_listed_by_activity_in_pages(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        adopt(room, *(activity(f"s{n}", last_seq=n + 1, last_ts=1000 - n // 2) for n in range(7)))
        adopt(room, activity("other", last_seq=20, last_ts=5000, tenant="other"))
        row(room, CloseSession(session_id="s2"))
        row(room, CloseSession(session_id="s5"))
        expected = ["s1", "s0", "s3", "s2", "s5", "s4", "s6"]

        def listed(**members: Any) -> list[str]:
            names: list[str] = []
            before, more = None, True
            while more:
                found, more = page(room, ListSessions(limit=2, before=before, **members))
                names += [session["session_id"] for session in found]
                before = found[-1]["cursor"] if found else None
            return names

        assert listed() == expected
        assert listed(status="closed") == ["s2", "s5"]
        assert listed(status="open") == [name for name in expected if name not in ("s2", "s5")]
        assert listed(tenant="other") == ["other"]
        assert listed(tenant="nobody") == []


@pytest.mark.parametrize("cursor", ["", "nonsense", ".s", "x.s", "99999999999999999999.s", "--5.s"])
def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: str) -> None:
    with core(tmp_path) as room, pytest.raises(InvalidParams, match="must be the cursor of a row"):
        page(room, ListSessions(limit=2, before=cursor))


def test_adopting_twice_or_in_the_wrong_order_changes_nothing(tmp_path: Path, at: Callable[[int], None]) -> None:
    with core(tmp_path) as room:
        at(10_000_000)
        adopt(room, activity(first_ts=5, last_ts=7, last_seq=3, events=3), cursor=3)
        once = row(room, GetSession(session_id="s"))
        assert (once["last_seq"], once["events"]) == (3, 3)
        assert once["created_at"] == "1970-01-01T00:00:00.000005Z"
        at(20_000_000)
        adopt(room, activity(first_ts=5, last_ts=7, last_seq=3, events=3), cursor=3)
        adopt(room, activity(first_ts=5, last_ts=6, last_seq=2, events=2), cursor=2)
        assert row(room, GetSession(session_id="s")) == once
        assert status(room)["sessions_cursor"] == 3


def test_a_closed_session_opens_again_with_a_newer_event_only(tmp_path: Path, at: Callable[[int], None]) -> None:
    with core(tmp_path) as room:
        at(1000)
        row(room, OpenSession(session_id="s"))
        adopt(room, activity(last_seq=1, last_ts=1100))
        at(2000)
        closed = row(room, CloseSession(session_id="s"))
        assert (closed["status"], closed["closed_at"]) == ("closed", "1970-01-01T00:00:00.002000Z")
        at(2500)
        assert row(room, CloseSession(session_id="s")) == closed, "closing again changes nothing"
        adopt(room, activity(last_seq=2, last_ts=1900, events=2))  # said before it was closed, learnt after
        assert row(room, GetSession(session_id="s"))["status"] == "closed"
        adopt(room, activity(last_seq=3, last_ts=3000, events=3))
        opened = row(room, GetSession(session_id="s"))
        assert (opened["status"], opened["closed_at"], opened["events"]) == ("open", None, 3)


# ---------------------------------------------------------------- units


def test_a_unit_comes_back_with_all_its_members(tmp_path: Path, at: Callable[[int], None]) -> None:
    members: Json = {
        "unit_id": "u",
        "type": "plan",
        "scope": "session",
        "text": "记忆",
        "facts": {"a": {"b": [1.5, None]}},
        "event_refs": ("e1", "e2"),
        "confidence": 0.5,
        "parent_unit_id": "p",
        "tags": ("t",),
        "session_id": "s",
    }
    with core(tmp_path) as room:
        at(1_000_000)
        made = row(room, PutUnit(**members))
        assert made == {
            **members,
            "event_refs": ["e1", "e2"],
            "tags": ["t"],
            "version": 1,
            "core_seq": 1,
            "status": "active",
            "created_at": "1970-01-01T00:00:01.000000Z",
            "updated_at": "1970-01-01T00:00:01.000000Z",
        }
        assert row(room, GetUnit(unit_id="u")) == made


def test_a_change_appends_a_version_and_deprecates_the_last(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        first = row(room, unit("one"))
        second = row(room, unit("two", unit_id=first["unit_id"], expected_version=1))
        assert (second["version"], second["core_seq"], second["created_at"]) == (2, 2, first["created_at"])
        assert second["updated_at"] > first["updated_at"]
        old = row(room, GetUnit(unit_id=first["unit_id"], version=1))
        assert old == {**first, "status": "deprecated"}
        assert row(room, GetUnit(unit_id=first["unit_id"])) == second
        with pytest.raises(NotFound, match="with version 3"):
            row(room, GetUnit(unit_id=first["unit_id"], version=3))


@pytest.mark.parametrize(("stored", "expected"), [(0, 1), (1, 0), (2, 1), (2, 3)])
def test_a_change_of_another_version_than_expected_is_refused(tmp_path: Path, stored: int, expected: int) -> None:
    with core(tmp_path) as room:
        for _ in range(stored):
            row(room, unit(unit_id="u"))
        with pytest.raises(Conflict, match=f"unit 'u' is at version {stored}, expected {expected}"):
            row(room, unit(unit_id="u", expected_version=expected))
        assert status(room)["core_seq"] == stored
        assert row(room, unit(unit_id="u", expected_version=stored))["version"] == stored + 1


def test_a_unit_id_of_another_tenant_is_a_conflict_that_tells_nothing(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit(unit_id="u", tenant="a"))
        with pytest.raises(Conflict) as caught:
            row(room, unit(unit_id="u", tenant="b"))
        assert caught.value.message == "unit.put refused: unit_id 'u' is not available"
        for message in (GetUnit(unit_id="u", tenant="b"), GetUnit(unit_id="u", version=1, tenant="b")):
            with pytest.raises(NotFound):
                row(room, message)
        assert page(room, UnitHistory(unit_id="u", limit=5, tenant="b")) == ([], False)
        assert page(room, ListUnits(limit=5, tenant="b")) == ([], False)


SMALL = CoreWriterSettings(
    text_bytes_max=10,
    facts_bytes_max=10,
    meta_bytes_max=20,
    event_refs_max=1,
    tags_max=1,
    tag_chars_max=3,
    id_chars_max=8,
)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (unit("记忆记忆"), r"text is 12 bytes, the limit is 10 \(core_writer.text_bytes_max\)"),
        (unit("x", facts={"long": "value"}), r"facts is 16 bytes, the limit is 10 \(core_writer.facts_bytes_max\)"),
        (unit("x", event_refs=("a", "b")), r"2 event_refs, the limit is 1 \(core_writer.event_refs_max\)"),
        (unit("x", event_refs=("abcdefghi",)), r"event_refs\[0\] is 9 characters, the limit is 8"),
        (unit("x", tags=("a", "b")), r"2 tags, the limit is 1 \(core_writer.tags_max\)"),
        (unit("x", unit_id="abcdefghi"), r"unit_id is 9 characters, the limit is 8 \(core_writer.id_chars_max\)"),
        (unit("x", confidence=1.5), "confidence is 1.5, it must be between 0 and 1"),
        (unit("x", confidence=float("nan")), "confidence is nan"),
        (unit("x", expected_version=1), "expected_version 1 needs a unit_id"),
        (OpenSession(session_id=""), "session.open refused: session_id is empty"),
        (
            OpenSession(session_id="s", title="t" * 21),
            r"title is 21 bytes, the limit is 20 \(core_writer.meta_bytes_max\)",
        ),
        (OpenSession(session_id="s", meta={"long": "0123456789"}), "meta is 21 bytes, the limit is 20"),
        (CloseSession(session_id="s", request_id="a\0"), "request_id holds NUL"),
        (AddSource(path="relative"), "path is 'relative', it must be absolute"),
        (AddSource(path="/a/../b"), "it must be absolute and resolved"),
        (RemoveSource(source_id="x", request_id=""), "request_id is empty"),
    ],
)
def test_what_is_beyond_a_limit_is_refused_before_anything_happens(
    tmp_path: Path, message: Message, words: str
) -> None:
    with core(tmp_path, core_writer=SMALL) as room:
        with pytest.raises(InvalidParams, match=words):
            row(room, message)
        assert status(room)["requests"] == status(room)["units"] == status(room)["sessions"] == 0


def test_history_and_lists_are_paged_newest_first(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for number in range(5):
            row(room, unit(f"version {number}", unit_id="u"))
        row(room, unit("other", unit_id="v", type="plan", scope="global"))
        row(room, unit("gone", unit_id="w", status="deprecated"))
        found, more = page(room, UnitHistory(unit_id="u", limit=2))
        assert ([each["version"] for each in found], more) == ([5, 4], True)
        found, more = page(room, UnitHistory(unit_id="u", limit=9, before_version=4))
        assert ([each["version"] for each in found], more) == ([3, 2, 1], False)

        def listed(**members: Any) -> list[str]:
            return [each["unit_id"] for each in page(room, ListUnits(limit=9, **members))[0]]

        assert listed() == ["v", "u"]
        assert listed(status=None) == ["w", "v", "u"]
        assert listed(status="deprecated") == ["w"]
        assert listed(type="plan") == listed(scope="global") == ["v"]
        assert listed(before_core_seq=6) == ["u"]
        found, more = page(room, ListUnits(limit=1))
        assert ([each["unit_id"] for each in found], more) == (["v"], True)


def test_the_builder_pages_the_latest_active_versions(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit("old", unit_id="u"))
        row(room, unit("v", unit_id="v", tenant="other", facts={"a": 1}, tags=("t",)))
        row(room, unit("new", unit_id="u"))
        row(room, unit("w", unit_id="w", status="deprecated"))
        row(room, unit("x", unit_id="x"))

        def paged(after: int, until: int, limit: int) -> tuple[list[Json], bool]:
            answer = ask(room, PageUnits(after=after, until=until, limit=limit), Rows)
            return msgspec.msgpack.decode(answer.rows, type=list[Json]), answer.more

        rows, more = paged(0, 5, 2)
        assert [(each["unit_id"], each["version"], each["core_seq"]) for each in rows] == [("v", 1, 2), ("u", 2, 3)]
        assert more
        assert (rows[0]["tenant"], rows[0]["facts"], rows[0]["tags"]) == ("other", {"a": 1}, ["t"])
        assert isinstance(rows[0]["updated_at"], int)
        rows, more = paged(3, 5, 2)
        assert ([each["unit_id"] for each in rows], more) == (["x"], False)
        assert paged(3, 4, 2) == ([], False)


# ---------------------------------------------------------------- searching units


def test_a_unit_is_found_by_its_words_at_once_and_only_in_its_latest_version(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit("likes tea", unit_id="u", facts={"drink": ["乌龙茶"]}, tags=("beverage",)))
        for query in ("tea", "乌", "乌龙", "乌龙茶", "beverage"):
            assert searched(room, query) == [("u", 1)]
        row(room, unit("likes coffee", unit_id="u"))
        assert searched(room, "coffee") == [("u", 2)]
        for query in ("tea", "乌龙", "beverage"):
            assert searched(room, query) == []
        row(room, unit("likes coffee", unit_id="u", status="deprecated"))
        assert searched(room, "coffee") == []
        row(room, unit("likes tea again", unit_id="u"))
        assert searched(room, "tea") == [("u", 4)]


def test_the_index_of_units_follows_through_restarts_and_deletion(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit("first text", unit_id="u"))
        assert searched(room, "first") == [("u", 1)]
    with core(tmp_path) as room:
        row(room, unit("second text", unit_id="u"))
        assert searched(room, "first") == []
        assert searched(room, "text") == [("u", 2)]
        for file in tmp_path.glob("keywords.db*"):
            file.unlink()
        assert searched(room, "text") == [("u", 2)]
        assert searched(room, "first") == []


def test_filters_narrow_a_search_of_units(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit("word", unit_id="a", type="plan", session_id="a_b", tags=("x",)))
        row(room, unit("word", unit_id="b", scope="global", session_id="aXb"))
        row(room, unit("word", unit_id="c", tenant="other"))

        def narrowed(**members: Any) -> list[str]:
            return sorted(name for name, _ in searched(room, "word", filters=Filters(**members)))

        assert narrowed() == ["a", "b"]
        assert narrowed(types=("plan",)) == narrowed(session_ids=("a_b",)) == narrowed(tags=("x",)) == ["a"]
        assert narrowed(scopes=("global",)) == ["b"]
        assert narrowed(actors=("user",)) == narrowed(kinds=("message",)) == narrowed(path="x") == []
        assert searched(room, "word", tenant="other") == [("c", 1)]


def test_a_search_names_every_unit_that_changed_after_a_generation(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        for name in ("a", "b", "c"):
            row(room, unit("word", unit_id=name))
        row(room, unit("word", unit_id="a", status="deprecated"))
        row(room, unit("word", unit_id="b"))
        row(room, unit("word", unit_id="theirs", tenant="other"))
        answer = ask(room, SearchUnits(query="word", newer_than=3), Candidates)
        assert [candidate.id for candidate in answer.found] == ["b"]
        assert set(answer.changed) == {"a", "b"}
        assert answer.latest == 6
        nothing_asked = ask(room, SearchUnits(query="", newer_than=3, filters=Filters(path="x")), Candidates)
        assert set(nothing_asked.changed) == {"a", "b"}


def test_more_changes_than_can_be_named_count_as_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "CHANGED_MAX", 2)
    with core(tmp_path) as room:
        for number in range(5):
            row(room, unit(unit_id=f"u{number}"))
        answer = ask(room, SearchUnits(query="tea", newer_than=1), Candidates)
        assert (answer.changed, answer.behind) == (("u4", "u3"), 4)
        assert ask(room, SearchUnits(query="tea", newer_than=3), Candidates).behind == 0
        assert ask(room, SearchUnits(query="tea", newer_than=0), Candidates).behind == 0


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.lists(
        st.tuples(st.sampled_from("uvw"), st.sampled_from(("tea", "milk")), st.booleans(), st.booleans()), max_size=12
    )
)
def test_search_finds_the_active_latest_versions_whatever_happened(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, str, bool, bool]]
) -> None:
    """Units change in any order, and the index catches up between some of the changes."""
    latest: dict[str, tuple[str, int, bool]] = {}
    with core(tmp_path_factory.mktemp("units")) as room:
        for name, word, active, catch_up in changes:
            put = row(room, unit(word, unit_id=name, status="active" if active else "deprecated"))
            latest[name] = (word, put["version"], active)
            if catch_up:
                room.idle("search")
        for word in ("tea", "milk"):
            expected = {(name, version) for name, (text, version, active) in latest.items() if active and text == word}
            assert set(searched(room, word)) == expected


# ---------------------------------------------------------------- exactly once


@pytest.mark.parametrize(
    "message",
    [
        OpenSession(session_id="s", request_id="r"),
        unit(request_id="r"),
        AddSource(path="/notes", request_id="r"),
    ],
)
def test_a_repeated_request_gives_the_first_result(tmp_path: Path, message: Any) -> None:
    with core(tmp_path) as room:
        first = row(room, message)
        before = status(room)
        assert row(room, message) == {**first, "deduplicated": True}
        assert {**status(room), "wal_bytes": 0} == {**before, "wal_bytes": 0}
        assert "deduplicated" not in row(room, msgspec.structs.replace(message, tenant="other"))
    with core(tmp_path) as room:
        assert row(room, message) == {**first, "deduplicated": True}


def test_a_retry_of_a_conditional_change_does_not_conflict_with_itself(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit(unit_id="u"))
        message = unit("new", unit_id="u", expected_version=1, request_id="r")
        assert row(room, message)["version"] == 2
        assert row(room, message)["version"] == 2


def test_a_request_id_is_for_one_method(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, OpenSession(session_id="s", request_id="r"))
        with pytest.raises(Conflict, match="CloseSession refused: request_id 'r' was used for OpenSession"):
            row(room, CloseSession(session_id="s", request_id="r"))
        assert row(room, GetSession(session_id="s"))["status"] == "open"


def test_a_request_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        with pytest.raises(NotFound):
            row(room, CloseSession(session_id="s", request_id="r"))
        row(room, OpenSession(session_id="s"))
        assert row(room, CloseSession(session_id="s", request_id="r"))["status"] == "closed"


def test_the_oldest_results_are_dropped_in_idle_time(tmp_path: Path) -> None:
    with core(tmp_path, core_writer=CoreWriterSettings(request_ids_kept=3)) as room:
        for number in range(10):
            row(room, OpenSession(session_id="s", request_id=f"r{number}"))
        while room.idle("write"):
            pass
        assert rows_of(room.path, "SELECT request_id FROM requests ORDER BY id") == [("r7",), ("r8",), ("r9",)]


# ---------------------------------------------------------------- roots, numbers, the file


def test_two_roots_never_share_a_name(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        assert row(room, AddSource(path="/a/notes"))["name"] == "notes"
        assert row(room, AddSource(path="/b/notes"))["name"] == "notes-2"
        assert row(room, AddSource(path="/c/notes"))["name"] == "notes-3"
        assert row(room, AddSource(path="/a/notes", tenant="other"))["name"] == "notes"
        with pytest.raises(InvalidParams, match="another source is called 'notes-2'"):
            row(room, AddSource(path="/d", name="notes-2"))


def test_roots_are_registered_once_and_removed_by_id_or_path(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        added = row(room, AddSource(path="/home/me/notes/"))
        assert (added["path"], added["name"]) == ("/home/me/notes", "notes")
        assert row(room, AddSource(path="/home/me//notes", name="other")) == added
        second = row(room, AddSource(path="/", name="all"))
        theirs = row(room, AddSource(path="/home/me/notes", tenant="other"))
        assert theirs["source_id"] != added["source_id"]
        assert status(room)["sources_seq"] == 3

        def listed(tenant: str | None) -> list[str]:
            return [root.source_id for root in ask(room, ListSources(tenant=tenant), SourceRoots).sources]

        assert listed("default") == [added["source_id"], second["source_id"]]
        assert listed(None) == [added["source_id"], second["source_id"], theirs["source_id"]]
        with pytest.raises(NotFound):
            row(room, RemoveSource(source_id=theirs["source_id"]))
        assert row(room, RemoveSource(source_id="/home/me/notes")) == added
        assert row(room, RemoveSource(source_id=second["source_id"])) == second
        assert listed(None) == [theirs["source_id"]]
        assert status(room)["sources_seq"] == 5
        with pytest.raises(NotFound, match="there is no source '/home/me/notes'"):
            row(room, RemoveSource(source_id="/home/me/notes"))


def test_a_generation_number_is_given_once(tmp_path: Path) -> None:
    def allocated(room: CoreRoom, at_least: int = 0) -> int:
        return ask(room, AllocateGeneration(at_least=at_least), GenerationNumber).generation

    with core(tmp_path) as room:
        assert [allocated(room), allocated(room), allocated(room, 7), allocated(room, 3)] == [1, 2, 8, 9]
    with core(tmp_path) as room:
        assert allocated(room) == 10


def test_the_file_belongs_to_one_data_directory(tmp_path: Path) -> None:
    with core(tmp_path):
        pass
    with core(tmp_path, identity="one") as room:
        row(room, unit())
    with (
        pytest.raises(Quarantined, match="belongs to data directory 'one', this is 'two'"),
        core(tmp_path, identity="two"),
    ):
        pass
    with core(tmp_path, identity="one") as room:
        assert status(room)["units"] == 1


def test_a_lost_change_is_noticed_at_the_start(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit())
        row(room, unit())
    connection = sqlite3.connect(tmp_path / "core.db")
    connection.execute("DELETE FROM units WHERE core_seq = 2")
    connection.commit()
    connection.close()
    with core(tmp_path) as room, pytest.raises(Quarantined, match="counts 2 changes of units, the last one there is 1"):
        row(room, unit())


def test_a_full_disk_refuses_changes_and_reads_go_on(tmp_path: Path) -> None:
    with core(tmp_path) as room:
        row(room, unit("before", unit_id="u"))
        writer = room._databases["write"].connection
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(DiskFull) as caught:
            row(room, unit("x" * 100_000, unit_id="u"))
        assert caught.value.outcome == "not_executed"
        assert searched(room, "before") == [("u", 1)]
        assert row(room, GetUnit(unit_id="u"))["status"] == "active"
        writer.execute("PRAGMA max_page_count = 100000")
        assert row(room, unit("after", unit_id="u"))["core_seq"] == 2


PLANS = {
    "units WHERE latest = 1 AND tenant = 't' AND core_seq < 9 ORDER BY core_seq DESC LIMIT 3": "units_by_tenant",
    "units WHERE unit_id = 'u' AND latest = 1": "units_latest",
    "units WHERE core_seq > 1 AND core_seq <= 9 AND latest = 1 ORDER BY core_seq LIMIT 3": "PRIMARY KEY",
}


@pytest.mark.parametrize(("query", "used"), PLANS.items())
def test_pages_are_read_by_an_index_without_sorting(tmp_path: Path, query: str, used: str) -> None:
    with core(tmp_path) as room:
        plan = " ".join(str(step[3]) for step in room.reader().execute(f"EXPLAIN QUERY PLAN SELECT * FROM {query}"))
    assert used in plan
    assert "TEMP B-TREE" not in plan


def test_every_message_of_the_room_has_a_lane() -> None:
    assert set(CoreRoom.lanes) == set(get_args(CoreWriterMessage))
