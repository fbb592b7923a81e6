"""How long a text is for an embedding model, without the model's tokenizer."""

import math

from actors.text.scripts import UNSPACED_RUN

CHARS_PER_TOKEN = 4.2
CHARS_PER_TOKEN_UNSPACED = 1.5


def estimate_tokens(text: str) -> int:
    """Return about how many tokens the text is: 4.2 characters each, 1.5 where it is written without spaces."""
    if text.isascii():
        return math.ceil(len(text) / CHARS_PER_TOKEN)
    spaced = len(UNSPACED_RUN.sub("", text))
    return math.ceil(spaced / CHARS_PER_TOKEN + (len(text) - spaced) / CHARS_PER_TOKEN_UNSPACED)
