"""The input of `make demo` is well-formed, bilingual, and all of it would be indexed."""

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from actors.generation_builder.chunk import ChunkLimits, chunk_markdown
from actors.generation_builder.ignore import add_rules, is_ignored
from actors.notes import Segment
from actors.settings import GenerationBuilderSettings

DEMO = Path(__file__).resolve().parent.parent.parent / "docs" / "demo"
WORKSPACE = DEMO / "workspace"
NOTES = sorted(WORKSPACE.rglob("*.md"))
CHINESE = re.compile(r"[\u4e00-\u9fff]{2}")
ENGLISH = re.compile(r"\b[a-z]{3,} [a-z]{2,} [a-z]{2,}\b")


def conversation() -> list[dict[str, Any]]:
    lines = (DEMO / "conversation.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def chunks(path: Path) -> list[str]:
    settings = GenerationBuilderSettings()
    lines = path.read_text(encoding="utf-8").split("\n")
    segments = [Segment(number, line, ends=True) for number, line in enumerate(lines, 1)]
    limits = ChunkLimits(settings.chunk_tokens, settings.chunk_tokens_max)
    return [chunk.text for chunk in chunk_markdown(segments, limits)]


def test_events_hold_what_event_append_takes() -> None:
    for event in conversation():
        assert set(event) <= {"session_id", "actor", "kind", "content", "ts", "tags"}
        assert event["actor"] in {"user", "assistant", "tool"}
        assert event.get("kind", "message") in {"message", "tool_call", "tool_result"}
        assert event["content"].strip() == event["content"] != ""
        assert event["tags"]


def test_the_conversation_is_long_in_order_and_bilingual() -> None:
    events = conversation()
    assert len(events) >= 300
    assert len({event["session_id"] for event in events}) == 5
    times = [datetime.fromisoformat(event["ts"]) for event in events]
    assert times == sorted(times)
    assert all(time.utcoffset() is not None for time in times)
    assert sum(1 for event in events if CHINESE.search(event["content"])) > len(events) / 5
    assert sum(1 for event in events if ENGLISH.search(event["content"])) > len(events) / 3


def test_nobody_says_the_same_thing_twice() -> None:
    long = [event["content"] for event in conversation() if len(event["content"]) > 20]
    assert len(long) == len(set(long))


def test_a_tool_answers_after_it_was_called() -> None:
    events = conversation()
    for session in {event["session_id"] for event in events}:
        kinds = [event.get("kind", "message") for event in events if event["session_id"] == session]
        for before, kind in zip(["message", *kinds], kinds, strict=False):
            assert (kind == "tool_result") == (before == "tool_call")


def test_the_notes_are_many_bilingual_and_cut_into_many_pieces() -> None:
    assert 25 <= len(NOTES) <= 50
    pieces = [piece for path in NOTES for piece in chunks(path)]
    assert 150 <= len(pieces) <= 400
    assert sum(1 for piece in pieces if CHINESE.search(piece)) > len(pieces) / 5
    assert sum(1 for piece in pieces if ENGLISH.search(piece)) > len(pieces) / 3


@pytest.mark.parametrize("path", NOTES, ids=lambda path: path.relative_to(WORKSPACE).as_posix())
def test_a_note_would_be_indexed(path: Path) -> None:
    relative = path.relative_to(WORKSPACE)
    rules = add_rules(None, "", (WORKSPACE / ".gitignore").read_bytes())
    assert not any(part.startswith(".") for part in relative.parts)
    assert not is_ignored(rules, relative.as_posix(), folder=False)
    folders = [folder for folder in relative.parents if folder != Path()]
    assert not any(is_ignored(rules, folder.as_posix(), folder=True) for folder in folders)
    assert chunks(path)
    assert "\0" not in path.read_text(encoding="utf-8")


def test_the_notes_that_the_demo_adds_are_ignored() -> None:
    rules = add_rules(None, "", (WORKSPACE / ".gitignore").read_bytes())
    assert is_ignored(rules, "drafts", folder=True)


def test_names_of_notes_that_are_cited_exist() -> None:
    cited = re.compile(r"`((?:projects|howto|decisions|home|people|incidents|memory)/[^`]+\.md)`")
    for path in NOTES:
        for name in cited.findall(path.read_text(encoding="utf-8")):
            assert (WORKSPACE / name).exists(), f"{path.name} cites {name!r}"
