"""The configuration: every limit in one struct, decoded strictly from config.toml, relations asserted at start.

The defaults live here (and in `actors/settings.py`); the daemon runs without a file. The `config.toml` of the
repository documents every key, and a tidy test keeps it equal to these defaults. An unknown key is an error that
names the nearest known one. Environment: `BULKHEAD_CONFIG` names the file, `BULKHEAD_DATA` the data directory.
"""

import difflib
import re
import tomllib
from pathlib import Path

import msgspec

from actors.errors import InvalidParams
from actors.redaction import Redactor
from actors.settings import (
    KIB,
    MIB,
    BackupSettings,
    CacheManagerSettings,
    CoreWriterSettings,
    EmbeddingSettings,
    GenerationBuilderSettings,
    RedactionSettings,
    SearcherSettings,
    TranscriptAppenderSettings,
)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of config.toml."""


class ProtocolLimits(Section, frozen=True, kw_only=True):
    """The doors: what one client may send and hold."""

    line_bytes_max: int = 8 * MIB
    in_flight_max: int = 32
    in_flight_bytes_max: int = 16 * MIB
    outbox_lines_max: int = 256
    outbox_bytes_max: int = 16 * MIB
    stalled_client_ms: int = 10_000
    clients_max: int = 256
    clients_per_process_max: int = 128
    deadline_ms: int = 10_000
    deadline_ms_max: int = 120_000
    wait_ms_max: int = 3_600_000
    page_rows_max: int = 500
    search_limit_max: int = 200


class MailboxLimits(Section, frozen=True, kw_only=True):
    """How much may wait in front of each actor."""

    core_writer_messages: int = 256
    core_writer_bytes: int = 16 * MIB
    transcript_appender_messages: int = 1024
    transcript_appender_bytes: int = 32 * MIB
    transcript_appender_wait_ms: int = 250
    cache_manager_messages: int = 512
    cache_manager_reads: int = 256
    cache_manager_bytes: int = 64 * MIB
    generation_builder_messages: int = 64
    generation_builder_bytes: int = 1 * MIB
    searcher_messages: int = 64
    searcher_bytes: int = 4 * MIB


class SupervisionLimits(Section, frozen=True, kw_only=True):
    """How patient the supervisor is."""

    watch_every_ms: int = 50
    beat_ms: int = 250
    silence_ms: int = 1000
    interrupt_grace_ms: int = 500
    lance_silence_ms: int = 30_000
    restarts_max: int = 5
    restart_window_ms: int = 60_000
    backoff_ms_min: int = 50
    backoff_ms_max: int = 5000
    builder_backoff_ms_min: int = 1000
    builder_backoff_ms_max: int = 300_000
    probe_ms: int = 10_000
    hopeless_ms: int = 300_000
    drain_soft_ms: int = 10_000
    drain_hard_ms: int = 15_000
    loop_warn_ms: int = 250
    loop_dead_ms: int = 10_000
    descriptors_max: int = 8192


class LogLimits(Section, frozen=True, kw_only=True):
    """The daemon's own log: JSON lines in <data>/logs, rotated."""

    level: str = "info"
    file_bytes_max: int = 4 * MIB
    files_kept: int = 3
    lines_waiting_max: int = 4096
    incident_bytes_max: int = 256 * KIB
    incidents_kept: int = 20


class DiskLimits(Section, frozen=True, kw_only=True):
    """What gives way when the disk of the data directory fills up, and when. See supervisor/disk_level.py."""

    check_every_ms: int = 1000
    check_timeout_ms: int = 2000
    low_percent: float = 10.0
    low_bytes: int = 512 * MIB
    full_percent: float = 2.0
    full_bytes: int = 64 * MIB
    append_percent: float = 0.5
    append_bytes: int = 16 * MIB
    hysteresis_percent: int = 25
    report_hold_ms: int = 5000
    retry_after_ms: int = 2000
    cache_bytes_max_low: int = 32 * MIB
    ballast_bytes: int = 32 * MIB
    ballast_after_ms: int = 60_000


class PrincipalSettings(Section, frozen=True, kw_only=True):
    """Who may connect, when that is not only the owner of the socket. See supervisor/principals.py."""

    file: str = ""
    anonymous: str = ""


class ChaosSwitches(Section, frozen=True, kw_only=True):
    """Fault injection. Never on by default: the `debug.*` methods exist only when `enabled` is true."""

    enabled: bool = False
    launcher: str = ""


class Config(Section, frozen=True, kw_only=True):
    """Everything that can be configured."""

    protocol: ProtocolLimits = ProtocolLimits()
    mailboxes: MailboxLimits = MailboxLimits()
    supervision: SupervisionLimits = SupervisionLimits()
    logs: LogLimits = LogLimits()
    disk: DiskLimits = DiskLimits()
    core_writer: CoreWriterSettings = CoreWriterSettings()
    transcript_appender: TranscriptAppenderSettings = TranscriptAppenderSettings()
    cache_manager: CacheManagerSettings = CacheManagerSettings()
    generation_builder: GenerationBuilderSettings = GenerationBuilderSettings()
    searcher: SearcherSettings = SearcherSettings()
    embedding: EmbeddingSettings = EmbeddingSettings()
    backup: BackupSettings = BackupSettings()
    redaction: RedactionSettings = RedactionSettings()
    principals: PrincipalSettings = PrincipalSettings()
    chaos: ChaosSwitches = ChaosSwitches()


class ConfigError(Exception):
    """The configuration cannot be used; the message says which key and why."""


