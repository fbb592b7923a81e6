"""What a principal must be allowed to do for each method. One table, so that it can be read as a whole.

`read` looks at the memory of the own tenant, `write` adds to it and changes it, `forget` removes from it. `admin` is
for what concerns the daemon, its files or the folders it reads, and so every tenant. None: everybody who may connect
to the socket, before it has said who it is.

A method that is missing here needs `admin`; a test finds it.
"""

from supervisor.principals import Capability

NEEDS: dict[str, Capability | None] = {
    "hello": None,
    "system.health": None,
    "system.status": "read",
    "system.metrics": "admin",
    "system.drain": "admin",
    "poison.list": "admin",
    "poison.clear": "admin",
    "session.open": "write",
    "session.get": "read",
    "session.list": "read",
    "session.history": "read",
    "session.close": "write",
    "session.archive": "write",
    "claim.acquire": "write",
    "claim.renew": "write",
    "claim.release": "write",
    "claim.get": "read",
    "claim.revoke": "admin",
    "approval.request": "write",
    "approval.decide": "admin",
    "approval.get": "read",
    "approval.list": "read",
    "event.append": "write",
    "event.append_many": "write",
    "event.get": "read",
    "event.units": "read",
    "unit.put": "write",
    "unit.get": "read",
    "unit.history": "read",
    "unit.list": "read",
    "unit.diff": "read",
    "unit.refs": "read",
    "job.add": "write",
    "job.lease": "write",
    "job.renew": "write",
    "job.complete": "write",
    "job.fail": "write",
    "job.get": "read",
    "job.list": "read",
    "job.cancel": "write",
    "job.replay": "write",
    "memory.search": "read",
    "memory.get": "read",
    "memory.forget": "forget",
    "memory.forget_status": "read",
    "memory.forget_list": "read",
    "memory.export": "read",
    "memory.import": "write",
    "source.add": "admin",  # any folder that the daemon's user can read: also one of another tenant
    "source.list": "read",
    "source.remove": "admin",
    "index.status": "read",
    "index.item": "read",
    "index.rebuild": "admin",
    "index.cancel": "admin",
    "index.rollback": "admin",
    "index.verify": "admin",
    "cache.stats": "admin",
    "cache.trim": "admin",
    "cache.clear": "admin",
    "archive.create": "admin",
    "archive.list": "admin",
    "archive.search": "read",
    "archive.verify": "admin",
    "truth.restore": "admin",
    "backup.create": "admin",
    "backup.list": "admin",
    "backup.verify": "admin",
    "debug.hold_build": "admin",
    "debug.fail_actor": "admin",
    "debug.stall_loop": "admin",
    "debug.modules": "admin",
    "debug.write_stdout": "admin",
}


def needs(method: str) -> Capability | None:
    """Return what must be allowed for a method."""
    return NEEDS.get(method, "admin")
