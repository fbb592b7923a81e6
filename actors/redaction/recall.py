"""What is handed out: redacted once more, as it may have been written before a shape was known.

For agents and terminals also with hidden characters shown, and with our own markers defused, so that a memory can't end
the block it stands in.
"""

import msgspec

from actors.redaction.blocks import defuse
from actors.redaction.redactor import Counts, Redactor
from actors.text import visible


def recall_text(redactor: Redactor, text: str, *, shown: bool) -> str:
    """Return a text as it may be handed out; `shown` when a person or an agent reads it, and no program."""
    kept = redactor.text(text, Counts())
    return defuse(visible(kept)) if shown else kept


def recall_json(redactor: Redactor, text: str | None, *, shown: bool) -> msgspec.Raw | None:
    """Return a column of JSON as it may be handed out."""
    if text is None:
        return None
    if recall_text(redactor, text, shown=shown) == text and "\\" not in text:
        return msgspec.Raw(text.encode())
    return msgspec.Raw(msgspec.json.encode(_recalled(redactor, msgspec.json.decode(text), shown)))


def _recalled(redactor: Redactor, value: object, shown: bool) -> object:
    return _shown(redactor.value(value, Counts())) if shown else redactor.value(value, Counts())


def _shown(value: object) -> object:
    if isinstance(value, str):
        return defuse(visible(value))
    if isinstance(value, list):
        return [_shown(each) for each in value]
    if isinstance(value, dict):
        return {defuse(visible(name)): _shown(each) for name, each in value.items()}
    return value
