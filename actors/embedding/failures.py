"""In which way a remote endpoint failed, for those who react to it; to everybody else it is EmbeddingUnavailable.

Apart from `endpoint.py` so that the daemon can name them without loading an HTTP client that it may never need.
"""

from actors.errors import EmbeddingUnavailable


class Unreachable(EmbeddingUnavailable):
    """There was no connection, or the service said that it is down."""


class Late(EmbeddingUnavailable):
    """There was no complete answer before the deadline."""


class Limited(EmbeddingUnavailable):
    """The endpoint wants to be left alone for `retry_after_ms`."""


class ForeignSpace(EmbeddingUnavailable):
    """The endpoint answers as another model than the one whose vectors are kept under this name."""


class InputRefused(EmbeddingUnavailable):
    """The endpoint does not take these texts: too many, too long, or one of them."""

    retryable = False
