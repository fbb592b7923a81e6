"""An OpenAI-compatible embedding endpoint on loopback, in a process of its own, for both systems.

`python -m bench.incident.endpoint DIMENSIONS` prints its port and serves until its stdin ends.
"""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from bench.incident import child
from bench.incident.vectors import Vectors

MODEL = "deterministic"


class _Request(msgspec.Struct):
    input: list[str] | str


class _Handler(BaseHTTPRequestHandler):
    """Answers POST /v1/embeddings."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers and body in one packet, or the answer waits 40 ms for a delayed acknowledgement
    model: Vectors

    def do_POST(self) -> None:
        """Answer one request."""
        asked = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])), type=_Request)
        texts = [asked.input] if isinstance(asked.input, str) else asked.input
        data = [{"index": index, "embedding": self.model.of(text).tolist()} for index, text in enumerate(texts)]
        answer = msgspec.json.encode({"data": data})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def endpoint(dimensions: int) -> Iterator[int]:
    """Run the endpoint and give its port."""
    process = child.start("endpoint", str(dimensions))
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        child.leave(process)


def serve(dimensions: int) -> None:
    """Serve until stdin ends."""
    _Handler.model = Vectors(dimensions)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    server.shutdown()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
