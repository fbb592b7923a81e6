"""What is said to cache_manager: vectors, by the identity of their space and the hash of their text."""

from actors.messages.base import Done, Message, Statistics, Struct


class Vectors(Struct, frozen=True, kw_only=True):
    """Vectors for the keys that were asked for: `found[i]` indexes the keys, row i of `blob` is its vector.

    `blob` is `len(found)` × `dimensions` little-endian float32, row after row.
    """

    found: list[int]
    dimensions: int
    blob: bytes


class GetVectors(Message, frozen=True, kw_only=True):
    """Look up vectors by (embedding identity, content hash). Keys are 32-byte hashes."""

    answer = Vectors
    identity: str
    keys: list[bytes]


class PutVectors(Message, frozen=True, kw_only=True):
    """Keep vectors; the least recently used ones give way when the cap is reached."""

    answer = Done
    identity: str
    keys: list[bytes]
    dimensions: int
    blob: bytes


class CacheStats(Message, frozen=True, kw_only=True):
    """Return counters: entries, bytes, bytes_max, hits, misses, evicted, recreated."""

    answer = Statistics


class TrimCache(Message, frozen=True, kw_only=True):
    """Evict the least recently used vectors until at most `bytes_max` remain."""

    answer = Statistics
    bytes_max: int


class ClearCache(Message, frozen=True, kw_only=True):
    """Drop every vector."""

    answer = Statistics


CacheManagerMessage = GetVectors | PutVectors | CacheStats | TrimCache | ClearCache
