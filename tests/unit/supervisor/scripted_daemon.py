"""A daemon that does as its clients say; the bridge's tests put it where `supervisor/daemon.py` is expected.

Holds LOCK, listens on the socket, keeps nothing. Methods: `echo` answers with its params, `silence` never, `die` by
SIGKILL, `sleep` {seconds}, `large` {bytes}, `pid`, `seen` what was said on this connection, `print` writes to file
descriptor 1. A file `refuse-to-start` in the data directory makes it end with an error, `slow-to-start` wait; what
`answers.json` holds for a method is its answer (`result` or `error`; of a list, one after the other), and every
request is written down in `requests`.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from supervisor import paths


def main(data: Path, config: Path | None, stdio: bool) -> int:
    """Serve until killed; 75 when another one does, 78 when it is told to refuse."""
    with (data / "starts").open("a") as starts:
        starts.write(f"{os.getpid()} {config}\n")
    if (data / "refuse-to-start").exists():
        print("first line\nunknown key 'serch'; did you mean 'search'?", file=sys.stderr)
        return 78
    lock = os.open(data / "LOCK", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 75
    if (data / "slow-to-start").exists():
        time.sleep(0.5)
    path = paths.socket_path(str(data))
    os.write(lock, json.dumps({"pid": os.getpid(), "socket": path}).encode())
    with contextlib.suppress(FileNotFoundError):
        Path(path).unlink()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_serve, args=(data, client), daemon=True).start()


def _serve(data: Path, client: socket.socket) -> None:
    seen: list[Any] = []
    with client, client.makefile("rb") as lines, contextlib.suppress(OSError):
        for line in lines:
            try:
                request = json.loads(line)
            except ValueError:
                _send(client, {"id": None, "error": {"code": -32700, "message": "parse error"}})
                continue
            if request.get("method") != "system.health":
                seen.append({"method": request.get("method"), "params": request.get("params")})
            if "id" in request:
                _answer(data, client, request, seen)


def _scripted(data: Path, request: dict[str, Any]) -> dict[str, Any] | None:
    with (data / "requests").open("a") as requests:
        requests.write(json.dumps({"method": request["method"], "params": request.get("params")}) + "\n")
    path = data / "answers.json"
    answers = json.loads(path.read_text()) if path.exists() else {}
    answer = answers.get(request["method"])
    if isinstance(answer, list):
        first = answer[0]
        answers[request["method"]] = answer[1:] or first
        path.write_text(json.dumps(answers))
        answer = first
    return answer if isinstance(answer, dict) else None


def _answer(data: Path, client: socket.socket, request: dict[str, Any], seen: list[Any]) -> None:
    if (scripted := _scripted(data, request)) is not None:
        _send(client, {"id": request["id"], **scripted})
        return
    params = request.get("params") or {}
    result: object = params
    match request["method"]:
        case "silence":
            return
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(params["seconds"])
        case "large":
            result = "x" * params["bytes"]
        case "pid":
            result = {"pid": os.getpid(), "cwd": str(Path.cwd()), "session": os.getsid(0)}
        case "seen":
            result = seen[:-1]
        case "print":
            os.write(1, b"printed by a native library\n")
        case "system.drain":
            _send(client, {"id": request["id"], "result": {"draining": True}})
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGKILL)
        case "nameless":
            _send(client, {"id": None, "error": {"code": -32700, "message": "parse error"}})
            return
        case "progress":
            _send(client, {"method": "notifications/progress", "params": {"progress": 1}})
            _send(client, {"id": "somebody else's", "result": {}})
    _send(client, {"id": request["id"], "result": result})


def _send(client: socket.socket, message: dict[str, Any]) -> None:
    client.sendall(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
