"""An OpenAI-compatible embedding endpoint on loopback that answers well: for benchmarks and scenarios.

`answering` and `hashing` serve from this process, `endpoint` from one of its own with the models of `chaos/vectors.py`
(`python -m chaos.endpoint DIMENSIONS` prints its port and serves until its stdin ends). What a provider may do wrong is
not in here: the tests script that.
"""

import hashlib
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from chaos import process
from chaos.vectors import MODEL, Vectors

HASHED_DIMENSIONS = 384


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request. A client that names no model and no dimensions means the only ones that it knows."""

    input: list[str] | str
    model: str = MODEL
    dimensions: int | None = None

    @property
    def texts(self) -> list[str]:
        """Return what is to be embedded."""
        return [self.input] if isinstance(self.input, str) else self.input


Embed = Callable[[Asked], Iterable[Sequence[float]]]  # a vector for each text


class _Server(ThreadingHTTPServer):
    """The server; a client that leaves in the middle, or is killed, is no news."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, embed: Embed) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.embed = embed

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


class _Handler(BaseHTTPRequestHandler):
    """Answers POST /v1/embeddings."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # headers and body in one packet, or the answer waits 40 ms for a delayed acknowledgement
    server: _Server

    def do_POST(self) -> None:
        """Answer one request."""
        asked = msgspec.json.decode(self.rfile.read(int(self.headers["Content-Length"])), type=Asked)
        data = [{"index": index, "embedding": found} for index, found in enumerate(self.server.embed(asked))]
        answer = msgspec.json.encode({"data": data, "model": asked.model})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@contextmanager
def answering(embed: Embed) -> Iterator[int]:
    """Serve from threads of this process with the vectors that `embed` returns; give the port."""
    server = _Server(embed)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def hashed(text: str, dimensions: int) -> list[float]:
    """Return a vector made from the hash of a text: the same for the same text, and near to that of no other."""
    seed = hashlib.shake_128(text.encode()).digest(dimensions * 2)
    return [value / 32768 for value in struct.unpack(f"<{dimensions}h", seed)]


@contextmanager
def hashing(dimensions: int = HASHED_DIMENSIONS) -> Iterator[str]:
    """Serve vectors that mean nothing, for what only compares or times them.

    Gives the configuration of a daemon that embeds there, as TOML.
    """
    with answering(lambda asked: (hashed(text, dimensions) for text in asked.texts)) as port:
        yield f"""
[embedding]
provider = "openai-compatible"
base_url = "http://127.0.0.1:{port}/v1"
model = "hashing"
dimensions = {dimensions}
"""


@contextmanager
def endpoint(dimensions: int) -> Iterator[int]:
    """Run an endpoint with models of so many dimensions in a process of its own, and give its port."""
    started = process.start("chaos.endpoint", str(dimensions))
    assert started.stdout is not None
    try:
        yield int(started.stdout.readline())
    finally:
        process.leave(started)


def main(dimensions: int) -> None:
    """Print the port and serve until stdin ends; `dimensions` are those of who does not ask for a number of them."""
    model_of = cache(Vectors)

    def embed(asked: Asked) -> list[list[float]]:
        model = model_of(asked.dimensions or dimensions, asked.model)
        return [model.of(text).tolist() for text in asked.texts]

    with answering(embed) as port:
        print(port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]))
