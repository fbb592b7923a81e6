"""What secrets look like. A pattern finds a candidate in linear time; what needs a second look has a `guard`.

A pattern is a literal beginning and then possessive repetitions of single characters (`{20,}+`): they never give back
what they took, so no text makes them slow. What the last named group took is replaced, or the whole match without one.
`hints` are strings of which one must occur (in the text in lower case) before the pattern is tried at all.
"""

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

MARK = "[redacted:"
_RANDOM_CHARS_MIN = 16
_KEY_CHARS_MIN = 60  # of a private key with its first line
_ENTROPY_MIN = 3.0
_CLASSES = {
    "alphanumeric": "A-Za-z0-9",
    "base64": "A-Za-z0-9+/=",
    "base64url": "A-Za-z0-9_-",
    "digits": "0-9",
    "hex": "A-Fa-f0-9",
    "printable": "!-~",
}
CLASSES = tuple(_CLASSES)


class Shape(NamedTuple):
    """A kind of secret."""

    kind: str
    hints: tuple[str, ...]
    pattern: re.Pattern[str]
    guard: Callable[[re.Match[str]], bool] = lambda match: True


def looks_random(value: str) -> bool:
    """Say whether it looks made by a machine: long, of letters and digits, none much more often than others."""
    if len(value) < _RANDOM_CHARS_MIN or not re.search(r"[0-9]", value) or not re.search(r"[A-Za-z]", value):
        return False
    sample = value[:256]
    counts = Counter(sample)
    return -sum(n / len(sample) * math.log2(n / len(sample)) for n in counts.values()) >= _ENTROPY_MIN


_PLACEHOLDER = re.compile(
    r"(?:none|null|nil|true|false|undefined|required|optional|string|str|text|bytes|any|int|bool|change_?me|example"
    r"|password|passwd|pass|pwd|secret|token|your[_-]?password|hidden|masked|redacted|empty|unset)\Z",
    re.IGNORECASE,
)
# A reference to where the secret is, and none itself: $NAME, {{name}}, <name>, /run/secrets/x, os.environ[...], f(...).
_REFERENCE = re.compile(
    r"[$%<{\[(/~]|(?:self|os|env|process|config|settings|args|options|request|this)\.|[A-Za-z_.]{1,64}+\("
)


def is_password(value: str, *, certain: bool) -> bool:
    """Say whether what follows `password:` or `password=` is one; `certain` says that the form leaves no doubt of it.

    A bare word after a colon is prose ("password: required"), and so is a mask ("***").
    """
    bare = value.strip("\"'`")
    if len(bare) < 4 or _PLACEHOLDER.match(bare) or len(set(bare)) < 3 or bare.startswith(MARK):
        return False
    if _REFERENCE.match(bare):
        return False
    return certain or not bare.rstrip(".").isalpha()


def _has_body(match: re.Match[str]) -> bool:
    """Say whether there is a key after the first line: a mention of such files is none."""
    return len(match[0]) >= _KEY_CHARS_MIN


def _password(match: re.Match[str]) -> bool:
    secret = match["secret"]
    if secret is None:
        return is_password(match["quoted"] or match["single"], certain=True)
    return secret.isascii() and is_password(secret, certain="=" in match["sign"])


def _jwt(match: re.Match[str]) -> bool:
    parts = match[0].split(".")
    return len(parts) >= 3 and parts[1].startswith("eyJ")


def _model_key(match: re.Match[str]) -> bool:
    return any(character.isdigit() for character in match[0]) and any(character.isupper() for character in match[0])


def _random(match: re.Match[str]) -> bool:
    return looks_random(match["secret"])


_VALUE = (
    r"\\?(?:\"(?P<quoted>[^\"\\\n]{1,512}+)(?=\\?\")|'(?P<single>[^'\\\n]{1,512}+)(?=\\?')"
    r"|[\"'`]?(?P<secret>[^\s\"'`,;<>&\\]{1,512}+))"
)
_SIGN = r"[\"'`*\\]{0,4}+[ \t]{0,4}+(?P<sign>:=|=>|[:=：])[ \t]{0,4}+"
_WORDLESS = r"(?<![A-Za-z0-9])"

