"""cache_manager, the trio side: a plain relay. Its callers treat every refusal as a miss."""

from actors.actor import StorageActor
from actors.messages.base import Message
from actors.messages.cache_manager import CacheStats, GetVectors


def tray_of(message: Message) -> str:
    """Sort look-ups from changes."""
    return "read" if isinstance(message, GetVectors | CacheStats) else "write"


class CacheManager(StorageActor):
    """One incarnation of cache_manager."""
