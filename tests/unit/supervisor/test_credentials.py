"""What bridges and the command line say of themselves with their first line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from supervisor import connect
from supervisor.credentials import SECRETS, TokenRefused, find_token, hello_line
from supervisor.principals import Principal, Principals
from supervisor.relay import CREDENTIALS_ID, Relay, State
from tests.unit.supervisor.scripted_house import ScriptedHouse


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.delenv(name, raising=False)


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return str(path)


def test_without_a_token_nothing_is_said() -> None:
    assert hello_line(1, "bridge") == b""


def test_the_environment_says_who_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_TOKEN", "the token")
    monkeypatch.setenv("BULKHEAD_PRINCIPAL", "ann")
    said = json.loads(hello_line(7, "bridge"))
    assert (said["id"], said["method"]) == (7, "hello")
    assert said["params"] == {"client": "bridge", "token": "the token", "principal": "ann"}


def test_a_file_that_is_named_goes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BULKHEAD_TOKEN", "of the environment")
    assert find_token(write(tmp_path / "token", "of the file\n")) == "of the file"
    assert find_token() == "of the environment"
    monkeypatch.delenv("BULKHEAD_TOKEN")
    monkeypatch.setenv("BULKHEAD_TOKEN_FILE", str(tmp_path / "token"))
    assert find_token() == "of the file"


def test_a_file_that_cannot_be_trusted_is_refused_without_what_is_in_it(tmp_path: Path) -> None:
    for path, complaint in [
        (write(tmp_path / "open", "secret", 0o644), "its mode is 0644"),
        (write(tmp_path / "empty", "\n"), "must hold one token"),
        (write(tmp_path / "long", "secret" * 1000), "at most"),
        (str(tmp_path / "missing"), "No such file"),
        (str(tmp_path), "not a regular file"),
    ]:
        with pytest.raises(TokenRefused, match=complaint) as refused:
            find_token(path)
        assert "secret" not in str(refused.value)


def test_a_daemon_that_is_started_is_not_told_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "the token")
    assert not set(SECRETS) & set(connect._environment())
    assert set(SECRETS) <= set(os.environ)


def test_the_bridge_says_it_to_every_daemon_before_anything_else_and_keeps_the_answer() -> None:
    relay = Relay(credentials=b'{"id":"%s","method":"hello"}\n' % CREDENTIALS_ID.encode())
    request: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "system.health"}
    relay.client_said(json.dumps(request).encode() + b"\n")
    for _ in range(2):
        relay.connected()
        state: State = relay.state
        assert state is State.REPLAYING
        said = bytes(relay.next_chunk())
        assert json.loads(said)["id"] == CREDENTIALS_ID
        relay.daemon_took(len(said))
        assert bytes(relay.next_chunk()) == b""
        relay.daemon_said(json.dumps({"jsonrpc": "2.0", "id": CREDENTIALS_ID, "result": {}}).encode() + b"\n")
        assert not relay.to_client
        assert json.loads(bytes(relay.next_chunk()))["id"] == 1
        relay.lost()
        assert relay.state is State.LOST


def test_a_bridge_whose_token_cannot_be_read_says_so_and_ends(house: ScriptedHouse, tmp_path: Path) -> None:
    path = write(tmp_path / "token", "secret", 0o644)
    with house.bridge("--token-file", path) as bridge:
        assert bridge.wait() == 1


def test_the_entry_of_a_new_token_is_one_that_the_daemon_takes(capsys: pytest.CaptureFixture[str]) -> None:
    from supervisor.cli import main

    assert main(["token", "ann", "--tenant", "left", "--may", "read,forget", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    entry = made["principal"]
    known = Principal(
        name=entry["name"], tenant=entry["tenant"], may=frozenset(entry["may"]), token_sha256=entry["token_sha256"]
    )
    assert Principals((known,)).identify("ann", made["token"]) == known
    with pytest.raises(SystemExit, match="2"):
        main(["token", "ann", "--may", "all"])
