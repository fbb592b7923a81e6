"""The routes of the embedding cache."""

from actors.messages.base import Statistics
from actors.messages.cache_manager import CacheStats, ClearCache, TrimCache
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope


async def _cache_stats(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return (await routes.ask("cache_manager", CacheStats(), Statistics, scope)).values


async def _cache_trim(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.CacheTrim)
    return (await routes.ask("cache_manager", TrimCache(bytes_max=given.bytes_max), Statistics, scope)).values


async def _cache_clear(routes: Routes, given: wire.Params, scope: Scope) -> object:
    return (await routes.ask("cache_manager", ClearCache(), Statistics, scope)).values


METHODS: dict[str, Method] = {
    "cache.stats": Method(wire.NoParams, _cache_stats),
    "cache.trim": Method(wire.CacheTrim, _cache_trim),
    "cache.clear": Method(wire.NoParams, _cache_clear),
}
