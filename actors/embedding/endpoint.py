"""One exchange with an OpenAI-compatible endpoint: texts out, vectors in, bounded in time and in bytes.

Works under trio (questions, in the daemon) and under asyncio (documents, in a worker). Owns the HTTP client.

Promises: the deadline covers everything, name resolution and a dripping answer included. Redirects are not followed,
so neither texts nor the key go to another host than the configured one. Nothing is logged, and no error holds a text,
an address beyond its host, or the key.
"""

import ipaddress
import logging
import os
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import anyio
import httpx

from actors.embedding.failures import InputRefused, Late, Limited, Unreachable
from actors.embedding.openai_http import (
    Embedded,
    Meaning,
    WrongAnswer,
    build_body,
    embeddings_url,
    error_code,
    host_of,
    meaning_of,
    parse_answer,
    retry_after_ms,
)
from actors.errors import EmbeddingUnavailable
from actors.messages.index import EmbeddingIdentity
from actors.settings import EmbeddingSettings

ANSWER_BYTES_MAX = 64 * 1024 * 1024
# A kept connection that the other side has closed meanwhile shows as one of these; a second attempt makes a new one.
_STALE = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


class Endpoint:
    """The configured endpoint and the connections to it."""

    def __init__(self, settings: EmbeddingSettings, identity: EmbeddingIdentity, *, connect_s: float) -> None:
        assert settings.base_url is not None, "resolve_identity has checked the settings"
        self._identity = identity
        self._url = embeddings_url(settings.base_url)
        self._host = host_of(settings.base_url)
        self._api_key = settings.api_key
        for name in ("httpx", "httpcore"):
            logging.getLogger(name).setLevel(logging.WARNING)  # both would write a line a request
        self._client = httpx.AsyncClient(
            # A connection is made within `connect_s` or the endpoint is not there; the rest has the deadline.
            timeout=httpx.Timeout(None, connect=connect_s),
            follow_redirects=False,
            # Proxies are for what lies outside of this machine.
            trust_env=not _is_loopback(settings.base_url),
            # One that nobody uses is closed with the next request, which for the model before never comes.
            limits=httpx.Limits(max_connections=8, max_keepalive_connections=2),
        )

    async def exchange(self, texts: list[str], *, deadline_s: float) -> Embedded:
        """Return the vectors of clean texts as float32 bytes, in order, and the model that they are said to be of.

        Raises Unreachable, Late, Limited, InputRefused, or EmbeddingUnavailable for whatever else is wrong.
        """
        body = build_body(texts, model=self._identity.model, dimensions=self._identity.dimensions)
        try:
            with anyio.fail_after(deadline_s):
                status, headers, answer = await self._post(body)
        except TimeoutError:
            raise Late(f"embedding endpoint {self._host!r} did not answer within {deadline_s:.1f} s") from None
        except (httpx.DecodingError, httpx.InvalidURL) as error:
            raise self._wrong(type(error).__name__) from error
        except httpx.TransportError as error:
            raise Unreachable(f"embedding endpoint {self._host!r} is not reachable: {type(error).__name__}") from error
        return self._vectors(status, headers, answer, len(texts))

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def _post(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        try:
            return await self._post_once(body)
        except _STALE:
            return await self._post_once(body)

    async def _post_once(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"content-type": "application/json", **self._authorization()}
        async with self._client.stream("POST", self._url, content=body, headers=headers) as response:
            parts, size = [], 0
            async for part in response.aiter_bytes():
                size += len(part)
                if size <= ANSWER_BYTES_MAX:  # beyond it, the rest is read and dropped until the deadline
                    parts.append(part)
        if size > ANSWER_BYTES_MAX:
            raise self._wrong(f"{size} bytes, the limit is {ANSWER_BYTES_MAX}")
        return response.status_code, {name.lower(): value for name, value in response.headers.items()}, b"".join(parts)

    def _vectors(self, status: int, headers: Mapping[str, str], answer: bytes, count: int) -> Embedded:
        meaning = meaning_of(status)
        if meaning is Meaning.OK:
            try:
                return parse_answer(answer, count=count, dimensions=self._identity.dimensions)
            except WrongAnswer as error:
                raise self._wrong(str(error)) from error
        code = error_code(answer)
        said = f"embedding endpoint {self._host!r} answered status {status}" + (f" ({code})" if code else "")
        if meaning is Meaning.INPUT:
            raise InputRefused(f"{said} to {count} texts")
        if meaning is Meaning.LIMITED:
            raise Limited(said, retry_after_ms=retry_after_ms(headers, now_s=time.time()))
        if meaning is Meaning.UNAVAILABLE:
            raise Unreachable(said)
        raise EmbeddingUnavailable(said, hint=_hint(status))

    def _wrong(self, what: str) -> EmbeddingUnavailable:
        return EmbeddingUnavailable(
            f"embedding endpoint {self._host!r} gave a wrong answer: {what}",
            hint="check embedding.model and embedding.dimensions",
        )

    def _authorization(self) -> dict[str, str]:
        """Return the header with the key, read from the environment at every request."""
        if self._api_key is None:
            return {}
        name = self._api_key.removeprefix("env:")
        key = os.environ.get(name, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise EmbeddingUnavailable(
                f"embedding key not usable: environment variable {name!r} holds none (config: embedding.api_key)",
                hint="export it where the daemon is started",
            )
        return {"authorization": f"Bearer {key}"}


def _hint(status: int) -> str:
    if status in (401, 403):
        return "check the key that embedding.api_key names"
    if 300 <= status < 400:
        return "redirects are not followed; set embedding.base_url to the final address"
    return "check embedding.base_url and embedding.model"


def _is_loopback(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
