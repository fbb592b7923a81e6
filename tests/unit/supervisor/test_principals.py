"""Who may connect and what each may do: the rules, and the file that names them."""

import os
from pathlib import Path

import pytest

from actors.errors import InvalidParams, PermissionDenied
from supervisor.config import ConfigError, PrincipalSettings
from supervisor.principals import CAPABILITIES, LOCAL, NOBODY, Principal, Principals, Visitor, require, token_digest
from supervisor.principals_file import load
from supervisor.routes.permissions import NEEDS, needs
from supervisor.routes.table import METHODS

ANN = Principal(name="ann", tenant="left", may=frozenset({"read", "write"}), token_sha256=token_digest("ann's"))
BOB = Principal(name="bob", tenant="right", may=frozenset({"read"}), token_sha256=token_digest("bob's"))
GUEST = Principal(name="guest", tenant="hall", may=frozenset({"read"}))


def write(path: Path, text: str, mode: int = 0o600) -> PrincipalSettings:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return PrincipalSettings(file=str(path))


def entry(**changes: object) -> str:
    members: dict[str, object] = {"name": "ann", "tenant": "left", "may": ["read"], "token_sha256": token_digest("x")}
    members |= changes
    return "[[principal]]\n" + "".join(f"{name} = {value!r}\n" for name, value in members.items())


def test_without_principals_the_owner_of_the_socket_may_do_everything() -> None:
    visitor = Visitor(Principals(()))
    assert visitor.principal == LOCAL and visitor.may == CAPABILITIES
    assert visitor.introduce(client="editor", name="owner", token=None) == LOCAL
    assert (visitor.caller.tenant, visitor.caller.principal, visitor.caller.client) == ("default", "local", "editor")


def test_without_principals_a_token_is_refused_because_nobody_compares_it() -> None:
    with pytest.raises(InvalidParams, match="no principals are configured"):
        Visitor(Principals(())).introduce(client="editor", name=None, token="x")
    with pytest.raises(InvalidParams, match="unknown principal 'ann'"):
        Visitor(Principals(())).introduce(client="editor", name="ann", token=None)


def test_a_token_proves_its_principal_with_and_without_the_name() -> None:
    principals = Principals((ANN, BOB))
    assert principals.identify(None, "ann's") == ANN
    assert principals.identify("bob", "bob's") == BOB


@pytest.mark.parametrize(("name", "token"), [("ann", "bob's"), (None, "nobody's"), ("eve", "ann's"), ("ann", None)])
def test_what_proves_nothing_is_refused_without_saying_what_was_wrong(name: str, token: str | None) -> None:
    visitor = Visitor(Principals((ANN, BOB)))
    with pytest.raises(PermissionDenied) as refused:
        visitor.introduce(client="editor", name=name, token=token)
    assert "ann" not in refused.value.message and "bob" not in refused.value.message
    assert visitor.caller == NOBODY and not visitor.may


def test_a_principal_without_a_digest_cannot_be_proved() -> None:
    principals = Principals((GUEST, ANN), anonymous="guest")
    with pytest.raises(PermissionDenied):
        principals.identify("guest", "")


def test_a_connection_becomes_somebody_once() -> None:
    visitor = Visitor(Principals((ANN, BOB)))
    visitor.introduce(client="editor", name=None, token="ann's")
    visitor.introduce(client="other", name="ann", token="ann's")
    visitor.introduce(client="third", name=None, token=None)
    with pytest.raises(PermissionDenied, match="said already who it is"):
        visitor.introduce(client="editor", name="bob", token="bob's")
    assert (visitor.caller.tenant, visitor.caller.client) == ("left", "third")


def test_an_anonymous_connection_is_whom_the_configuration_names_until_it_proves_more() -> None:
    visitor = Visitor(Principals((ANN, GUEST), anonymous="guest"))
    assert visitor.caller.tenant == "hall"
    visitor.introduce(client="editor", name=None, token="ann's")
    assert visitor.caller.tenant == "left"


def test_who_has_not_said_who_it_is_reaches_only_what_needs_nothing() -> None:
    require(None, frozenset(), NOBODY, "hello")
    with pytest.raises(PermissionDenied, match="has not said who it is") as refused:
        require("read", frozenset(), NOBODY, "memory.search")
    assert refused.value.hint is not None and "BULKHEAD_TOKEN" in refused.value.hint


def test_what_a_principal_may_not_do_is_refused_with_what_it_may() -> None:
    visitor = Visitor(Principals((BOB,), anonymous="bob"))
    require("read", visitor.may, visitor.caller, "memory.search")
    with pytest.raises(PermissionDenied, match=r"unit\.put refused: it needs 'write', and principal 'bob' may read"):
        require("write", visitor.may, visitor.caller, "unit.put")


def test_every_method_says_what_must_be_allowed_for_it() -> None:
    missing = set(METHODS) - set(NEEDS)
    assert not missing, f"say in supervisor/routes/permissions.py who may call {sorted(missing)}"
    assert set(NEEDS) <= set(METHODS), "supervisor/routes/permissions.py speaks of methods that are gone"


def test_a_method_that_nobody_thought_of_needs_the_most() -> None:
    assert needs("something.new") == "admin"


def test_only_the_greeting_and_the_health_are_open_to_everybody() -> None:
    assert {name for name, needed in NEEDS.items() if needed is None} == {"hello", "system.health"}


def test_what_changes_nothing_needs_only_to_read_and_what_changes_something_more() -> None:
    ordered = {name for name, method in METHODS.items() if method.ordered or method.grows}
    assert not {name for name in ordered if needs(name) == "read"}


def test_the_file_is_read(tmp_path: Path) -> None:
    settings = write(tmp_path / "principals", entry() + entry(name="bob", tenant="right", token_sha256="b" * 64))
    principals = load(settings)
    assert principals.identify(None, "x").tenant == "left"
    assert principals.several_tenants and principals.anonymous is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o700, 0o644])
def test_a_file_that_others_may_touch_is_refused(tmp_path: Path, mode: int) -> None:
    with pytest.raises(ConfigError, match=f"its mode is {mode:04o}, must be 0600"):
        load(write(tmp_path / "principals", entry(), mode))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "it names no"),
        (entry(name="a b"), "name is 'a b'"),
        (entry(tenant="*"), "tenant is '\\*'"),
        (entry(may=[]), "may is empty"),
        (entry(may=["everything"]), "everything"),
        (entry(token_sha256="secret"), "token_sha256 is not the sha256"),
        (entry(token="secret"), "unknown field `token`"),
        (entry() + entry(), "two principals have 'ann' as name"),
        (entry() + entry(name="bob"), "two principals have the same value as token_sha256"),
        ("[[principal]]\nname = 'ann'\n", "missing required field"),
        ("not toml", "not readable as TOML"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_the_reason(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        load(write(tmp_path / "principals", text))
    assert "secret" not in str(refused.value)


def test_what_is_no_file_of_ours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a regular file"):
        load(PrincipalSettings(file=str(tmp_path)))
    with pytest.raises(ConfigError, match="No such file"):
        load(PrincipalSettings(file=str(tmp_path / "missing")))
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        load(PrincipalSettings(file=str(tmp_path / "pipe")))


def test_anonymous_must_be_somebody(tmp_path: Path) -> None:
    settings = write(tmp_path / "principals", entry())
    with pytest.raises(ConfigError, match="anonymous is 'eve'"):
        load(PrincipalSettings(file=settings.file, anonymous="eve"))
    with pytest.raises(ConfigError, match="anonymous is 'eve'"):
        load(PrincipalSettings(anonymous="eve"))
