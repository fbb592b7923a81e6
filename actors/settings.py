"""The limits of every room, with unit and default; the supervisor fills them from config.toml.

A room's worker gets its own struct (and the embedding's, where it embeds) in the `Setup` frame. Units are in the
names. `supervisor/config.py` asserts the relations between limits; a tidy test keeps `config.toml` equal to these.
"""

from typing import Annotated, Literal

import msgspec

KIB = 1024
MIB = 1024 * KIB


class CoreWriterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """core_writer: sessions, units, sources, request ids."""

    text_bytes_max: int = 1 * MIB
    facts_bytes_max: int = 256 * KIB
    meta_bytes_max: int = 64 * KIB
    event_refs_max: int = 1000
    tags_max: int = 64
    tag_chars_max: int = 128
    id_chars_max: int = 256
    request_ids_kept: int = 1_000_000
    claim_lease_ms: int = 60_000
    claim_lease_ms_max: int = 600_000
    job_payload_bytes_max: int = 64 * KIB
    job_attempts_max: int = 5
    job_lease_ms: int = 60_000
    job_lease_ms_max: int = 3_600_000
    job_backoff_ms_min: int = 5000
    job_backoff_ms_max: int = 3_600_000
    jobs_per_lease_max: int = 32
    jobs_kept_days: int = 30
    summarize_on_close: bool = True
    summarize_every_events: int = 0
    summarize_after_s: int = 0
    summarize_settle_ms: int = 6000
    wal_bytes_max: int = 16 * MIB
    busy_timeout_ms: int = 250


class TranscriptAppenderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """transcript_appender: events."""

    content_bytes_max: int = 4 * MIB
    meta_bytes_max: int = 256 * KIB
    tags_max: int = 64
    tag_chars_max: int = 128
    id_chars_max: int = 256
    events_per_append_max: int = 1000
    batch_rows_max: int = 64
    batch_bytes_max: int = 1 * MIB
    duplicate_window_s: int = 0
    index_slice_rows: int = 64
    segment_bytes_max: int = 512 * MIB
    wal_bytes_max: int = 16 * MIB
    busy_timeout_ms: int = 250


class CacheManagerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """cache_manager: the embedding cache."""

    bytes_max: int = 512 * MIB
    evict_slice_rows: int = 256
    keys_per_get_max: int = 4096
    busy_timeout_ms: int = 100


class GenerationBuilderSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """generation_builder: scanning, cutting, embedding, publishing."""

    file_bytes_max: int = 64 * MIB
    files_max: int = 500_000
    suffixes: tuple[str, ...] = (".md", ".markdown", ".mdx")
    chunk_tokens: int = 200
    chunk_tokens_max: int = 400
    page_rows: int = 1000
    page_bytes_max: int = 4 * MIB
    files_per_step: int = 64
    delta_note_bytes_max: int = 2 * MIB
    delta_notes_bytes_max: int = 4 * MIB
    settle_ms: int = 500
    build_every_ms: int = 5000
    delta_every_ms: int = 1000
    delta_rows_max: int = 2000
    delta_percent_max: int = 10
    compact_after_ms: int = 30_000
    duty_percent_max: int = 25
    scan_every_ms: int = 15_000
    watch_debounce_ms: int = 1500
    watch_debounce_ms_max: int = 10_000
    watch_folders_max: int = 10_000
    reconcile_every_ms: int = 300_000
    root_hang_ms: int = 5000
    generations_kept: int = 2
    retire_grace_ms: int = 2000
    vectors_publish_ms: int = 20_000
    embed_texts_per_call: int = 8
    embed_quiet_ms: int = 500
    embed_yield_ms_max: int = 2000
    model_change_coverage_percent: int = 95
    exact_values_max: int = 5_000_000
    archive_after_days: int = 0
    scrub_every_s: int = 86_400
    scrub_bytes_per_s: int = 16 * MIB
    step_deadline_ms: int = 600_000
    rss_bytes_max: int = 2048 * MIB
    builds_per_worker_max: int = 1000
    embed_rss_bytes_max: int = 1024 * MIB
    nice: int = 19
    idle_class: bool = True
    delta_nice: int = 10


class SearcherSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """searcher: workers, candidates, fusion."""

    candidates_max: int = 100
    snippet_chars_max: int = 700
    query_chars_max: int = 8192
    threads: int = 2
    embed_deadline_ms: int = 1500
    overlay_deadline_ms: int = 2000
    document_lines_max: int = 2000
    document_bytes_max: int = 256 * KIB
    vector_weight: float = 0.45
    vector_weight_unspaced: float = 0.55
    vector_weight_code: float = 0.15
    silence_ms: int = 2000
    cache_bytes_max: int = 512 * MIB
    rss_bytes_max: int = 2048 * MIB
    recycle_after_s: int = 86_400


class EmbeddingSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which embedding model, and how to reach it. Nothing leaves the machine unless `provider` is openai-compatible."""

    provider: str = "auto"
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    dimensions: int | None = None
    threads: int = 2
    batch_max: int = 64
    query_prefix: str = ""
    document_prefix: str = ""
    request_deadline_ms: int = 30_000


class BackupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Backups: when, how many are kept, and where."""

    every_h: int = 0
    kept: int = 7
    directory: str = ""
    free_bytes_min: int = 512 * MIB


class OwnSecret(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A shape of secret that an installation adds: a literal prefix, then characters of a class."""

    kind: Annotated[str, msgspec.Meta(pattern="^[a-z0-9][a-z0-9-]{0,31}$")]
    prefix: Annotated[str, msgspec.Meta(min_length=2, max_length=64)]
    characters: Literal["alphanumeric", "base64", "base64url", "digits", "hex", "printable"] = "base64url"
    chars_min: Annotated[int, msgspec.Meta(ge=4, le=4096)] = 16
    chars_max: Annotated[int, msgspec.Meta(ge=4, le=4096)] = 512


class RedactionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is never kept: which kinds are not looked for (`off`), and which are added (`own`)."""

    off: tuple[str, ...] = ()
    own: Annotated[tuple[OwnSecret, ...], msgspec.Meta(max_length=64)] = ()


class RoomSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker gets in its Setup frame: the directory it owns, its limits, the embedding, the switches."""

    directory: str
    index_directory: str = ""
    archive_directory: str = ""
    core_writer: CoreWriterSettings = CoreWriterSettings()
    transcript_appender: TranscriptAppenderSettings = TranscriptAppenderSettings()
    cache_manager: CacheManagerSettings = CacheManagerSettings()
    generation_builder: GenerationBuilderSettings = GenerationBuilderSettings()
    searcher: SearcherSettings = SearcherSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    backup: BackupSettings = BackupSettings()
    redaction: RedactionSettings = RedactionSettings()
    identity: str = ""
    chaos: bool = False
    restoring: bool = False  # a room of the truth in its maintenance mode
    rebuilding: bool = False  # the builder's worker that makes full generations and nothing else
    acknowledged: int = 0  # transcript: the highest seq that this daemon has given out in its life
