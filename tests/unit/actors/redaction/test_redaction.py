"""Secrets of every shape are taken out, prose and code are left alone, and no text makes it slow."""

import re
from collections import Counter

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.errors import InvalidParams
from actors.messages.core_writer import OpenSession, PutUnit
from actors.redaction import KINDS, RECALL_BEGIN, RECALL_END, Counts, Redactor
from actors.redaction.shapes import SHAPES
from actors.settings import OwnSecret, RedactionSettings
from tests.fake_secrets import ALL, SECRETS

REDACTOR = Redactor()


def redacted(text: str, redactor: Redactor = REDACTOR, *, lines: bool = False) -> tuple[str, Counts]:
    counts: Counts = Counter()
    return redactor.text(text, counts, lines=lines), counts


def test_every_shape_has_a_sample() -> None:
    assert set(SECRETS) == set(KINDS)
    assert len(KINDS) >= 15


@pytest.mark.parametrize(("kind", "text", "part"), ALL)
def test_a_secret_of_each_shape_is_taken_out_and_counted(kind: str, text: str, part: str) -> None:
    kept, counts = redacted(text)
    assert part not in kept
    assert f"[redacted: {kind}]" in kept
    assert counts == {kind: 1}


@pytest.mark.parametrize(("kind", "text", "part"), ALL)
def test_what_was_redacted_is_redacted_no_further(kind: str, text: str, part: str) -> None:
    kept, _ = redacted(text)
    assert redacted(kept) == (kept, Counter())


@pytest.mark.parametrize(
    "text",
    [
        "the password: required, at least 12 characters",
        "Reset your password. Token: see below.",
        'password = os.environ["DB_PASSWORD"]',
        "login(password=password, token=token)",
        "password: str | None = None",
        "api_key = config.api_key  # never logged",
        "token=${GITHUB_TOKEN}",
        "-----BEGIN PRIVATE KEY----- is how such a file begins, and nothing of this sentence is one",
        "commit 1f3870be274f6c49b3e31a0c6728957f and sha256 sums",
        "sk-learn-is-not-the-name-of-the-library",
        "see https://example.org:8080/path@2x.png and mailto:me@example.org",
        "the bearer of this letter is trustworthy",
        "the key to success: persistence-and-patience-over-years",
        "01ARZ3NDEKTSV4RRFFQ69G5FAV 550e8400-e29b-41d4-a716-446655440000",
        "密码：请向管理员索取",
        "task_test_results_for_tomorrow",
    ],
)
def test_prose_and_code_are_left_alone(text: str) -> None:
    assert redacted(text) == (text, Counter())


ATTACKS = [
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN ",
    "-----BEGIN PRIVATE KEY-----AAAAAAAAAAAAAAAAAAAAAAAA",
    "eyJ",
    "eyJ-",
    "eyJaaaaaaaa.",
    "://",
    "://a:",
    "a://b:c",
    'password="',
    "password='password=\"",
    "password:",
    "Authorization: ",
    "bearer ",
    "token=",
    "github_pat_",
    "sk-",
    "-sk-",
    "SG.aaaaaaaaaaaaaaaaaaaa",
    "xoxb-1",
    "aws_secret_access_key=",
    "<private>",
    "</private>",
    "<private ",
    "<bulkhead-memory",
    "123456789:AA",
    "AIza",
    " ",
    "\\",
    "=",
]


