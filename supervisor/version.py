"""The version, as pyproject.toml has it (a tidy test compares)."""

VERSION = "0.1.0"
