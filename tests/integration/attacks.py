"""Requests that try to reach what another tenant has: made from the types of the parameters, for every method there is.

What a parameter is called says what it is aimed with: ids of others where an id is expected, cursors where a cursor is,
and now and then anything at all; as it is, or twisted (wildcards, prefixes, quotes, other spellings of the same text).
A method that is new is attacked without a word here, unless its parameters are of a type that is not known yet, or
no request for it is ever valid: then say in OVERRIDES what makes one.
"""

import json
import random
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import inspect

from supervisor import params as wire

# A canary: who put it there, and which one it is. In every text, id, tag and path that the test stores.
CANARY = re.compile(r"qz([a-z])x[0-9a-f]{10}")
COMMON = ("harvest", "plan", "ledger", "收获", "计划")

Loot = dict[str, list[str]]
"""What attackers know of everybody, by kind: ids, cursors, paths, tags. Never a secret canary."""

# Which kind of loot belongs into which text parameter. Others are given any kind.
AIMED = {
    "session_id": "session",
    "session_ids": "session",
    "event_id": "event",
    "event_refs": "event",
    "unit_id": "unit",
    "parent_unit_id": "unit",
    "approval_id": "approval",
    "claim_id": "claim",
    "job_id": "job",
    "forget_id": "forget",
    "key": "key",
    "source_id": "source",
    "source": "source",
    "path": "path",
    "id": "item",
    "ids": "item",
    "tags": "tag",
    "before": "cursor",
    "after": "event",
    "request_id": "request",
    "query": "word",
    "agent": "agent",
}
OWN = "own"
"""Ids that are new, so that a write makes something."""

Make = Callable[["Attack"], object]


class NoAttack(AssertionError):
    """A method has parameters that nothing here knows how to make."""