@pytest.mark.parametrize("piece", ATTACKS)
def test_the_work_is_in_proportion_to_the_length(piece: str) -> None:
    """A pattern that goes over the same stretch twice would need minutes for these; the limit of a test is two."""
    for text in (piece * (500_000 // len(piece)), piece + "a" * 500_000, piece + "-" * 500_000):
        redacted(text)


def test_no_pattern_can_give_back_what_it_took() -> None:
    """Unbounded repetitions are possessive; the others are bounded by a small number."""
    for shape in SHAPES:
        pattern = re.sub(r"\[[^\]]*\]", "C", shape.pattern.pattern)
        assert not re.search(r"(?:[*+]|\{\d+,\})(?!\+)", re.sub(r"\\.|(?:[*+?]|\{\d*,?\d*\})\+", "E", pattern)), shape


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*ATTACKS, *(text for _, text, _ in ALL), "\n", "x", "。"]), max_size=12))
def test_any_mixture_is_redacted_to_a_fixed_point(pieces: list[str]) -> None:
    kept, _ = redacted("".join(pieces))
    assert redacted(kept)[0] == kept


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a <private>b</private> c", "a [redacted: private] c"),
        ("a <PRIVATE>b</Private > c", "a [redacted: private] c"),
        ("a <private>b <private>c</private> d</private> e", "a [redacted: private] e"),
        ("a <private>b\r\nc</private>\r\nd", "a [redacted: private]\r\nd"),
        ("a <private>never closed", "a [redacted: private]"),
        ("a <private note='x'>b</private>c", "a [redacted: private]c"),
        ("a </private> b", "a </private> b"),
        ("<private>a</private><private>b</private>", "[redacted: private][redacted: private]"),
        ("<privateer>stays</privateer>", "<privateer>stays</privateer>"),
        (f"q {RECALL_BEGIN}old{RECALL_END} a", "q [redacted: recall] a"),
        (f"<private>{RECALL_BEGIN}</private> a", "[redacted: private] a"),
    ],
)
def test_blocks_are_not_kept(text: str, kept: str) -> None:
    assert redacted(text)[0] == kept


def test_a_block_of_lines_keeps_the_number_of_lines_when_asked() -> None:
    text = "one\n" + SECRETS["private-key"][0][0] + "\n<private>\n\n</private>\nlast"
    kept, counts = redacted(text, lines=True)
    assert kept.count("\n") == text.count("\n")
    assert counts == {"private-key": 1, "private": 1}


def test_values_are_redacted_in_any_depth_and_by_the_name_of_their_member() -> None:
    counts: Counts = Counter()
    token = SECRETS["github-token"][0][0]
    value = {"a": [{"password": "hunter2hunter"}, token], "n": 1, token: None, "max_tokens": "unlimited"}
    kept = msgspec.json.encode(REDACTOR.value(value, counts)).decode()
    assert "hunter2" not in kept
    assert "ghp_" not in kept
    assert "unlimited" in kept
    assert counts == {"password": 1, "github-token": 2}


def test_every_text_of_a_message_is_redacted_whatever_its_name() -> None:
    _, text, part = ALL[0]
    counts: Counts = Counter()
    unit = PutUnit(type="summary", scope="global", text=text, facts={"x": [text]}, tags=("ok", text))
    kept = REDACTOR.message(unit, counts)
    assert part.encode() not in msgspec.json.encode(kept)
    assert sum(counts.values()) == 3
    opened = OpenSession(session_id="s", title=text, agent="a", meta={"k": text})
    assert part.encode() not in msgspec.json.encode(REDACTOR.message(opened, counts))


def test_a_message_without_secrets_stays_the_same_object() -> None:
    message = OpenSession(session_id="s", title="t")
    assert REDACTOR.message(message, Counter()) is message


def test_an_id_that_is_a_secret_is_refused_without_repeating_it() -> None:
    token = "ghp_" + "a1B2" * 9
    with pytest.raises(InvalidParams, match="session_id looks like a secret") as refused:
        REDACTOR.message(OpenSession(session_id=token), Counter())
    assert token not in str(refused.value)


def test_kinds_can_be_switched_off_and_added() -> None:
    own = OwnSecret(kind="acme-key", prefix="acme_", characters="hex", chars_min=8, chars_max=16)
    redactor = Redactor(RedactionSettings(off=("npm-token", "private"), own=(own,)))
    text = "acme_0123456789abcdef npm_" + "a1" * 18 + " <private>x</private>"
    kept, counts = redacted(text, redactor)
    assert kept == "[redacted: acme-key] " + text.split(" ", 1)[1]
    assert counts == {"acme-key": 1}


def test_an_unknown_kind_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown kinds \['npm'\].*npm-token"):
        Redactor(RedactionSettings(off=("npm",)))
