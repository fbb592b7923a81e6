"""Import LanceDB without its client for remote catalogues, which this house never talks to.

`import lancedb` spends more than half of its 2.6 s of CPU on `lance_namespace`: some hundred generated pydantic models.
Only annotations and error classes of it are looked at when a local database is opened. In the worker processes, and
nowhere else, empty classes stand in for them; whatever really needed one would fail loudly and at once. The version of
LanceDB is pinned, so an update of it is checked against this by the tests of the rooms.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import MutableSequence, Sequence

LEFT_OUT = frozenset({"lance_namespace", "lance_namespace_urllib3_client"})


class _Placeholder(types.ModuleType):
    """A module that has every name: an empty class, or an exception where the name says so."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__path__: MutableSequence[str] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        bases = (Exception,) if name.endswith(("Error", "Exception")) else ()
        made = type(name, bases, {"__doc__": "Stands in for a class that is left out."})
        setattr(self, name, made)
        return made


class _LeaveOut(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the modules that are left out, before anybody else does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] not in LEFT_OUT:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Placeholder(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        """Do nothing: the names make themselves."""


def leave_out_catalogues() -> None:
    """Have every later `import lancedb` of this process go without the catalogue client. Call it first."""
    sys.meta_path.insert(0, _LeaveOut())
