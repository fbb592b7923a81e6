"""The routes of turn claims: whose turn a session is."""

import msgspec

from actors.messages.base import Row
from actors.messages.claims import AcquireClaim, ClaimState, GetClaim, ReleaseClaim, RenewClaim
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, request_id_of_ours


async def _claim_acquire(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ClaimAcquire)
    message = AcquireClaim(
        session_id=given.session_id,
        holder=given.holder,
        lease_ms=given.lease_ms,
        tenant=scope.tenant,
        request_id=given.request_id or request_id_of_ours(),
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _claim_renew(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ClaimRenew)
    message = RenewClaim(
        session_id=given.session_id, claim_id=given.claim_id, lease_ms=given.lease_ms, tenant=scope.tenant
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _claim_release(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ClaimRelease)
    message = ReleaseClaim(session_id=given.session_id, claim_id=given.claim_id, tenant=scope.tenant)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _claim_revoke(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ClaimRef)
    return as_json(
        await routes.ask("core_writer", ReleaseClaim(session_id=given.session_id, tenant=scope.tenant), Row, scope)
    )


async def _claim_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ClaimRef)
    message = GetClaim(session_id=given.session_id, tenant=scope.tenant)
    state = await routes.ask("core_writer", message, ClaimState, scope)
    return {"session_id": given.session_id, "claim": None if state.claim is None else msgspec.Raw(state.claim)}


METHODS: dict[str, Method] = {
    "claim.acquire": Method(wire.ClaimAcquire, _claim_acquire, ordered=True, grows="core_writer"),
    "claim.renew": Method(wire.ClaimRenew, _claim_renew, ordered=True),
    "claim.release": Method(wire.ClaimRelease, _claim_release, ordered=True),
    "claim.revoke": Method(wire.ClaimRef, _claim_revoke, ordered=True),
    "claim.get": Method(wire.ClaimRef, _claim_get),
}
