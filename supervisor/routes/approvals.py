"""The routes of approvals: what an agent asks a person for, and what was decided."""

from actors.messages.approvals import DecideApproval, GetApproval, ListApprovals, RequestApproval
from actors.messages.base import Row, Rows
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, as_page, request_id_of_ours
from supervisor.rpc import free_form

DETAIL_KEY = "core_writer.meta_bytes_max"


async def _approval_request(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ApprovalRequest)
    bytes_max = routes.config.core_writer.meta_bytes_max
    message = RequestApproval(
        action=given.action,
        detail=free_form(given.detail, "detail", bytes_max=bytes_max, key=DETAIL_KEY),
        session_id=given.session_id,
        expires_in_ms=given.expires_in_ms,
        tenant=scope.tenant,
        request_id=given.request_id or request_id_of_ours(),
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _approval_decide(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ApprovalDecide)
    message = DecideApproval(
        approval_id=given.approval_id,
        decision=given.decision,
        by=given.by,
        reason=given.reason,
        tenant=scope.tenant,
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _approval_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ApprovalRef)
    message = GetApproval(approval_id=given.approval_id, tenant=scope.tenant)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _approval_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.ApprovalList)
    message = ListApprovals(
        limit=routes.page_rows(given.limit, "approval.list"),
        before=given.before,
        status=given.status,
        session_id=given.session_id,
        tenant=scope.tenant,
    )
    return as_page("approvals", await routes.ask("core_writer", message, Rows, scope))


METHODS: dict[str, Method] = {
    "approval.request": Method(wire.ApprovalRequest, _approval_request, ordered=True, grows="core_writer"),
    "approval.decide": Method(wire.ApprovalDecide, _approval_decide, ordered=True, grows="core_writer"),
    "approval.get": Method(wire.ApprovalRef, _approval_get),
    "approval.list": Method(wire.ApprovalList, _approval_list),
}
