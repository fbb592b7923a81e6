"""What one of several tenants is told of the house: how it is, and nothing of what the others have in it. Pure.

Members are taken over by name, so that one that is added to an answer later is not told until somebody put it here.
Numbers that count over all tenants (seq, generations, how far the index is behind) are no secret; names, paths, texts
of errors and counts of items are.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from actors.messages.index import Progress, Skip
from actors.notices import DiskNotice, EmbeddingNotice, SourceNotice

STATUS = ("version", "data_dir_id", "uptime_s", "live", "draining", "ready")
INDEX = (
    "generation",
    "delta",
    "covers",
    "behind",
    "vectors",
    "vector_index",
    "built_at",
    "previous",
    "paused",
    "paused_by",
    "files_waiting",
)


def narrow_status(status: Mapping[str, Any]) -> dict[str, object]:
    """Return what of system.status is everybody's."""
    disk: DiskNotice = status["disk"]
    return {
        **_only(status, STATUS),
        "actors": {name: {"state": actor["state"]} for name, actor in status["actors"].items()},
        "index": narrow_index(status["index"]),
        "disk": {
            "level": disk.level,
            "writes_refused": disk.writes_refused,
            "appends_refused": disk.appends_refused,
        },
    }


def narrow_index(index: Mapping[str, Any]) -> dict[str, object]:
    """Return what of the index is everybody's."""
    building: Progress | None = index["building"]
    embedding: EmbeddingNotice = index["embedding"]
    return {
        **_only(index, INDEX),
        "building": None
        if building is None
        else {"stage": building.stage, "percent": building.percent, "eta_s": building.eta_s},
        "embedding": {"state": embedding.state, "eta_s": embedding.eta_s},
    }


def narrow_index_status(
    status: Mapping[str, Any], *, source_ids: Collection[str], roots: Sequence[str]
) -> dict[str, object]:
    """Return what of index.status is everybody's, and what is about these sources and the folders that they name."""
    sources: Sequence[SourceNotice] = status["sources"]
    return {
        **narrow_index(status),
        "sources": [notice for notice in sources if notice.source_id in source_ids],
        "skipped": _below(status["skipped"], roots),
        "held": _below(status["held"], roots),
        "items": None,
    }


def _below(skips: Sequence[Skip], roots: Sequence[str]) -> list[Skip]:
    """Return those that are about one of these folders or something in it."""
    return [skip for skip in skips if any(f"{skip.path}/".startswith(f"{root.rstrip('/')}/") for root in roots)]


def _only(members: Mapping[str, Any], names: Sequence[str]) -> dict[str, object]:
    return {name: members[name] for name in names}
