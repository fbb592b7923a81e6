"""Make any text safe to encode, store and hand to C code.

Text comes from clients, files and models; JSON may hold half of a surrogate pair, and NUL ends a C string: SQLite's
functions and the local embedding engine would cut the text there.
"""

import re

_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return the text without NUL and with each lone surrogate replaced by U+FFFD; pairs become one character."""
    if "\0" in text:
        text = text.replace("\0", "")
    if not text.isascii() and _SURROGATE.search(text):
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
