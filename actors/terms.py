"""Which words of an event or a unit the keyword indexes hold. Pure.

One definition for the index of the truth and for the generations, so that a search finds the same before and after
an event was built into a generation.
"""

from collections.abc import Iterable, Iterator, Mapping

from actors.text import analyse, date_terms


def event_terms(content: str, ts_us: int) -> list[str]:
    """Return the terms of an event: those of its content, and its date. Not its actor or session: they are filters."""
    return [*analyse(content), *date_terms(ts_us)]


def unit_terms(text: str, facts: Mapping[str, object] | None, tags: Iterable[str]) -> list[str]:
    """Return the terms of a unit: those of its text, of the strings in its facts, and of its tags."""
    return analyse("\n".join([text, *_strings(facts or {}), *tags]))


def _strings(value: object) -> Iterator[str]:
    """Yield the strings of a JSON value, at any depth; keys are names of fields, not words."""
    pending = [value]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            pending.extend(reversed(list(value.values())))
        elif isinstance(value, list | tuple):
            pending.extend(reversed(value))
