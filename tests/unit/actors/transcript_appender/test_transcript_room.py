"""The transcript on real files: exactly once, gapless, found at once, paged both ways."""

import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from actors.child import StoreLost
from actors.errors import (
    Conflict,
    DiskFull,
    ErrorInfo,
    InvalidParams,
    NotFound,
    Quarantined,
)
from actors.messages.base import Candidates, Filters, Row, Rows, Statistics
from actors.messages.transcript_appender import (
    AppendBatch,
    AppendEvents,
    AppendOutcome,
    AppendResult,
    BatchResult,
    EventDraft,
    EventPage,
    GetEvent,
    PageEvents,
    SearchEvents,
    SessionHistory,
    SessionPage,
    SessionsSince,
    TranscriptAppenderMessage,
    TranscriptStatus,
)
from actors.settings import TranscriptAppenderSettings
from actors.sql.database import checkpoint
from actors.transcript_appender.worker import TranscriptRoom
from tests.unit.actors.room_kit import ask, found_seqs, rows_of, say, transcript


def draft(content: str = "hello", **members: Any) -> EventDraft:
    return EventDraft(**{"session_id": "s", "actor": "user", "content": content, **members})


def append(room: TranscriptRoom, *events: EventDraft, tenant: str = "default") -> AppendResult:
    return ask(room, AppendEvents(events=events, tenant=tenant), AppendResult)


def batch(room: TranscriptRoom, *messages: AppendEvents) -> list[AppendResult | ErrorInfo]:
    outcomes = ask(room, AppendBatch(appends=messages), BatchResult).outcomes
    assert len(outcomes) == len(messages)
    return [_content(outcome) for outcome in outcomes]


def _content(outcome: AppendOutcome) -> AppendResult | ErrorInfo:
    assert (outcome.result is None) != (outcome.error is None)
    if outcome.error is not None:
        return msgspec.msgpack.decode(outcome.error, type=ErrorInfo)
    assert outcome.result is not None
    return outcome.result


def get(room: TranscriptRoom, event_id: str, tenant: str = "default") -> dict[str, Any]:
    row = ask(room, GetEvent(event_id=event_id, tenant=tenant), Row).row
    return msgspec.json.decode(row, type=dict[str, Any])


def history(room: TranscriptRoom, **members: Any) -> tuple[list[int], bool]:
    answer = ask(room, SessionHistory(**{"session_id": "s", "limit": 3, **members}), Rows)
    rows = msgspec.json.decode(answer.rows, type=list[dict[str, Any]])
    assert len(rows) == answer.count
    return [row["seq"] for row in rows], answer.more


def status(room: TranscriptRoom) -> dict[str, Any]:
    return dict(ask(room, TranscriptStatus(), Statistics).values)


def test_an_event_comes_back_with_all_its_members(tmp_path: Path) -> None:
    content = "text with NUL \0 and 记忆 and \U0001f600"
    given_members = {
        "event_id": "e1",
        "kind": "tool_result",
        "actor": "tool",
        "ts": 1_700_000_000_123_456,
        "channel": "chat",
        "project": "p",
        "tags": ("a", "b"),
        "meta": {"k": [1, None, {"x": "y"}]},
        "trace_id": "t",
        "request_id": "r",
        "scope": "user",
    }
    with transcript(tmp_path) as room:
        assert append(room, draft(content, **given_members)).results[0].seq == 1
        row = get(room, "e1")
    assert row == {
        **given_members,
        "tags": ["a", "b"],
        "ts": "2023-11-14T22:13:20.123456Z",
        "seq": 1,
        "session_id": "s",
        "content": content,
        "content_hash": hashlib.sha256(content.encode()).hexdigest(),
    }


def test_seq_has_no_gaps_and_times_and_ids_ascend(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        for _ in range(3):
            say(room, "a", "b")
        rows = rows_of(room.path, "SELECT seq, ts, event_id FROM events ORDER BY seq")
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]
    for column in (1, 2):
        values: list[Any] = [row[column] for row in rows]
        assert values == sorted(set(values))


