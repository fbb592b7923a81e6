"""The configuration: defaults, strictness, relations between limits."""

from pathlib import Path

import pytest

from supervisor.config import Config, ConfigError, load


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_no_file_means_the_defaults() -> None:
    assert load(None) == Config()


def test_a_key_of_the_file_replaces_a_default(tmp_path: Path) -> None:
    assert load(write(tmp_path, "[protocol]\nin_flight_max = 7\n")).protocol.in_flight_max == 7


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[protocol]\nin_flight = 7\n", "did you mean 'in_flight_max'"),
        ("[protocoll]\n", "did you mean 'protocol'"),
        ('[protocol]\nin_flight_max = "7"\n', "Expected `int`"),
        ("[protocol]\ndeadline_ms = 500000\n", "deadline_ms must be at most"),
        ("[supervision]\nsilence_ms = 300\n", "at least three beats"),
        ("[generation_builder]\nchunk_tokens = 500\n", "chunk_tokens must be at most"),
        ("[logs]\nlevel = 'loud'\n", "logs.level must be one of"),
        ("not toml", "not readable"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load(write(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not readable"):
        load(tmp_path / "absent.toml")
