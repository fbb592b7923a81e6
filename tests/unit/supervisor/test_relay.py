"""What passes through the bridge: every request gets one answer, whatever becomes of the daemon."""

import json
from typing import Any

import pytest

from supervisor import relay
from supervisor.relay import Kind, Line, LineSplitter, Relay, State


def request(request_id: object, method: str = "system.health", **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode() + b"\n"


def notification(method: str, **params: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode() + b"\n"


def answer(request_id: object, **members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, **(members or {"result": {}})}).encode() + b"\n"


def given(bridge: Relay) -> bytes:
    """Let the daemon take everything that is ready."""
    taken = bytearray()
    while chunk := bytes(bridge.next_chunk()):
        taken += chunk
        bridge.daemon_took(len(chunk))
    return bytes(taken)


def told(bridge: Relay) -> list[dict[str, Any]]:
    """Let the client take everything that is ready."""
    lines = bytes(bridge.to_client).splitlines()
    bridge.client_took(len(bridge.to_client))
    return [json.loads(line) for line in lines]


def read_now(bridge: Relay) -> tuple[bool, bool]:
    """Return whether the client and whether the daemon are read."""
    return bridge.accepts_client, bridge.accepts_daemon


def wants(bridge: Relay) -> bool:
    """Return whether a daemon is looked for."""
    return bridge.wants_connection


@pytest.fixture
def bridge() -> Relay:
    opened = Relay()
    opened.connected()
    return opened


# ---------------------------------------------------------------- lines


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_are_cut_at_bytes_whatever_the_pieces(size: int) -> None:
    stream = "ein\r\n\n  \n中文 ünïcode\nlast".encode()
    splitter = LineSplitter(100)
    lines = [line for at in range(0, len(stream), size) for line in splitter.feed(stream[at : at + size])]
    assert [*lines, *splitter.finish()] == [b"ein", "中文 ünïcode".encode(), b"last"]


def test_a_line_over_the_limit_is_dropped_once_and_the_next_is_whole() -> None:
    splitter = LineSplitter(8)
    assert splitter.feed(b"12345678\n") == [b"12345678"]
    assert splitter.feed(b"12345678\r\n") == [b"12345678"]
    assert splitter.feed(b"123456789\nnext\n") == [None, b"next"]
    assert splitter.feed(b"1" * 50) == []
    assert splitter.feed(b"1" * 50 + b"\nnext\n") == [None, b"next"]
    splitter.feed(b"2" * 50)
    assert splitter.finish() == [None]


@pytest.mark.parametrize(
    ("data", "kind", "key"),
    [
        (b'{"id":1,"method":"m"}', Kind.REQUEST, "1"),
        (b'{"id":"1","method":"m"}', Kind.REQUEST, '"1"'),
        ('{"id":"中","method":"m"}'.encode(), Kind.REQUEST, '"\\u4e2d"'),
        (b'{"jsonrpc":"2.0","method":"m"}', Kind.NOTIFICATION, None),
        (b'{"method":"m"}', Kind.OTHER, None),
        (b'{"jsonrpc":"2.0","method":""}', Kind.OTHER, None),
        (b'{"jsonrpc":"2.0"}', Kind.OTHER, None),
        (b'{"id":null,"method":"m"}', Kind.OTHER, None),
        (b'{"id":true,"method":"m"}', Kind.OTHER, None),
        (b'{"id":[1],"method":"m"}', Kind.OTHER, None),
        (b'{"id":1}', Kind.REQUEST, "1"),
        (b'{"id":1,"method":5}', Kind.REQUEST, "1"),
        (b'[{"id":1,"method":"m"}]', Kind.OTHER, None),
        (b"not json", Kind.OTHER, None),
        (b'\xff\xfe{"id":1,"method":"m"}', Kind.OTHER, None),
        (b"[" * 200_000, Kind.OTHER, None),
        (b'{"id":1' + b"0" * 5000 + b',"method":"m"}', Kind.OTHER, None),
        (b"5", Kind.OTHER, None),
    ],
)
def test_what_a_line_calls_for(data: bytes, kind: Kind, key: str | None) -> None:
    line = Line(data)
    assert (line.kind, line.key) == (kind, key)
    assert line.data == data + b"\n"


# ---------------------------------------------------------------- a living daemon


def test_lines_pass_unchanged_and_the_answer_ends_the_wait(bridge: Relay) -> None:
    line = '{"id": 7,  "method":"x", "params":{"q":"忠臣 \\u0000"}}\n'.encode()
    bridge.client_said(line)
    assert not bridge.finished
    assert given(bridge) == line
    assert not bridge.finished
    reply = '{"result":{"a":"不"},"id":7}\n'.encode()
    bridge.daemon_said(reply)
    assert bytes(bridge.to_client) == reply
    assert not bridge.finished
    told(bridge)
    assert bridge.finished


def test_the_first_answer_may_come_before_the_last_byte_left(bridge: Relay) -> None:
    first, second = request(1), request(2)
    bridge.client_said(first + second)
    bridge.next_chunk()
    bridge.daemon_took(len(first) + 3)
    bridge.daemon_said(answer(1))
    assert [reply["id"] for reply in told(bridge)] == [1]
    assert bytes(bridge.next_chunk()) == second[3:]
    bridge.daemon_took(len(second) - 3)
    bridge.daemon_said(answer(2))
    told(bridge)
    assert bridge.finished


def test_a_line_larger_than_a_chunk_is_given_in_pieces(bridge: Relay) -> None:
    line = request(1, text="x" * (3 * relay.CHUNK_BYTES))
    bridge.client_said(request(0) + line)
    taken = bytearray()
    while chunk := bytes(bridge.next_chunk()[:1000]):
        taken += chunk
        bridge.daemon_took(len(chunk))
    assert bytes(taken) == request(0) + line


def test_notifications_of_the_daemon_pass_and_end_no_wait(bridge: Relay) -> None:
    bridge.client_said(request(1))
    given(bridge)
    bridge.daemon_said(notification("notifications/progress", progress=1))
    assert told(bridge)[0]["method"] == "notifications/progress"
    assert not bridge.finished


def test_a_last_line_without_a_newline_counts(bridge: Relay) -> None:
    bridge.client_said(request(1).rstrip(b"\n"))
    assert given(bridge) == b""
    bridge.client_ended()
    assert given(bridge) == request(1)


def test_a_notification_is_not_waited_for_once_it_left(bridge: Relay) -> None:
    bridge.client_said(notification("notifications/initialized"))
    assert not bridge.finished
    given(bridge)
    assert bridge.finished


@pytest.mark.parametrize("line", [b"not json\n", b"[]\n", b"\xff\n", b'{"id":null,"method":"m"}\n'])
def test_a_line_that_is_no_request_is_the_daemons_to_judge_and_is_waited_for(bridge: Relay, line: bytes) -> None:
    bridge.client_said(line)
    assert given(bridge) == line
    assert not bridge.finished
    bridge.daemon_said(answer(None, error={"code": -32700, "message": "parse error"}))
    assert [reply["error"]["code"] for reply in told(bridge)] == [-32700]
    assert bridge.finished


def test_a_refusal_without_the_id_ends_the_wait_for_a_line_that_only_we_could_read(bridge: Relay) -> None:
    # Python reads NaN, the daemon does not, and so cannot say whom it answers.
    bridge.client_said(b'{"id":5,"method":"m","params":{"x":NaN}}\n')
    given(bridge)
    bridge.daemon_said(answer(None, error={"code": -32700, "message": "parse error"}))
    told(bridge)
    assert bridge.finished


def test_a_line_over_the_limit_is_answered_here_and_given_to_nobody(bridge: Relay) -> None:
    bridge.client_said(b"x" * (relay.LINE_BYTES_MAX + 2))
    bridge.client_said(b"yyy\n" + request(1))
    assert given(bridge) == request(1)
    (reply,) = told(bridge)
    assert reply["id"] is None
    assert reply["error"]["code"] == -32600
    assert str(relay.LINE_BYTES_MAX) in reply["error"]["message"]


def test_a_cancelled_request_is_not_waited_for(bridge: Relay) -> None:
    bridge.client_said(request("a") + request("b"))
    given(bridge)
    cancel = notification("notifications/cancelled", requestId="a")
    bridge.client_said(cancel)
    assert given(bridge) == cancel
    bridge.daemon_said(answer("b"))
    told(bridge)
    assert bridge.finished


def test_an_id_in_flight_twice_waits_for_two_answers(bridge: Relay) -> None:
    bridge.client_said(request(1) + request(1))
    given(bridge)
    bridge.daemon_said(answer(1))
    told(bridge)
    assert not bridge.finished
    bridge.daemon_said(answer(None, error={"code": -32600, "message": "id in use"}))
    told(bridge)
    assert bridge.finished


def test_an_endless_answer_is_refused(bridge: Relay) -> None:
    with pytest.raises(ValueError, match="over"):
        bridge.daemon_said(b"x" * (relay.ANSWER_BYTES_MAX + 2) + b"\n")


# ---------------------------------------------------------------- bounds


def test_the_client_waits_while_the_first_daemon_is_looked_for() -> None:
    bridge = Relay()
    for number in range(relay.QUEUED_LINES_MAX):
        assert read_now(bridge)[0]
        bridge.client_said(request(number))
    assert not read_now(bridge)[0]
    bridge.client_said(request("read together with the last"))
    assert told(bridge) == []
    bridge.connected()
    assert read_now(bridge)[0]
    assert given(bridge).count(b"\n") == relay.QUEUED_LINES_MAX + 1


def test_a_daemon_that_does_not_read_makes_the_client_wait(bridge: Relay) -> None:
    for number in range(3):
        bridge.client_said(request(number, text="x" * (relay.BUFFER_BYTES_MAX // 2)))
    assert read_now(bridge) == (False, True)
    given(bridge)
    assert read_now(bridge) == (True, True)


def test_a_client_that_does_not_read_makes_the_daemon_wait_and_is_not_read_either(bridge: Relay) -> None:
    bridge.daemon_said(answer(1, result="x" * relay.BUFFER_BYTES_MAX))
    assert read_now(bridge) == (False, False)
    told(bridge)
    assert read_now(bridge) == (True, True)


# ---------------------------------------------------------------- a dead daemon


def test_a_lost_daemon_answers_what_it_had_in_hand(bridge: Relay) -> None:
    bridge.client_said(request(1) + request("zwei") + b"not json\n" + notification("x"))
    given(bridge)
    bridge.lost()
    replies = told(bridge)
    assert [reply["id"] for reply in replies] == [1, "zwei", None]
    for reply in replies:
        assert reply["error"]["code"] == 1002
        assert reply["error"]["data"]["outcome"] == "unknown"
        assert reply["error"]["data"]["retryable"] is True
        assert "request_id" in reply["error"]["data"]["hint"]
    assert bridge.finished


def test_a_line_that_left_in_part_goes_whole_to_the_next_daemon(bridge: Relay) -> None:
    bridge.client_said(request(1) + request(2))
    bridge.next_chunk()
    bridge.daemon_took(len(request(1)) + 5)
    bridge.lost()
    assert [reply["id"] for reply in told(bridge)] == [1]
    assert bridge.wants_connection
    bridge.connected()
    assert given(bridge) == request(2)


def test_half_an_answer_of_a_lost_daemon_is_not_passed_on(bridge: Relay) -> None:
    bridge.client_said(request(1))
    given(bridge)
    bridge.daemon_said(answer(1)[:10])
    bridge.lost()
    assert [reply["error"]["code"] for reply in told(bridge)] == [1002]
    bridge.client_said(request(2))
    bridge.connected()
    given(bridge)
    bridge.daemon_said(answer(2))
    assert [reply["id"] for reply in told(bridge)] == [2]


def test_an_idle_bridge_waits_with_reconnecting_until_something_is_asked(bridge: Relay) -> None:
    bridge.lost()
    bridge.client_said(notification("x"))
    assert not wants(bridge)
    bridge.client_said(request(1))
    assert wants(bridge)


def test_requests_queue_while_the_daemon_is_away_and_beyond_the_limit_are_refused(bridge: Relay) -> None:
    bridge.lost()
    for number in range(relay.QUEUED_LINES_MAX):
        bridge.client_said(request(number))
    assert told(bridge) == []
    assert bridge.accepts_client
    bridge.client_said(request("too many") + notification("dropped"))
    (reply,) = told(bridge)
    assert (reply["id"], reply["error"]["code"]) == ("too many", 1003)
    assert reply["error"]["data"]["outcome"] == "not_executed"
    bridge.connected()
    assert given(bridge).count(b"\n") == relay.QUEUED_LINES_MAX


def test_the_queue_is_bounded_in_bytes_too(bridge: Relay) -> None:
    bridge.lost()
    large = "x" * (relay.LINE_BYTES_MAX - 1000)
    bridge.client_said(request(1, text=large))
    bridge.client_said(request(2, text=large))
    assert [(reply["id"], reply["error"]["code"]) for reply in told(bridge)] == [(2, 1003)]


def test_a_queued_request_can_be_cancelled_and_is_never_given_away(bridge: Relay) -> None:
    bridge.lost()
    bridge.client_said(request(1) + request(2))
    bridge.client_said(notification("notifications/cancelled", requestId=1))
    bridge.connected()
    assert given(bridge) == request(2)
    assert told(bridge) == []


def test_a_request_that_has_left_in_part_cannot_be_called_back(bridge: Relay) -> None:
    bridge.client_said(request(1))
    bridge.next_chunk()
    bridge.daemon_took(4)
    cancel = notification("notifications/cancelled", requestId=1)
    bridge.client_said(cancel)
    assert given(bridge) == request(1)[4:] + cancel


def test_without_a_daemon_everything_that_waits_is_answered_and_the_next_request_tries_again() -> None:
    bridge = Relay()
    bridge.client_said(request(1) + notification("x") + b"not json\n")
    bridge.unavailable("daemon ended with exit code 78", "it said: no")
    replies = told(bridge)
    assert [reply["id"] for reply in replies] == [1, None]
    assert replies[0]["error"]["code"] == 1003
    assert replies[0]["error"]["message"] == "daemon ended with exit code 78"
    assert replies[0]["error"]["data"] == {
        "actor": "daemon",
        "outcome": "not_executed",
        "retryable": True,
        "hint": "it said: no",
    }
    assert bridge.finished
    assert not wants(bridge)
    bridge.client_said(request(2))
    assert wants(bridge)


def test_leaving_answers_what_is_still_awaited(bridge: Relay) -> None:
    bridge.client_said(request(1))
    given(bridge)
    bridge.client_said(request(2))
    bridge.give_up()
    replies = {reply["id"]: reply["error"] for reply in told(bridge)}
    assert replies[1]["data"]["outcome"] == "unknown"
    assert replies[2]["data"]["outcome"] == "not_executed"
    assert bridge.finished


# ---------------------------------------------------------------- a new daemon


def introduce(bridge: Relay) -> None:
    bridge.client_said(request(1, "hello", client="test", token="t"))
    bridge.client_said(request("i", "initialize", protocolVersion="2025-06-18"))
    bridge.client_said(notification("notifications/initialized"))
    given(bridge)
    bridge.daemon_said(answer(1) + answer("i"))
    told(bridge)


def test_the_introduction_is_said_again_and_its_answers_are_not_for_the_client(bridge: Relay) -> None:
    introduce(bridge)
    bridge.lost()
    bridge.client_said(request(2))
    bridge.connected()
    assert bridge.state is State.REPLAYING
    said = [json.loads(line) for line in given(bridge).splitlines()]
    assert [line["method"] for line in said] == ["hello", "initialize", "notifications/initialized"]
    assert said[0]["params"] == {"client": "test", "token": "t"}
    bridge.daemon_said(answer(said[0]["id"]))
    assert given(bridge) == b""
    bridge.daemon_said(answer(said[1]["id"], error={"code": 1, "message": "refused"}))
    assert given(bridge) == request(2)
    bridge.daemon_said(answer(2))
    assert [reply["id"] for reply in told(bridge)] == [2]


def test_the_last_introduction_counts(bridge: Relay) -> None:
    introduce(bridge)
    bridge.client_said(request(5, "hello", client="second"))
    given(bridge)
    bridge.daemon_said(answer(5))
    bridge.client_said(request(6, "hello", client="refused"))
    given(bridge)
    bridge.daemon_said(answer(6, error={"code": 1, "message": "refused"}))
    bridge.lost()
    bridge.client_said(request(7))
    bridge.connected()
    assert json.loads(given(bridge).splitlines()[0])["params"] == {"client": "second"}


def test_an_introduction_that_was_never_answered_is_the_clients_to_repeat(bridge: Relay) -> None:
    bridge.client_said(request(1, "hello", client="test"))
    given(bridge)
    bridge.lost()
    assert [reply["error"]["code"] for reply in told(bridge)] == [1002]
    bridge.client_said(request(1, "hello", client="test"))
    bridge.connected()
    assert bridge.state is State.OPEN
    assert given(bridge) == request(1, "hello", client="test")


def test_a_daemon_that_dies_during_the_introduction_loses_no_request(bridge: Relay) -> None:
    introduce(bridge)
    bridge.lost()
    bridge.client_said(request(2))
    bridge.connected()
    bridge.daemon_took(5)
    bridge.lost()
    assert bridge.wants_connection
    bridge.connected()
    said = [json.loads(line) for line in given(bridge).splitlines()]
    assert [line["method"] for line in said] == ["hello", "initialize", "notifications/initialized"]
    bridge.daemon_said(answer(said[0]["id"]) + answer(said[1]["id"]))
    assert given(bridge) == request(2)
    assert told(bridge) == []


# ---------------------------------------------------------------- deadlines of what waits here


class Clock:
    """Seconds that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


def test_what_waits_for_a_daemon_longer_than_its_deadline_is_answered_here() -> None:
    clock = Clock()
    bridge = Relay(clock)
    bridge.client_said(request(1, deadline_ms=2000) + request(2) + notification("notifications/x"))
    assert bridge.next_expiry == 102.0
    clock.now = 101.9
    bridge.expire()
    assert told(bridge) == []
    clock.now = 102.0
    bridge.expire()
    (late,) = told(bridge)
    assert late["id"] == 1 and late["error"]["code"] == relay.DEADLINE_EXCEEDED
    assert late["error"]["data"]["outcome"] == "not_executed" and late["error"]["data"]["retryable"]
    assert bridge.next_expiry == 100.0 + relay.DEADLINE_S
    bridge.connected()
    assert [json.loads(line).get("id") for line in given(bridge).splitlines()] == [2, None]


def test_the_daemon_is_told_how_much_time_is_left() -> None:
    clock = Clock()
    bridge = Relay(clock)
    bridge.client_said(request(1, deadline_ms=2000) + request(2, "initialize") + request(3))
    clock.now = 101.5
    bridge.connected()
    first, second, third = (json.loads(line) for line in given(bridge).splitlines())
    assert first["params"]["deadline_ms"] == 500
    assert second["params"] == {}, "only native methods have a deadline of their own"
    assert third["params"]["deadline_ms"] == int(relay.DEADLINE_S * 1000) - 1500


def test_a_rebuild_that_waits_for_its_build_has_the_time_of_a_build() -> None:
    clock = Clock()
    bridge = Relay(clock)
    bridge.client_said(request(1, "index.rebuild", wait=True) + request(2, "index.rebuild"))
    assert bridge.next_expiry == 100.0 + relay.DEADLINE_S
    clock.now = 101.5
    bridge.connected()
    waiting, asking = (json.loads(line)["params"]["deadline_ms"] for line in given(bridge).splitlines())
    assert waiting == int(relay.DEADLINE_WAITING_S * 1000) - 1500
    assert asking == int(relay.DEADLINE_S * 1000) - 1500


def test_what_did_not_wait_is_passed_on_as_it_is() -> None:
    line = b'{"jsonrpc":"2.0",  "id":1,"method":"system.health","params":{"a":1e400}}\n'
    clock = Clock()
    bridge = Relay(clock)
    bridge.client_said(line)
    bridge.connected()
    assert given(bridge) == line
    bridge.lost()
    bridge.client_said(line)
    clock.now += 5
    bridge.connected()
    assert given(bridge) == line, "a number that JSON cannot say again is left to the daemon"


def test_a_line_that_was_begun_does_not_expire() -> None:
    clock = Clock()
    bridge = Relay(clock)
    bridge.connected()
    bridge.client_said(request(1, deadline_ms=1000) + request(2, deadline_ms=1000))
    bridge.daemon_took(5)
    clock.now += 2
    bridge.expire()
    assert [each["id"] for each in told(bridge)] == [2]
    assert given(bridge).endswith(request(1, deadline_ms=1000)[5:])
