"""The routes of jobs."""

import msgspec

from actors.messages.base import Row, Rows
from actors.messages.jobs import (
    AddJob,
    CancelJob,
    CompleteJob,
    FailJob,
    GetJob,
    LeaseJobs,
    ListJobs,
    RenewJob,
    ReplayJob,
)
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, as_page, request_id_of_ours
from supervisor.rpc import free_form
from supervisor.times import parse_ts


async def _job_add(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobAdd)
    message = AddJob(
        kind=given.kind,
        payload=_object(routes, given.payload, "payload"),
        priority=given.priority,
        not_before=None if given.not_before is None else parse_ts(given.not_before, "not_before"),
        delay_ms=given.delay_ms,
        key=given.key,
        session_id=given.session_id,
        tenant=scope.tenant,
        request_id=given.request_id or request_id_of_ours(),
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _job_lease(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobLease)
    message = LeaseJobs(
        kinds=tuple(given.kinds),
        lease_ms=given.lease_ms,
        worker=given.worker,
        limit=given.limit,
        tenant=scope.tenant,
        lease_id=given.request_id or request_id_of_ours(),
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _job_renew(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobRenew)
    message = RenewJob(job_id=given.job_id, token=given.token, lease_ms=given.lease_ms, tenant=scope.tenant)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _job_complete(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobComplete)
    message = CompleteJob(
        job_id=given.job_id,
        token=given.token,
        result=_object(routes, given.result, "result"),
        tenant=scope.tenant,
        request_id=given.request_id,
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _job_fail(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobFail)
    message = FailJob(
        job_id=given.job_id,
        token=given.token,
        error=given.error,
        retry_after_ms=given.retry_after_ms,
        permanent=given.permanent,
        tenant=scope.tenant,
        request_id=given.request_id,
    )
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _job_get(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobRef)
    return as_json(await routes.ask("core_writer", GetJob(job_id=given.job_id, tenant=scope.tenant), Row, scope))


async def _job_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobList)
    message = ListJobs(
        limit=routes.page_rows(given.limit, "job.list"),
        kind=given.kind,
        status=given.status,
        before=given.before,
        tenant=scope.tenant,
    )
    return as_page("jobs", await routes.ask("core_writer", message, Rows, scope))


async def _job_cancel(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobChange)
    message = CancelJob(job_id=given.job_id, tenant=scope.tenant, request_id=given.request_id)
    return as_json(await routes.ask("core_writer", message, Row, scope))


async def _job_replay(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.JobChange)
    request_id = given.request_id or request_id_of_ours()
    message = ReplayJob(job_id=given.job_id, tenant=scope.tenant, request_id=request_id)
    return as_json(await routes.ask("core_writer", message, Row, scope))


def _object(routes: Routes, raw: msgspec.Raw, field: str) -> dict[str, object] | None:
    return free_form(
        raw,
        field,
        bytes_max=routes.config.core_writer.job_payload_bytes_max,
        key="core_writer.job_payload_bytes_max",
    )


METHODS: dict[str, Method] = {
    "job.add": Method(wire.JobAdd, _job_add, ordered=True, grows="core_writer"),
    "job.lease": Method(wire.JobLease, _job_lease, ordered=True, grows="core_writer"),
    "job.renew": Method(wire.JobRenew, _job_renew, ordered=True),
    "job.complete": Method(wire.JobComplete, _job_complete, ordered=True, grows="core_writer"),
    "job.fail": Method(wire.JobFail, _job_fail, ordered=True),
    "job.get": Method(wire.JobRef, _job_get),
    "job.list": Method(wire.JobList, _job_list),
    "job.cancel": Method(wire.JobChange, _job_cancel, ordered=True),
    "job.replay": Method(wire.JobChange, _job_replay, ordered=True),
}