SHAPES: tuple[Shape, ...] = (
    Shape(
        "private-key",
        ("private key",),
        re.compile(
            r"-----BEGIN (?:[A-Z0-9]{1,12}+ (?!KEY)){0,4}?PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?:[^-]++|-(?!----))*+-----END [A-Z0-9 ]{1,60}+-----"
            r"|(?:[\s\\rn>|\"']{0,8}[A-Za-z0-9+/=]{20,}+)*+(?:\s{0,4}+[A-Za-z0-9+/=]{1,76}+\Z)?)"
        ),
        _has_body,
    ),
    Shape(
        "aws-secret-key",
        ("secret",),
        re.compile(
            r"(?i:aws[_-]?secret(?:[_-]?access)?[_-]?key|secretaccesskey|secret[_-]access[_-]key)[\"'`\s:=>\\]{1,8}+"
            r"(?P<secret>[A-Za-z0-9/+=]{40,}+)"
        ),
    ),
    Shape(
        "aws-access-key-id",
        ("akia", "asia", "abia", "acca"),
        re.compile(_WORDLESS + r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}+(?![A-Za-z0-9])"),
    ),
    Shape(
        "github-token",
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
        re.compile(_WORDLESS + r"(?:gh[pousr]_[A-Za-z0-9]{30,}+|github_pat_[A-Za-z0-9_]{22,}+)"),
    ),
    Shape(
        "gitlab-token",
        ("gl",),
        re.compile(_WORDLESS + r"gl(?:pat|ptt|dt|rt|cbt|ft|soat|agent|oas|imt)-[A-Za-z0-9_.-]{20,}+"),
    ),
    Shape(
        "slack-token",
        ("xox", "xapp-", "hooks.slack.com"),
        re.compile(
            _WORDLESS + r"(?:xox[abcdeoprs]-[A-Za-z0-9-]{10,}+|xapp-[A-Za-z0-9-]{20,}+)"
            r"|(?<=hooks\.slack\.com/services/)T[A-Za-z0-9_]{6,}+/[A-Za-z0-9_]{6,}+/[A-Za-z0-9_]{16,}+"
        ),
    ),
    Shape(
        "stripe-key",
        ("_live_", "_test_", "whsec_"),
        re.compile(_WORDLESS + r"(?:[sr]k_(?:live|test)_[A-Za-z0-9]{16,}+|whsec_[A-Za-z0-9+/=]{24,}+)"),
    ),
    Shape("model-api-key", ("sk-",), re.compile(_WORDLESS + r"sk-[A-Za-z0-9_-]{20,}+"), _model_key),
    Shape(
        "google-api-key",
        ("aiza", "gocspx-", "ya29."),
        re.compile(_WORDLESS + r"(?:AIza[A-Za-z0-9_-]{35}+|GOCSPX-[A-Za-z0-9_-]{20,}+|ya29\.[A-Za-z0-9_.-]{20,}+)"),
    ),
    Shape("huggingface-token", ("hf_",), re.compile(_WORDLESS + r"hf_[A-Za-z0-9]{30,}+")),
    Shape("npm-token", ("npm_",), re.compile(_WORDLESS + r"npm_[A-Za-z0-9]{36,}+")),
    Shape("pypi-token", ("pypi-",), re.compile(_WORDLESS + r"pypi-[A-Za-z0-9_-]{50,}+")),
    Shape("sendgrid-key", ("sg.",), re.compile(_WORDLESS + r"SG\.[A-Za-z0-9_-]{16,64}+\.[A-Za-z0-9_-]{16,}+")),
    Shape("telegram-token", (":aa",), re.compile(r"(?<![0-9A-Za-z])[0-9]{8,10}+:AA[A-Za-z0-9_-]{32,}+")),
    Shape(
        "jwt",
        ("eyj",),
        re.compile(_WORDLESS + r"eyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+){0,4}+"),
        _jwt,
    ),
    Shape(
        "azure-key",
        ("accountkey", "sharedaccesskey"),
        re.compile(r"(?i:account|sharedaccess)(?i:key)[ \t]{0,4}+=[ \t]{0,4}+(?P<secret>[A-Za-z0-9+/=]{40,}+)"),
    ),
    Shape(
        "url-password",
        ("://",),
        re.compile(r"://[^\s/:@\"'<>]{0,256}+:(?P<secret>[^\s/@\"'<>]{1,512}+)@"),
        lambda match: match["secret"].isascii() and is_password(match["secret"], certain=True),
    ),
    Shape(
        "authorization",
        ("authorization", "bearer"),
        re.compile(
            r"(?i:authorization)[\"'\\]{0,3}+[ \t]{0,4}+[:=][ \t]{0,4}+[\"'\\]{0,3}+"
            r"(?i:(?:basic|bearer|token|digest|apikey)[ \t]{1,4}+)?+(?P<secret>[A-Za-z0-9._~+/=:-]{8,}+)"
            r"|(?<![A-Za-z])(?i:bearer)[ \t]{1,4}+(?P<bearer>[A-Za-z0-9._~+/=-]{16,}+)"
        ),
        lambda match: (
            looks_random(match["bearer"])
            if match["bearer"]
            else not match["secret"].isalpha() or len(match["secret"]) > 12
        ),
    ),
    Shape(
        "password",
        ("passw", "passphrase", "pwd", "密码", "口令"),
        re.compile(r"(?i:password|passwd|passphrase|pwd|密码|口令)" + _SIGN + _VALUE),
        _password,
    ),
    Shape(
        "secret",
        ("key", "secret", "token", "credential"),
        re.compile(
            r"(?i:api[_-]?key|access[_-]?key|auth[_-]?key|secret[_-]?key|encryption[_-]?key|signing[_-]?key"
            r"|private[_-]?key|secret|token|credentials?)" + _SIGN + r"\\?[\"'`]?(?P<secret>[A-Za-z0-9_.+/=~-]{16,}+)"
        ),
        _random,
    ),
)
KINDS: tuple[str, ...] = tuple(shape.kind for shape in SHAPES)
# Members of JSON objects whose values are looked at as if they were assigned.
SECRET_NAME = re.compile(
    r"(?i:password|passwd|passphrase|^pwd$|api[_-]?key|access[_-]?key|secret|token$|credential|private[_-]?key)"
)


def own_shape(kind: str, prefix: str, characters: str, chars_min: int, chars_max: int) -> Shape:
    """Return a shape that a configuration adds: a literal prefix and then so many characters of a class."""
    pattern = f"(?<![A-Za-z0-9]){re.escape(prefix)}[{_CLASSES[characters]}]{{{chars_min},{chars_max}}}+"
    return Shape(kind, (prefix.lower(),), re.compile(pattern))
