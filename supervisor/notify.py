"""What systemd wants to know: ready, stopping, one line of status, and that there is work being done.

Nothing happens without NOTIFY_SOCKET. A ping proves work, not a timer: it is sent only while the loop turns, its
watching thread lives, and no actor of the truth has had one message in hand for longer than any deadline allows.
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Protocol

import trio

STATUS_EVERY_S = 5.0


class Health(Protocol):
    """What is asked of the health of the house."""

    def ready(self) -> dict[str, bool]:
        """Return per capability whether it works now."""
        ...

    def live(self) -> bool:
        """Say whether the loop turns."""
        ...


class Notifier:
    """Sends datagrams to the service manager that started this process, if there is one."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        self.ping_every_s = _ping_period_s(environment)

    @property
    def wanted(self) -> bool:
        """Say whether anybody listens."""
        return bool(self._address)

    def send(self, **facts: str | int) -> bool:
        """Send facts (READY=1, STATUS=…); False when nobody takes them. Never blocks."""
        if not self._address:
            return False
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        text = "\n".join(f"{name}={value}" for name, value in facts.items())
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)
                sender.sendto(text.encode(), address)
        except OSError:
            return False  # a manager that is gone or busy is not our trouble; the next ping comes
        return True

    async def run(self, health: Health, stuck: Callable[[], str | None]) -> None:
        """Tell when writes are taken, then ping and describe, until cancelled. `stuck` names who does not get on."""
        if not self.wanted:
            return
        while not (health.ready()["append"] and health.ready()["write"]):  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.05)
        self.send(READY=1, STATUS=describe(health))
        while True:
            await trio.sleep(min(self.ping_every_s or STATUS_EVERY_S, STATUS_EVERY_S))
            who = stuck()
            if self.ping_every_s and health.live() and who is None:
                self.send(WATCHDOG=1)
            self.send(STATUS=describe(health) if who is None else f"{who} is stuck")


def describe(health: Health) -> str:
    """Return one line: what does not work, or that all does."""
    missing = [name for name, works in health.ready().items() if not works]
    return f"not ready: {', '.join(missing)}" if missing else "all capabilities ready"


def _ping_period_s(environment: Mapping[str, str]) -> float | None:
    """Return half of the manager's patience, as it recommends; None when it does not watch this process."""
    microseconds, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or int(microseconds) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 1e6 / 2
