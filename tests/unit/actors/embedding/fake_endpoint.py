"""An embeddings endpoint on the loopback interface, scripted by a test: a real server and a real socket."""

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from actors.settings import EmbeddingSettings

DIMENSIONS = 4
HANG_S = 60


class Answer:
    """What the endpoint does with a request: a status and a body, at once, byte by byte (`drip`), or never (`hang`).

    `leave` closes the connection without a word.
    """

    def __init__(
        self,
        status: int,
        body: object,
        headers: dict[str, str] | None = None,
        *,
        hang: bool = False,
        drip: bool = False,
        leave: bool = False,
    ) -> None:
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = headers or {}
        self.hang = hang
        self.drip = drip
        self.leave = leave


Script = Callable[[list[str]], Answer]


def vector_of(text: str) -> list[float]:
    """Return a vector that belongs to the text (not of unit length)."""
    digest = hashlib.sha256(text.encode()).digest()
    return [byte + 1.0 for byte in digest[:DIMENSIONS]]


def unit_of(text: str) -> list[float]:
    """Return the vector of the text as it must arrive."""
    vector = vector_of(text)
    return [value / math.hypot(*vector) for value in vector]


def vectors(texts: list[str]) -> Answer:
    """Answer as a good endpoint does."""
    return named(texts, "fake")


def named(texts: list[str], model: str | None) -> Answer:
    """Answer well under the name of a model, or without one."""
    return _answer([vector_of(text) for text in texts], model)


def other_vectors(texts: list[str], model: str | None = "other") -> Answer:
    """Answer as another model of the same dimensions does."""
    return _answer([[a, -b, c, -d] for a, b, c, d in map(vector_of, texts)], model)


def _answer(found: list[list[float]], model: str | None) -> Answer:
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(found)]
    return Answer(200, {"object": "list", "data": data, **({} if model is None else {"model": model})})


def data_of(*rows: object) -> Answer:
    """Answer with these items."""
    return Answer(200, {"data": list(rows)})


def refused(code: str = "invalid_input") -> Answer:
    return Answer(400, {"error": {"message": "you wrote: SECRET", "type": "invalid_request_error", "code": code}})


class FakeEndpoint:
    """The server. `requests` are the bodies it was sent; `script` is called with the texts of each.

    `scripts` has those for models that are asked for by name, in place of `script`. `busy_max` is how many requests
    were under way at once.
    """

    def __init__(self, script: Script = vectors) -> None:
        self.script = script
        self.scripts: dict[str, Script] = {}
        self.busy_max = 0
        self._busy = 0
        self._lock = threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closing = threading.Event()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                with endpoint.counted():
                    endpoint.serve(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 64

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that left in the middle is what some tests are about

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @contextmanager
    def counted(self) -> Iterator[None]:
        with self._lock:
            self._busy += 1
            self.busy_max = max(self.busy_max, self._busy)
        try:
            yield
        finally:
            with self._lock:
                self._busy -= 1

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        self.requests.append(body)
        self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        script = self.scripts.get(body["model"], self.script)
        answer = script(body["input"]) if handler.path == "/v1/embeddings" else Answer(404, {})
        if answer.hang:
            self.closing.wait(HANG_S)
        if answer.hang or answer.leave:
            handler.close_connection = True
            return
        handler.send_response(answer.status)
        for name, value in {"content-length": str(len(answer.body)), **answer.headers}.items():
            handler.send_header(name, value)
        handler.end_headers()
        for byte in answer.body if answer.drip else b"":
            handler.wfile.write(bytes([byte]))
            if self.closing.wait(0.02):
                return
        if not answer.drip:
            handler.wfile.write(answer.body)

    @property
    def texts(self) -> list[list[str]]:
        """The inputs of each request."""
        return [request["input"] for request in self.requests]

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def settings(
        self, *, batch_max: int = 64, deadline_ms: int = 30_000, api_key: str | None = None, prefix: str = ""
    ) -> EmbeddingSettings:
        """Return settings that lead here."""
        return EmbeddingSettings(
            provider="openai-compatible",
            model="fake",
            base_url=self.base_url,
            dimensions=DIMENSIONS,
            batch_max=batch_max,
            request_deadline_ms=deadline_ms,
            api_key=api_key,
            query_prefix=prefix and f"query {prefix}",
            document_prefix=prefix and f"document {prefix}",
        )

    def __enter__(self) -> "FakeEndpoint":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
