"""Texts, JSON values and messages without their secrets, and how many of each kind there were."""

import re
from collections import Counter
from typing import TypeVar

import msgspec

from actors.errors import InvalidParams
from actors.redaction.blocks import BLOCKS, find_blocks
from actors.redaction.shapes import MARK, SECRET_NAME, SHAPES, Shape, is_password, looks_random, own_shape
from actors.settings import RedactionSettings

Counts = Counter[str]
Given = TypeVar("Given", bound=msgspec.Struct)
# Members of messages that say where something is or whose it is. An id that is a secret is refused: it can't be
# changed without becoming another id, and it must not be kept.
_NAMES = frozenset({"tenant", "caller", "path", "source", "before", "cursor"})
_DEPTH_MAX = 100


class Redactor:
    """Knows which shapes are looked for. Raises ValueError for settings that name what there is not."""

    def __init__(self, settings: RedactionSettings | None = None) -> None:
        settings = RedactionSettings() if settings is None else settings
        own = [
            own_shape(each.kind, each.prefix, each.characters, each.chars_min, each.chars_max) for each in settings.own
        ]
        off = set(settings.off)
        known = {shape.kind for shape in (*SHAPES, *own)} | set(BLOCKS)
        if unknown := sorted(off - known):
            raise ValueError(f"redaction.off names unknown kinds {unknown}; known are {', '.join(sorted(known))}")
        self._blocks = tuple(kind for kind in BLOCKS if kind not in off)
        self._shapes = tuple(shape for shape in (*own, *SHAPES) if shape.kind not in off)
        self.kinds = frozenset(known - off)
        self._assigned = {shape.kind for shape in self._shapes} & {"password", "secret"}

    def text(self, text: str, counts: Counts, *, lines: bool = False) -> str:
        """Return the text as it may be kept, and count what was taken out.

        With `lines` it keeps its number of lines: what comes after a block of several lines stays where it was.
        """
        for kind in self._blocks:
            text = self._without_blocks(text, kind, counts, lines)
        return self.secrets(text, counts, lines=lines)

    def secrets(self, text: str, counts: Counts, *, lines: bool = False) -> str:
        """Return the text without secrets; blocks stay."""
        lowered = text.lower()
        for shape in self._shapes:
            if any(hint in lowered for hint in shape.hints):
                text = self._without(text, shape, counts, lines)
        return text

    def value(self, value: object, counts: Counts) -> object:
        """Return a JSON value (or a tuple) with all its strings redacted, names of members included."""
        return self._value(value, counts, 0)

    def message(self, message: Given, counts: Counts) -> Given:
        """Return a message as it may be kept: every text in it, whatever the member is called.

        Raises InvalidParams when an id is a secret.
        """
        changed: dict[str, object] = {}
        for name in message.__struct_fields__:
            given = getattr(message, name)
            if name in _NAMES or given is None:
                continue
            if name.endswith(("_id", "_ids", "_refs")):
                self._require_no_secret(name, given)
                continue
            kept = self.message(given, counts) if isinstance(given, msgspec.Struct) else self.value(given, counts)
            if kept != given:
                changed[name] = kept
        return msgspec.structs.replace(message, **changed) if changed else message

    def _value(self, value: object, counts: Counts, depth: int) -> object:
        if isinstance(value, str):
            return self.text(value, counts)
        if depth >= _DEPTH_MAX:
            return value  # refused by the limits that come next
        if isinstance(value, list):
            return [self._value(each, counts, depth + 1) for each in value]
        if isinstance(value, tuple):
            return tuple(self._value(each, counts, depth + 1) for each in value)
        if isinstance(value, dict):
            return {
                self.text(name, counts): self._member(name, each, counts, depth + 1) for name, each in value.items()
            }
        return value

    def _member(self, name: str, value: object, counts: Counts, depth: int) -> object:
        kept = self._value(value, counts, depth)
        if not isinstance(kept, str) or kept != value or not SECRET_NAME.search(name[:256]):
            return kept
        kind = "password" if "pass" in name.lower() or name.lower() == "pwd" else "secret"
        found = is_password(kept, certain=True) if kind == "password" else looks_random(kept) and not kept.count(" ")
        if not found or kind not in self._assigned:
            return kept
        counts[kind] += 1
        return f"{MARK} {kind}]"

    def _require_no_secret(self, name: str, given: object) -> None:
        for each in given if isinstance(given, tuple | list) else (given,):
            counts = Counts()
            if isinstance(each, str) and self.text(each, counts) != each:
                raise InvalidParams(
                    f"write refused: {name} looks like a secret ({', '.join(counts)}), which is never kept",
                    hint="use an id that gives nothing away",
                )

    def _without_blocks(self, text: str, kind: str, counts: Counts, lines: bool) -> str:
        pieces: list[str] = []
        end = 0
        for start, stop in find_blocks(text, kind):
            pieces += (text[end:start], _mark(kind, text[start:stop], lines))
            counts[kind] += 1
            end = stop
        return "".join((*pieces, text[end:])) if pieces else text

    def _without(self, text: str, shape: Shape, counts: Counts, lines: bool) -> str:
        def replace(match: re.Match[str]) -> str:
            group = _secret_group(match)
            secret = match[group]
            if secret.startswith(MARK) or not shape.guard(match):
                return match[0]
            counts[shape.kind] += 1
            start, end = match.start(group) - match.start(), match.end(group) - match.start()
            return match[0][:start] + _mark(shape.kind, secret, lines) + match[0][end:]

        return shape.pattern.sub(replace, text)


def _secret_group(match: re.Match[str]) -> int | str:
    """Return which group holds the secret: a named one that took part, or the whole match."""
    return match.lastgroup if match.lastgroup in ("secret", "quoted", "single", "bearer") else 0


def _mark(kind: str, secret: str, lines: bool) -> str:
    return f"{MARK} {kind}]" + ("\n" * secret.count("\n") if lines else "")


USUAL = Redactor()  # without any configuration
