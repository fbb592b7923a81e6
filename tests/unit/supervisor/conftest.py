"""A house with a scripted daemon, and a runtime directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.supervisor.scripted_house import ScriptedHouse


@pytest.fixture
def house(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ScriptedHouse]:
    """Give a house; its daemons are killed in the end."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("run")))
    for name in ("BULKHEAD_DATA", "BULKHEAD_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    built = ScriptedHouse(tmp_path)
    yield built
    built.stop()