def test_times_ascend_although_the_clock_goes_back_even_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour = 5
    monkeypatch.setattr("time.time_ns", lambda: hour * 3_600_000_000_000)
    with transcript(tmp_path) as room:
        say(room, "first")
        hour = 4
        say(room, "second")
    hour = 3
    with transcript(tmp_path) as room:
        say(room, "third")
        times = [row[0] for row in rows_of(room.path, "SELECT ts FROM events ORDER BY seq")]
    five = 5 * 3_600_000_000
    assert times == [five, five + 1, five + 2]


@pytest.mark.parametrize("same", [{"event_id": "e"}, {"request_id": "r"}, {"event_id": "e", "request_id": "r"}])
def test_a_repeated_event_gives_the_first_result(tmp_path: Path, same: dict[str, str]) -> None:
    with transcript(tmp_path) as room:
        first = append(room, draft("one", **same)).results[0]
        again = append(room, draft("other", **same), draft("new")).results
        assert not first.deduplicated
        assert again[0] == msgspec.structs.replace(first, deduplicated=True)
        assert again[1].seq == 2
        assert status(room)["seq"] == 2


def test_a_repeat_within_one_batch_gives_the_first_result(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        one, two = batch(
            room,
            AppendEvents(events=(draft(request_id="r"), draft(request_id="r"))),
            AppendEvents(events=(draft(request_id="r"), draft("x", event_id="e"), draft("y", event_id="e"))),
        )
    assert isinstance(one, AppendResult) and isinstance(two, AppendResult)
    assert [(result.seq, result.deduplicated) for result in one.results] == [(1, False), (1, True)]
    assert [(result.seq, result.deduplicated) for result in two.results] == [(1, True), (2, False), (2, True)]
    assert (one.new_sessions, two.new_sessions) == (("s",), ())


def test_request_ids_belong_to_their_tenant(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        assert append(room, draft(request_id="r"), tenant="a").results[0].seq == 1
        assert append(room, draft(request_id="r"), tenant="b").results[0].seq == 2


def test_an_event_id_of_another_tenant_is_a_conflict_that_tells_nothing(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        append(room, draft("the secret", event_id="e"), tenant="a")
        with pytest.raises(Conflict) as caught:
            append(room, draft("before"), draft(event_id="e"), tenant="b")
        assert caught.value.message == "append refused: event_id 'e' is not available"
        with pytest.raises(NotFound):
            get(room, "e", tenant="b")
        assert status(room)["seq"] == 1, "all or none"


def test_ids_that_contradict_each_other_are_a_conflict(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        append(room, draft(event_id="e1", request_id="r1"), draft(event_id="e2", request_id="r2"))
        with pytest.raises(Conflict, match="event_id 'e1' is event 1, but request_id 'r2' led to event 2"):
            append(room, draft(event_id="e1", request_id="r2"))


def test_a_bad_message_of_a_batch_fails_alone(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        append(room, draft(event_id="taken"), tenant="other")
        results = batch(
            room,
            AppendEvents(events=(draft("one"),)),
            AppendEvents(events=(draft(event_id=""),)),
            AppendEvents(events=(draft("undone", session_id="new"), draft(event_id="taken"))),
            AppendEvents(events=(draft("last"),)),
        )
        codes = [result.code if isinstance(result, ErrorInfo) else 0 for result in results]
        assert codes == [0, InvalidParams.code, Conflict.code, 0]
        contents = [row[0] for row in rows_of(room.path, "SELECT content FROM events ORDER BY seq")]
        assert contents == ["hello", "one", "last"]
        assert rows_of(room.path, "SELECT count(*), max(seq) FROM events") == [(3, 3)]
        assert rows_of(room.path, "SELECT session_id FROM sessions WHERE session_id = 'new'") == []


def test_the_summary_of_sessions_is_what_one_would_count(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        result = append(room, draft(ts=50, session_id="a"), draft(ts=70, session_id="a"), draft(ts=60, session_id="b"))
        assert set(result.new_sessions) == {"a", "b"}
        assert append(room, draft(ts=10, session_id="a")).new_sessions == ()
        append(room, draft(ts=5, session_id="a"), tenant="other")
        summary = (
            "SELECT tenant, session_id, first_ts, last_ts, first_seq, last_seq, events FROM sessions ORDER BY 1, 2"
        )
        counted = (
            "SELECT tenant, session_id, min(ts), max(ts), min(seq), max(seq), count(*)"
            " FROM events GROUP BY 1, 2 ORDER BY 1, 2"
        )
        assert rows_of(room.path, summary) == rows_of(room.path, counted)
        page = ask(room, SessionsSince(cursor=0, limit=2), SessionPage)
        assert [(each.session_id, each.tenant, each.last_seq) for each in page.sessions] == [
            ("b", "default", 3),
            ("a", "default", 4),
        ]
        assert (page.cursor, page.more) == (4, True)
        rest = ask(room, SessionsSince(cursor=page.cursor, limit=2), SessionPage)
        assert [each.tenant for each in rest.sessions] == ["other"]
        assert (rest.cursor, rest.more) == (5, False)
        assert ask(room, SessionsSince(cursor=5, limit=2), SessionPage).cursor == 5


def window(seconds: int) -> TranscriptAppenderSettings:
    return TranscriptAppenderSettings(duplicate_window_s=seconds)


def test_the_same_content_from_the_same_source_is_one_event_within_the_window(tmp_path: Path) -> None:
    with transcript(tmp_path, transcript_appender=window(10)) as room:
        first, again = append(room, draft("yes", ts=0), draft("yes", ts=10_000_000)).results
        assert (again.seq, again.deduplicated) == (first.seq, True)
        others = [
            draft("yes", ts=10_000_001),
            draft("yes", ts=0, session_id="t"),
            draft("yes", ts=0, channel="c"),
            draft("yes", ts=0, project="c"),
            draft("yes", ts=0, actor="assistant"),
            draft("yes!", ts=0),
            draft("yes", ts=0, event_id="its own"),
        ]
        assert not any(result.deduplicated for result in append(room, *others).results)
        assert not append(room, draft("yes", ts=0), tenant="other").results[0].deduplicated


def test_a_request_that_was_merged_by_the_window_stays_merged_after_it(tmp_path: Path) -> None:
    with transcript(tmp_path, transcript_appender=window(10)) as room:
        append(room, draft("yes", ts=0, request_id="r1"))
        assert append(room, draft("yes", ts=5, request_id="r2")).results[0].deduplicated
        for late in ("r1", "r2"):
            result = append(room, draft("yes", ts=100_000_000, request_id=late)).results[0]
            assert (result.seq, result.deduplicated) == (1, True)


def test_without_a_window_the_same_content_may_be_said_twice(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        assert [result.seq for result in append(room, draft("yes"), draft("yes")).results] == [1, 2]


def test_what_the_window_remembers_is_forgotten_in_idle_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with transcript(tmp_path, transcript_appender=window(10)) as room:
        say(room, "a", "b")
        assert not room.idle("write")
        assert rows_of(room.path, "SELECT count(*) FROM recent") == [(2,)]
        room._appender._now_us = lambda: 2**60
        room._upkeep_at = 0
        assert not room.idle("write")
        assert rows_of(room.path, "SELECT count(*) FROM recent") == [(0,)]


SMALL = TranscriptAppenderSettings(
    content_bytes_max=10, meta_bytes_max=10, tags_max=1, tag_chars_max=3, id_chars_max=20, events_per_append_max=2
)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"content": "记忆记忆"}, r"content is 12 bytes, the limit is 10 \(transcript_appender.content_bytes_max\)"),
        ({"meta": {"long": "value"}}, r"meta is 16 bytes, the limit is 10 \(transcript_appender.meta_bytes_max\)"),
        ({"tags": ("a", "b")}, r"2 tags, the limit is 1 \(transcript_appender.tags_max\)"),
        ({"tags": ("abcd",)}, r"tags\[0\] is 4 characters, the limit is 3 \(transcript_appender.tag_chars_max\)"),
        (
            {"session_id": "s" * 21},
            r"session_id is 21 characters, the limit is 20 \(transcript_appender.id_chars_max\)",
        ),
        ({"request_id": ""}, "request_id is empty"),
        ({"trace_id": "a\0b"}, "trace_id holds NUL at character 1"),
        ({"ts": 2**62}, "ts is 4611686018427387904 µs since 1970, the limits are"),
    ],
)
def test_an_event_beyond_a_limit_is_refused_before_anything_happens(
    tmp_path: Path, members: dict[str, Any], words: str
) -> None:
    with transcript(tmp_path, transcript_appender=SMALL) as room:
        with pytest.raises(InvalidParams, match=words) as caught:
            append(room, draft("fine"), draft(**{"content": "x", **members}))
        assert caught.value.outcome == "not_executed"
        assert status(room)["seq"] == 0


def test_too_many_events_and_half_surrogates_are_refused(tmp_path: Path) -> None:
    with transcript(tmp_path, transcript_appender=SMALL) as room:
        with pytest.raises(
            InvalidParams, match=r"3 events, the limit is 2 \(transcript_appender.events_per_append_max\)"
        ):
            append(room, draft(), draft(), draft())
        with pytest.raises(InvalidParams, match="content holds a lone surrogate at character 1"):
            append(room, draft("a\ud800"))


def test_history_pages_both_ways(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        for number in range(7):
            say(room, f"mine {number}")
            say(room, "another session", session_id="t")
            say(room, "another tenant", tenant="other")
        mine = list(range(1, 21, 3))
        assert history(room) == (mine[-3:], True)
        assert history(room, before_seq=mine[4]) == (mine[1:4], True)
        assert history(room, before_seq=mine[1]) == (mine[:1], False)
        assert history(room, before_seq=1) == ([], False)
        assert history(room, after_seq=0) == (mine[:3], True)
        assert history(room, after_seq=mine[2]) == (mine[3:6], True)
        assert history(room, after_seq=mine[5]) == (mine[6:], False)
        assert history(room, after_seq=mine[6]) == ([], False)
        assert history(room, limit=7) == (mine, False)
        assert history(room, session_id="nobody's") == ([], False)
        with pytest.raises(InvalidParams, match="exclude each other"):
            history(room, after_seq=1, before_seq=2)
        with pytest.raises(InvalidParams, match="limit is 0"):
            history(room, limit=0)


def test_a_page_of_large_events_stays_small_enough_to_be_sent(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, *(letter * 1_500_000 for letter in "abcde"))
        assert history(room, limit=5) == ([4, 5], True)
        assert history(room, limit=5, before_seq=4) == ([2, 3], True)
        assert history(room, limit=5, after_seq=0) == ([1, 2], True)


def test_the_builder_pages_all_events_within_its_bounds(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, *("x" * 1000 for _ in range(5)))
        say(room, "other tenant's", tenant="other")
        seen: list[dict[str, Any]] = []
        after, more, pages = 0, True, 0
        while more:
            page = ask(room, PageEvents(after=after, until=6, limit=100, bytes_max=2600), EventPage)
            rows = msgspec.msgpack.decode(page.rows, type=list[dict[str, Any]])
            assert page.count == len(rows) and page.last_seq == rows[-1]["seq"]
            seen += rows
            after, more, pages = page.last_seq, page.more, pages + 1
        assert [row["seq"] for row in seen] == [1, 2, 3, 4, 5, 6]
        assert pages == 3
        assert seen[5]["tenant"] == "other" and seen[5]["content"] == "other tenant's"
        assert isinstance(seen[0]["ts"], int) and len(seen[0]["content_hash"]) == 32
        part = ask(room, PageEvents(after=2, until=4, limit=100, bytes_max=10**6), EventPage)
        assert (part.count, part.last_seq, part.more) == (2, 4, False)
        none = ask(room, PageEvents(after=6, until=6, limit=100, bytes_max=10**6), EventPage)
        assert (none.count, none.last_seq, none.more) == (0, 6, False)


def test_an_acknowledged_event_is_found_by_the_next_search(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        for number in range(1, 40):
            say(room, f"token{number} shared")
            assert found_seqs(room, f"token{number}")[0] == number


@pytest.mark.parametrize("query", ["静", "静默", "默模式", "静默模式", "用户身份", "静默 用户"])
def test_chinese_is_found_by_one_to_four_characters(tmp_path: Path, query: str) -> None:
    with transcript(tmp_path) as room:
        say(room, "昨天讨论了静默模式，用户身份保存在数据库里", "完全无关的一句话")
        assert found_seqs(room, query) == [1]


@pytest.mark.parametrize(
    "query",
    ["POL-358", "don't", "snake_case", "--flag", "C++", '"unbalanced', "a:b", "NEAR(", "*", "^x", "R&D", "2026.4.10"],
)
def test_signs_in_a_query_are_words_and_not_syntax(tmp_path: Path, query: str) -> None:
    with transcript(tmp_path) as room:
        say(room, f"before {query} after", "nothing of the kind")
        assert found_seqs(room, query)[0] == 1


@pytest.fixture(scope="module")
def shared_room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TranscriptRoom]:
    with transcript(tmp_path_factory.mktemp("shared")) as room:
        say(room, "some words", "用户身份", "")
        yield room


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=st.text(max_size=40))
def test_no_query_is_an_error(shared_room: TranscriptRoom, query: str) -> None:
    assert ask(shared_room, SearchEvents(query=query), Candidates).behind == 0


def test_a_candidate_tells_where_it_comes_from(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        append(
            room,
            draft(
                "x " * 1000 + "needle" + " y" * 1000, event_id="e", ts=7, tags=("t",), kind="tool_call", scope="user"
            ),
        )
        answer = ask(room, SearchEvents(query="needle"), Candidates)
        (candidate,) = answer.found
        assert answer.latest == 1
        assert (candidate.id, candidate.corpus, candidate.seq, candidate.ts) == ("e", "events", 1, 7)
        assert (candidate.session_id, candidate.actor, candidate.kind) == ("s", "user", "tool_call")
        assert (candidate.scope, candidate.tags) == ("user", ("t",))
        assert candidate.text_score is not None and candidate.text_score > 0
        assert "needle" in candidate.snippet
        assert len(candidate.snippet) <= room.setup.searcher.snippet_chars_max


def test_an_event_is_found_by_the_day_on_which_it_was_said(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        append(room, draft("one", ts=1_700_000_000_000_000), draft("two", ts=1_600_000_000_000_000))
        assert found_seqs(room, "2023-11-14") == [1]


def test_search_keeps_to_the_rows_after_a_generation(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, "word", "word", "word")
        answer = ask(room, SearchEvents(query="word", newer_than=2), Candidates)
        assert [candidate.seq for candidate in answer.found] == [3]
        assert answer.latest == 3
        nothing = ask(room, SearchEvents(query="word", newer_than=3), Candidates)
        assert (nothing.found, nothing.latest) == ([], 3)


def test_filters_narrow_a_search(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        append(
            room,
            draft("word", ts=1, session_id="a_b", tags=("x", "y")),
            draft("word", ts=2, session_id="aXb", actor="assistant", tags=("x",)),
            draft("word", ts=3, session_id="a%", kind="tool_call"),
        )

        def narrowed(**members: Any) -> list[int]:
            return sorted(found_seqs(room, "word", filters=Filters(**members)))

        assert narrowed() == [1, 2, 3]
        assert narrowed(session_ids=("a_b",)) == [1]
        assert narrowed(session_ids=("a%", "aXb")) == [2, 3]
        assert narrowed(actors=("assistant",)) == [2]
        assert narrowed(kinds=("tool_call",)) == [3]
        assert narrowed(tags=("x",)) == [1, 2]
        assert narrowed(tags=("x", "y")) == [1]
        assert narrowed(since=2) == [2, 3]
        assert narrowed(until=2) == [1]
        assert narrowed(path="notes") == narrowed(types=("plan",)) == narrowed(scopes=("user",)) == []
        assert narrowed(session_ids=("x' OR '1'='1",)) == narrowed(tags=('x") OR 1=1 --',)) == []


@pytest.mark.parametrize("tenant", ["a_b", "a%", "aXb"])
def test_tenants_with_similar_names_never_mix(tmp_path: Path, tenant: str) -> None:
    tenants = ("a_b", "a%", "aXb")
    with transcript(tmp_path) as room:
        for name in tenants:
            append(room, draft("word", event_id=f"of {name}"), tenant=name)
        assert found_seqs(room, "word", tenant=tenant) == [tenants.index(tenant) + 1]
        answer = ask(room, SessionHistory(session_id="s", limit=10, tenant=tenant), Rows)
        assert answer.count == 1
        get(room, f"of {tenant}", tenant=tenant)
        for other in set(tenants) - {tenant}:
            with pytest.raises(NotFound):
                get(room, f"of {other}", tenant=tenant)


def test_a_search_without_time_says_what_it_left_out(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, *["word"] * 300)
        room.slice_rows = 1
        answer = ask(room, SearchEvents(query="word"), Candidates, seconds=0.05)
        assert answer.latest == 300
        assert 0 < answer.behind <= 300
        assert found_seqs(room, "word", filters=Filters(since=0))


def test_the_index_catches_up_in_idle_slices(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, *["word"] * 150)
        assert status(room)["keyword_behind"] == 150
        slices = 0
        while room.idle("search"):
            slices += 1
        assert slices == 3
        assert status(room)["keyword_behind"] == 0
        assert status(room)["keyword_seq"] == 150


def test_deleting_the_keyword_index_changes_no_answer(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, *(f"word{number} common" for number in range(100)))
        before = ask(room, SearchEvents(query="word7 common"), Candidates)
        for file in tmp_path.glob("keywords.db*"):
            file.unlink()
        assert ask(room, SearchEvents(query="word7 common"), Candidates) == before
        assert status(room)["keyword_rebuilt"] == 1


def test_damage_to_the_keyword_index_is_healed_at_the_next_start(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, *(f"word{number} common" for number in range(100)))
        before = ask(room, SearchEvents(query="word7 common"), Candidates)
    (tmp_path / "keywords.db").write_bytes(b"\x00" * 50_000)
    with transcript(tmp_path) as room:
        assert ask(room, SearchEvents(query="word7 common"), Candidates) == before


def test_a_broken_index_holds_up_no_append(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, "one")
        room.index.close()
        (tmp_path / "keywords.db").unlink(missing_ok=True)
        (tmp_path / "keywords.db").mkdir()
        say(room, "two")
        answer = ask(room, SearchEvents(query="two"), Candidates)
        assert (answer.found, answer.behind, answer.latest) == ([], 2, 2)
        assert not room.idle("search")
        (tmp_path / "keywords.db").rmdir()
        room.index._retry_at = 0
        assert found_seqs(room, "two") == [2]


def test_the_segment_is_kept_when_the_daemon_starts_on_another_directory(tmp_path: Path) -> None:
    with transcript(tmp_path, identity="one") as room:
        say(room, "hello")
    with (
        pytest.raises(Quarantined, match="belongs to data directory 'one', this is 'two'"),
        transcript(tmp_path, identity="two"),
    ):
        pass
    with transcript(tmp_path, identity="one") as room:
        assert status(room)["seq"] == 1


def test_a_segment_that_vanished_is_not_begun_anew(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, "hello")
        assert found_seqs(room, "hello") == [1]
        for file in tmp_path.glob("00000001.db*"):
            file.unlink()
        with pytest.raises(StoreLost, match="removed or replaced"):
            say(room, "lost")
    with transcript(tmp_path) as room:
        assert say(room, "goes on").results[0].seq > 1
        assert room.path.name == "00000002.db"
        assert status(room)["degraded"] == "segment 00000001.db is sealed as damaged: 00000001.db is missing"
    assert not (tmp_path / "00000001.db").exists()


def test_acknowledged_events_that_were_lost_with_the_wal_are_missed(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, "copied into the file")
        checkpoint(room._databases["write"].connection, "TRUNCATE")
        before = (tmp_path / "00000001.db").read_bytes()
        say(room, "only in the WAL")
        assert found_seqs(room, "only") == [2]
    (tmp_path / "00000001.db").write_bytes(before)
    (tmp_path / "00000001.db-wal").unlink(missing_ok=True)
    with transcript(tmp_path) as room:
        assert "ends at event 1, but events up to 2 were acknowledged" in status(room)["degraded"]
        assert say(room, "goes on").results[0].seq > 2
    assert (tmp_path / "00000001.db").read_bytes() == before


def test_a_gap_in_the_tail_is_noticed_at_the_start(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, "one", "two", "three")
    connection = sqlite3.connect(tmp_path / "00000001.db")
    connection.execute("DELETE FROM events WHERE seq = 2")
    connection.commit()
    connection.close()
    with transcript(tmp_path) as room:
        assert "has 2 of its last 3 events" in status(room)["degraded"]


def test_a_full_disk_refuses_the_whole_batch_and_reads_go_on(tmp_path: Path) -> None:
    with transcript(tmp_path) as room:
        say(room, "before")
        writer = room._databases["write"].connection
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages + 2}")
        with pytest.raises(DiskFull) as caught:
            batch(room, AppendEvents(events=(draft("small"),)), AppendEvents(events=(draft("x" * 100_000),)))
        assert caught.value.outcome == "not_executed"
        assert found_seqs(room, "before") == [1]
        writer.execute("PRAGMA max_page_count = 1000000")
        assert say(room, "after").results[0].seq == 2


def test_the_wal_is_copied_once_writing_pauses_and_cut_when_it_has_grown(tmp_path: Path) -> None:
    small = TranscriptAppenderSettings(wal_bytes_max=300_000)
    with transcript(tmp_path, transcript_appender=small) as room:
        say(room, "x" * 20_000)
        assert not room.idle("write")
        size = (tmp_path / "00000001.db").stat().st_size
        room._written_at -= 2
        assert not room.idle("write")
        assert (tmp_path / "00000001.db").stat().st_size > size
        assert status(room)["wal_bytes"] > 0
        say(room, "x" * 400_000)
        room._written_at -= 2
        assert not room.idle("write")
        assert status(room)["wal_bytes"] == 0


PLANS = {
    "events WHERE tenant = 't' AND session_id = 's' AND seq > 5 ORDER BY seq LIMIT 3": "events_by_session",
    "events WHERE tenant = 't' AND session_id = 's' AND seq < 5 ORDER BY seq DESC LIMIT 3": "events_by_session",
    "sessions WHERE last_seq > 5 ORDER BY last_seq LIMIT 3": "sessions_by_last_seq",
    "recent WHERE seen < 5 ORDER BY seen LIMIT 3": "recent_by_seen",
}


@pytest.mark.parametrize(("query", "used"), PLANS.items())
def test_pages_are_read_by_an_index_without_sorting(tmp_path: Path, query: str, used: str) -> None:
    with transcript(tmp_path) as room:
        plan = " ".join(str(row[3]) for row in room.reader().execute(f"EXPLAIN QUERY PLAN SELECT * FROM {query}"))
    assert used in plan
    assert "TEMP B-TREE" not in plan


def test_every_message_of_the_room_has_a_lane() -> None:
    assert set(TranscriptRoom.lanes) == set(get_args(TranscriptAppenderMessage))
