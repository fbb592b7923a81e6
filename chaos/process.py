"""Starting a module of this checkout as a process of its own, spoken to over its stdin and stdout."""

import os
import subprocess
import sys

from chaos.client import ROOT


def start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module by its full name, wherever we were started from."""
    known = os.environ.get("PYTHONPATH")
    path = f"{ROOT}{os.pathsep}{known}" if known else str(ROOT)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )


def leave(process: subprocess.Popen[bytes]) -> None:
    """Close its stdin, at whose end it leaves, and wait for it."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.close()
    process.wait()
    process.stdout.close()