class Attack:
    """A source of requests of one attacker; the same seed makes the same ones."""

    def __init__(self, seed: int, loot: Loot, letter: str = "") -> None:
        """`letter` is that of the attacker's own canaries: a part of what it asks for is its own."""
        self.random = random.Random(seed)
        self._loot = loot
        self._own = {kind: [each for each in values if f"qz{letter}x" in each] for kind, values in loot.items()}
        self._made = 0
        self._seed = seed

    def request(self, method: str, kind: type[wire.Params]) -> dict[str, object]:
        """Return parameters for a method."""
        try:
            return self._members(inspect.type_info(kind), method)
        except NoAttack as error:
            raise NoAttack(f"{method} cannot be attacked: {error}; teach tests/integration/attacks.py how") from None

    def _members(self, info: inspect.Type, method: str) -> dict[str, object]:
        assert isinstance(info, inspect.StructType)
        made: dict[str, object] = {}
        for field in info.fields:
            override = OVERRIDES.get((method, field.name), OVERRIDES.get(("", field.name)))
            if not field.required and self.random.random() < 0.45:
                continue
            value = self._value(field.type, field.name, method) if override is None else override(self)
            if value is not LEFT_OUT:
                made[field.encode_name] = value
        return made

    def _value(self, info: inspect.Type, name: str, method: str) -> object:
        match info:
            case inspect.Metadata():
                return self._value(info.type, name, method)
            case inspect.UnionType():
                kinds = [each for each in info.types if not isinstance(each, inspect.NoneType)]
                return self._value(self.random.choice(kinds), name, method)
            case inspect.StrType():
                return self.text(name)
            case inspect.IntType():
                return self._integer(info)
            case inspect.FloatType():
                return round(self.random.random(), 3)
            case inspect.BoolType():
                return self.random.random() < 0.5
            case inspect.LiteralType():
                return self.random.choice(info.values)
            case inspect.ListType():
                return [self._value(info.item_type, name, method) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
            case inspect.StructType():
                return self._members(info, method)
            case inspect.RawType():
                return {self.text("tags"): self.text(name), "n": self.random.randrange(9)}
        raise NoAttack(f"parameter {name!r} is a {type(info).__name__}")

    def _integer(self, info: inspect.IntType) -> int:
        low = 0 if info.ge is None else info.ge
        choice = self.random.choice((low, low + 1, low + self.random.randrange(2000), 2**40, 2**63 - 1))
        return min(choice, 2**63 - 1 if info.le is None else info.le)

    def text(self, name: str) -> str:
        """Return a text for a parameter of this name."""
        kind = AIMED.get(name)
        if self.random.random() < 0.15 or kind is None:
            kind = self.random.choice([*sorted(self._loot)])
        if self.random.random() < 0.1:
            return self.new()
        own = self._own.get(kind) if self.random.random() < 0.3 else None
        found = self.random.choice(own or self._loot.get(kind) or [self.new()])
        return twisted(self.random, found) if self.random.random() < 0.4 else found

    def new(self) -> str:
        """Return an id that nobody has."""
        self._made += 1
        return f"{OWN}-{self._seed}-{self._made}"


LEFT_OUT = object()


def _limit(attack: Attack) -> object:
    return attack.random.choice((1, 3, 50, 200))


def _lease_ms(attack: Attack) -> object:
    return attack.random.choice((1, 1000, 60_000))


def _time(attack: Attack) -> object:
    return attack.random.choice((0, "1970-01-01", "2020-05-05T05:05:05Z", "2199-01-01", 2**52))


def _new_mostly(attack: Attack) -> object:
    return attack.new() if attack.random.random() < 0.7 else attack.text("request_id")


def _one_of(*values: object) -> Make:
    return lambda attack: attack.random.choice(values)


def _query(attack: Attack) -> object:
    words = [*attack.random.choices(COMMON, k=attack.random.choice((0, 1, 2))), attack.text("query")]
    return " ".join(words)


# (method, or "" for all; parameter) → what makes a value. LEFT_OUT: the parameter is not given.
OVERRIDES: dict[tuple[str, str], Make] = {
    ("", "deadline_ms"): _one_of(LEFT_OUT),
    ("", "limit"): _limit,
    ("", "lease_ms"): _lease_ms,
    ("", "since"): _time,
    ("", "until"): _time,
    ("", "ts"): _time,
    ("", "not_before"): _time,
    ("", "request_id"): _new_mostly,
    ("", "status"): _one_of("active", "deprecated", "open", "closed", "pending", "done", LEFT_OUT, LEFT_OUT),
    ("", "wait_for"): _one_of(LEFT_OUT),
    ("", "min_score"): _one_of(LEFT_OUT, 0.0),
    ("", "query"): _query,
    ("", "expected_version"): _one_of(LEFT_OUT, LEFT_OUT, 0, 1),
    ("", "version"): _one_of(LEFT_OUT, 1, 2),
    ("", "from_version"): _one_of(1, 1, 2),
    ("", "to_version"): _one_of(LEFT_OUT, 2),
    ("", "before_version"): _one_of(LEFT_OUT, 3),
    ("", "before_core_seq"): _one_of(LEFT_OUT, 2**62),
    ("", "after_seq"): _one_of(LEFT_OUT, 0),
    ("", "before_seq"): _one_of(LEFT_OUT, 2**62),
    ("", "token"): _one_of(1, 2, 2**52),
    ("", "everything_of_tenant"): _one_of(LEFT_OUT),
    ("memory.forget", "ids"): lambda attack: [attack.text("ids")] if attack.random.random() < 0.6 else LEFT_OUT,
    ("job.list", "before"): _one_of(LEFT_OUT, 2**62),
    ("job.list", "status"): _one_of(LEFT_OUT, "queued", "leased", "done", "dead"),
    ("session.list", "status"): _one_of(LEFT_OUT, "open", "closed"),
    ("session.list", "before"): lambda attack: (
        f"{2**61}.{attack.text('session_id')}" if attack.random.random() < 0.5 else attack.text("before")
    ),
    ("approval.list", "status"): _one_of(LEFT_OUT, "pending", "approved", "denied"),
    ("approval.list", "before"): lambda attack: "Z" * 26 if attack.random.random() < 0.5 else attack.text("before"),
    ("unit.put", "status"): _one_of(LEFT_OUT, "active", "deprecated"),
    ("unit.put", "unit_id"): lambda attack: attack.new() if attack.random.random() < 0.5 else attack.text("unit_id"),
    ("event.units", "after"): _one_of(LEFT_OUT, LEFT_OUT, "0", "z"),
    # A connection that says hello as somebody else is refused; what it is then is for other tests.
    ("hello", "principal"): _one_of(LEFT_OUT),
    ("hello", "token"): _one_of("wrong", "", LEFT_OUT),
}


def twisted(chance: random.Random, text: str) -> str:
    """Return a text that something careless could take for this one, or for more than this one."""
    middle = len(text) // 2
    ways: tuple[Callable[[], str], ...] = (
        text.upper,
        lambda: text[:-1] + "_",
        lambda: text[:-1] + "%",
        lambda: text[:middle] + "%",
        lambda: text[:middle] + "_" * (len(text) - middle),
        lambda: f"%{text}%",
        lambda: text[:middle],
        lambda: text[:middle] + "*",
        lambda: "*",
        lambda: "%",
        lambda: "_",
        lambda: text.replace("-", "_"),
        lambda: f"{text} ",
        lambda: f"{text}\u0000",
        lambda: f"{text}\u200b",
        lambda: text[:middle] + "\u00ad" + text[middle:],
        lambda: "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in text),
        lambda: unicodedata.normalize("NFD", text.replace("e", "é")),
        lambda: f"{text}' OR '1'='1",
        lambda: f"{text}\\' OR 1=1 --",
        lambda: f'"{text}" OR *',
        lambda: f"{text}\" OR tenant != '",
        lambda: f"../{text}",
        lambda: f"./{text}",
        lambda: f"{text}/../{text}",
        lambda: f"[{text}]",
        lambda: f"{text}#L1-L99",
        lambda: f"file://{text}",
    )
    return chance.choice(ways)() or "x"


class Ears:
    """Hears every answer to one tenant, and keeps what it was told of others' without having said it before."""

    def __init__(self, letter: str) -> None:
        self._letter = letter
        self._said: set[str] = set()
        self.leaks: list[str] = []
        self.answers = 0

    def say(self, request: object) -> None:
        """Note what the attacker says: an echo of it is no leak."""
        self._said.update(match[0] for match in CANARY.finditer(plain(request)))

    def hear(self, request: object, answer: object) -> None:
        """Look for canaries of others in an answer, an error or a notification."""
        self.answers += 1
        for match in CANARY.finditer(plain(answer)):
            if match[1] != self._letter and match[0] not in self._said:
                self.leaks.append(f"{match[0]} in the answer {str(answer)[:2000]} to {request}")


def plain(value: object) -> str:
    """Return a value as text that canaries are looked for in: without escapes, in one case."""
    return unicodedata.normalize("NFKC", json.dumps(value, ensure_ascii=False, default=_raw)).lower()


def _raw(value: Any) -> object:
    return msgspec.to_builtins(value)