def load(path: Path | None) -> Config:
    """Read a configuration file (None: the defaults) and check it; raise ConfigError."""
    if path is None:
        return check(Config())
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"configuration {str(path)!r} not readable: {error}") from error
    try:
        return check(msgspec.convert(raw, Config))
    except msgspec.ValidationError as error:
        raise ConfigError(f"configuration {str(path)!r}: {explain(str(error))}") from error
    except (ValueError, InvalidParams) as error:
        raise ConfigError(f"configuration {str(path)!r}: {error}") from error


def check(config: Config) -> Config:
    """Check the relations between limits, so that no combination of them can stop the house from working."""
    protocol, supervision, mailboxes = config.protocol, config.supervision, config.mailboxes
    rules = {
        "protocol.deadline_ms must be at most protocol.deadline_ms_max": protocol.deadline_ms
        <= protocol.deadline_ms_max,
        "protocol.line_bytes_max must be at least 64 KiB": protocol.line_bytes_max >= 64 * KIB,
        "protocol.outbox_bytes_max must hold one line": protocol.outbox_bytes_max >= protocol.line_bytes_max,
        "transcript_appender.content_bytes_max must be below protocol.line_bytes_max": protocol.line_bytes_max
        > config.transcript_appender.content_bytes_max,
        "mailboxes.transcript_appender_bytes must hold one protocol line": mailboxes.transcript_appender_bytes
        >= protocol.line_bytes_max,
        "mailboxes.core_writer_bytes must hold one protocol line": mailboxes.core_writer_bytes
        >= protocol.line_bytes_max,
        "core_writer.job_lease_ms must be in 1..job_lease_ms_max": 1
        <= config.core_writer.job_lease_ms
        <= config.core_writer.job_lease_ms_max,
        "core_writer.job_backoff_ms_min must be in 1..job_backoff_ms_max": 1
        <= config.core_writer.job_backoff_ms_min
        <= config.core_writer.job_backoff_ms_max,
        "core_writer.job_attempts_max must be at least 1": config.core_writer.job_attempts_max >= 1,
        "supervision.silence_ms must be at least three beats": supervision.silence_ms >= 3 * supervision.beat_ms,
        "supervision.drain_soft_ms must be below drain_hard_ms": supervision.drain_soft_ms < supervision.drain_hard_ms,
        "supervision.backoff_ms_min must be at most backoff_ms_max": 0
        < supervision.backoff_ms_min
        <= supervision.backoff_ms_max,
        "generation_builder.chunk_tokens must be at most chunk_tokens_max": config.generation_builder.chunk_tokens
        <= config.generation_builder.chunk_tokens_max,
        "generation_builder.generations_kept must be at least 1": config.generation_builder.generations_kept >= 1,
        "generation_builder.duty_percent_max must be in 1..100": 1 <= config.generation_builder.duty_percent_max <= 100,
        "generation_builder.watch_debounce_ms must be at most watch_debounce_ms_max": 0
        <= config.generation_builder.watch_debounce_ms
        <= config.generation_builder.watch_debounce_ms_max,
        "generation_builder.root_hang_ms must be at least 1000": config.generation_builder.root_hang_ms >= 1000,
        "generation_builder.delta_note_bytes_max must be at most delta_notes_bytes_max": 0
        < config.generation_builder.delta_note_bytes_max
        <= config.generation_builder.delta_notes_bytes_max,
        "searcher.vector_weight and its variants must be in 0..1": all(
            0 <= weight <= 1
            for weight in (
                config.searcher.vector_weight,
                config.searcher.vector_weight_unspaced,
                config.searcher.vector_weight_code,
            )
        ),
        "disk.append_percent must be at most full_percent, and that at most low_percent": 0
        <= config.disk.append_percent
        <= config.disk.full_percent
        <= config.disk.low_percent
        <= 100,
        "disk.append_bytes must be at most full_bytes, and that at most low_bytes": 0
        <= config.disk.append_bytes
        <= config.disk.full_bytes
        <= config.disk.low_bytes,
        "backup.kept must be at least 1": config.backup.kept >= 1,
        "backup.every_h must not be negative": config.backup.every_h >= 0,
        "backup.directory must be an absolute path": not config.backup.directory
        or config.backup.directory.startswith("/"),
        "principals.file must be an absolute path": not config.principals.file
        or config.principals.file.startswith("/"),
        "disk.check_every_ms must be at least 10": config.disk.check_every_ms >= 10,
        "chaos.launcher needs chaos.enabled": config.chaos.enabled or not config.chaos.launcher,
        "cache_manager.bytes_max must be at least 1 MiB": config.cache_manager.bytes_max >= MIB,
        "logs.level must be one of debug, info, warning, error": config.logs.level
        in ("debug", "info", "warning", "error"),
    }
    for rule, holds in rules.items():
        if not holds:
            raise ValueError(rule)
    Redactor(config.redaction)
    return config


_UNKNOWN = re.compile(r"^Object contains unknown field `([^`]*)`(?: - at `\$\.?([^`]*)`)?$")


def explain(text: str) -> str:
    """Turn msgspec's complaint into ours; an unknown key comes with the nearest known one."""
    match = _UNKNOWN.match(text)
    if match is None:
        return text
    key, table = match[1], match[2] or ""
    known = _keys(table)
    near = difflib.get_close_matches(key, known, n=1)
    where = f"{table}.{key}" if table else key
    return f"unknown key {where!r}" + (f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}")


def _keys(table: str) -> list[str]:
    struct: object = Config()
    for name in filter(None, table.split(".")):
        struct = getattr(struct, name)
    assert isinstance(struct, msgspec.Struct)
    return list(struct.__struct_fields__)
