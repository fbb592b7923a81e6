"""The routes of backups."""

import trio

from actors.mailbox import seconds_until
from actors.messages.backup import ListBackups, VerifyBackup
from actors.messages.base import Row, Rows
from supervisor import params as wire
from supervisor.routes.routing import Method, Routes, Scope, as_json, as_page


async def _backup_create(routes: Routes, given: wire.Params, scope: Scope) -> object:
    """Order a backup, and wait until it is begun, or until its end."""
    assert isinstance(given, wire.BackupCreate)
    order, already_running = routes.backups.order(given.request_id)
    with trio.move_on_after(seconds_until(scope.deadline_ns)):
        await (order.ended if given.wait else order.begun).wait()
    return {**order.as_row(), "already_running": already_running}


async def _backup_list(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.BackupList)
    message = ListBackups(limit=routes.page_rows(given.limit, "backup.list"), before=given.before)
    page = as_page("backups", await routes.ask("core_writer", message, Rows, scope))
    keeper = routes.backups
    running, last = keeper.running, keeper.last
    return {
        **page,
        "running": None if running is None else running.as_row(),
        "last_failure": None if last is None or last.error is None else last.as_row(),
        "every_h": routes.config.backup.every_h,
        "kept": routes.config.backup.kept,
    }


async def _backup_verify(routes: Routes, given: wire.Params, scope: Scope) -> object:
    assert isinstance(given, wire.BackupVerify)
    return as_json(await routes.ask("core_writer", VerifyBackup(backup=given.backup), Row, scope))


METHODS: dict[str, Method] = {
    "backup.create": Method(wire.BackupCreate, _backup_create),
    "backup.list": Method(wire.BackupList, _backup_list),
    "backup.verify": Method(wire.BackupVerify, _backup_verify),
}
