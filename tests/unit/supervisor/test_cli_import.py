"""Reading an exported memory: what cannot be read is named by its line, and what stood before is put in."""

import json
from typing import Any

import pytest

from supervisor.cli.exporting import BATCH_ROWS, BadLine, Importing
from supervisor.client import RequestFailed

HEAD: dict[str, Any] = {"kind": "export", "format": 1}


class Memory:
    """Takes events as the daemon does, and refuses those without content."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.calls: list[int] = []

    def request(self, method: str, params: dict[str, Any], deadline_s: float) -> object:
        assert method == "event.append_many"
        events = params["events"]
        self.calls.append(len(events))
        if not all("content" in event for event in events):
            raise RequestFailed(-32602, "no content", {"retryable": False})
        results = []
        for event in events:
            results.append({"event_id": event["event_id"], "deduplicated": event["event_id"] in self.ids})
            self.ids.append(event["event_id"])
        return {"results": results}


def event(number: int, **more: object) -> dict[str, Any]:
    row = {"event_id": f"e{number}", "session_id": "s", "actor": "user", "content": "x", "seq": number, **more}
    return {"kind": "event", "row": {key: value for key, value in row.items() if value is not None}}


def lines(*rows: object) -> list[bytes]:
    return [row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows]


def end(events: int) -> dict[str, Any]:
    return {"kind": "end", "counts": {"event": events}}


def importing(memory: Memory, *, go_on: bool = False) -> Importing:
    return Importing(memory, go_on=go_on)  # type: ignore[arg-type]


def test_rows_go_in_by_batches_and_are_counted() -> None:
    memory = Memory()
    work = importing(memory)
    work.run(lines(HEAD, *(event(number) for number in range(BATCH_ROWS + 5)), end(BATCH_ROWS + 5)))
    assert memory.calls == [BATCH_ROWS, 5]
    assert work.is_whole() and work.outcomes == {"imported": BATCH_ROWS + 5}
    again = importing(memory)
    again.run(lines(HEAD, event(0), end(1)))
    assert again.is_whole() and again.outcomes == {"present": 1}


@pytest.mark.parametrize(
    "bad", [b"{\n", b"\xff\n", b"[]\n", b"null\n", b'{"kind": "event"}\n', b'{"kind": 1, "row": {}}\n', b"\n"]
)
def test_a_line_that_cannot_be_read_is_named_and_nothing_before_it_is_lost(
    bad: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    memory = Memory()
    with pytest.raises(BadLine, match="line 4"):
        importing(memory).run(lines(HEAD, event(1), event(2), bad, event(3), end(4)))
    assert memory.ids == ["e1", "e2"]
    going_on = importing(memory, go_on=True)
    going_on.run(lines(HEAD, event(1), event(2), bad, event(3), end(4)))
    assert memory.ids == ["e1", "e2", "e1", "e2", "e3"]
    assert "line 4" in capsys.readouterr().err
    assert not going_on.is_whole()


def test_a_row_that_is_refused_is_named_and_its_neighbours_are_not() -> None:
    memory = Memory()
    work = importing(memory, go_on=True)
    work.run(lines(HEAD, event(1), event(2, content=None), event(3), end(3)))
    assert memory.ids == ["e1", "e3"] and not work.is_whole()
    with pytest.raises(BadLine, match="'e2' before line"):
        importing(Memory()).run(lines(HEAD, event(1), event(2, content=None), event(3), end(3)))


def test_what_is_no_export_is_refused_before_anything_is_done() -> None:
    for first in (event(1), {"kind": "export", "format": 2}, {"kind": "export"}, b"x\n"):
        memory = Memory()
        with pytest.raises(BadLine):
            importing(memory, go_on=True).run(lines(first, event(1), end(1)))
        assert memory.ids == []


def test_a_file_that_was_cut_short_is_not_whole() -> None:
    work = importing(Memory())
    work.run(lines(HEAD, event(1)))
    assert work.read == {"event": 1} and not work.is_whole()


def test_an_event_that_led_to_another_one_is_a_conflict() -> None:
    class Other(Memory):
        def request(self, method: str, params: dict[str, Any], deadline_s: float) -> object:
            return {"results": [{"event_id": "another", "deduplicated": True}]}

    work = importing(Other())
    work.run(lines(HEAD, event(1), end(1)))
    assert work.outcomes == {"conflict": 1} and not work.is_whole()
