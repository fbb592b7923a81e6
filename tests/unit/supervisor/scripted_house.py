"""A copy of the doors' modules beside the scripted daemon, with a data directory: what the tests of the doors use."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bridge_client import PATIENCE_S, ROOT, BridgeClient

MODULES = (
    "__init__",
    "__main__",
    "launcher",
    "bridge",
    "relay",
    "connect",
    "credentials",
    "paths",
    "client",
    "version",
)


class ScriptedHouse:
    """`python -m supervisor` there is ours, except that `serve` is the scripted daemon."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "house"
        self.data = folder / "data"
        (self.root / "supervisor").mkdir(parents=True)
        (self.root / "actors").mkdir()
        self.data.mkdir(mode=0o700)
        (self.root / "actors" / "__init__.py").touch()
        for name in MODULES:
            shutil.copy(ROOT / "supervisor" / f"{name}.py", self.root / "supervisor")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "supervisor" / "cli", self.root / "supervisor" / "cli", ignore=ignored)
        shutil.copy(Path(__file__).with_name("scripted_daemon.py"), self.root / "supervisor" / "daemon.py")

    def bridge(self, *arguments: str, **popen: Any) -> BridgeClient:
        """Start a bridge."""
        return BridgeClient(self.data, root=self.root, arguments=arguments, **popen)

    def command(
        self,
        *arguments: str | bytes,
        stdin: bytes | None = None,
        environment: dict[str, str] | None = None,
        data: bool = True,
    ) -> "Outcome":
        """Run a command to its end."""
        given = ("--data", str(self.data)) if data else ()
        # Bytes throughout: which encoding comes out is what some tests are about.
        done = subprocess.run(
            [sys.executable, "-P", "-m", "supervisor", *given, *arguments],
            env={**os.environ, "PYTHONPATH": str(self.root), **(environment or {})},
            input=stdin if stdin is not None else b"",
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Outcome(done)

    def script(self, **answers: Any) -> None:
        """Say what the daemon answers to a method, `__` standing for the dot: a result, or a list of whole answers."""
        whole = {
            name.replace("__", "."): answer if isinstance(answer, list) else {"result": answer}
            for name, answer in answers.items()
        }
        (self.data / "answers.json").write_text(json.dumps(whole))

    def requests(self, method: str) -> list[Any]:
        """Return the params of the requests that the daemon got for a method."""
        lines = (self.data / "requests").read_text().splitlines()
        return [request["params"] for line in lines if (request := json.loads(line))["method"] == method]

    def starts(self) -> list[str]:
        """Return a line per start of a daemon: its pid and its configuration file."""
        with contextlib.suppress(FileNotFoundError):
            return (self.data / "starts").read_text().splitlines()
        return []

    def stop(self) -> None:
        """Kill every daemon that was started; one that is only now on its way refuses to start."""
        (self.data / "refuse-to-start").touch()
        for line in self.starts():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line.split()[0]), signal.SIGKILL)


class Outcome:
    """What a command printed and how it ended."""

    def __init__(self, done: subprocess.CompletedProcess[bytes]) -> None:
        self.code = done.returncode
        self.out = done.stdout.decode("utf-8")
        self.err = done.stderr.decode("utf-8")

    @property
    def json(self) -> Any:
        """Return stdout as JSON; it must be one value and nothing else."""
        return json.loads(self.out)
