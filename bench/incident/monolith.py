"""The one SQLite file as one side of the comparison, seen from the harness: it is made, rebuilt and measured here.

The harness itself does not open the file; see `single_file.py` for its clients and `reindex.py` for its rebuild.
"""

import subprocess
from pathlib import Path

import msgspec

from bench.incident.memory import MonolithSpec
from bench.incident.results import MONOLITH, Rebuild
from bench.incident.work import Sizes
from chaos import process


class Monolith:
    """The system under measurement; implements `windows.System`."""

    name = MONOLITH

    def __init__(self, place: Path, notes: Path, sizes: Sizes, endpoint_port: int, *, stored: str) -> None:
        from bench.incident.reindex import ReindexSpec

        self.folder = place / "monolith"
        self._database = str(self.folder / "agent.sqlite")
        self._dimensions = sizes.dimensions
        self._endpoint_port = endpoint_port
        self._reindex = ReindexSpec(
            database=self._database, notes=str(notes), dimensions=sizes.dimensions, stored=stored
        )
        self._rebuilding: subprocess.Popen[bytes] | None = None

    @property
    def spec(self) -> MonolithSpec:
        """Return where its clients find it."""
        return MonolithSpec(database=self._database, endpoint_port=self._endpoint_port)

    def prepare(self) -> None:
        """Make the file, index and embed the notes."""
        from bench.incident.single_file import create

        self.folder.mkdir(parents=True)
        create(self._database, self._dimensions)
        self.rebuild()

    def rebuild(self) -> Rebuild:
        """Rebuild the whole index in a process of its own. Raises CalledProcessError."""
        self._rebuilding = process.start("bench.incident.reindex", msgspec.json.encode(self._reindex).decode())
        try:
            told, _ = self._rebuilding.communicate()
            if self._rebuilding.returncode != 0:
                raise subprocess.CalledProcessError(self._rebuilding.returncode, self._rebuilding.args)
            return msgspec.json.decode(told, type=Rebuild)
        finally:
            self._rebuilding.kill()
            self._rebuilding.wait()
            self._rebuilding = None

    def settle(self) -> None:
        """Do nothing: there is nothing that works behind."""

    def pids(self) -> list[int]:
        """Return the process of its rebuild; that of its clients, in which SQLite works, is added by the harness."""
        rebuilding = self._rebuilding
        return [] if rebuilding is None else [rebuilding.pid]

    def close(self) -> None:
        """Do nothing: no process is left."""
