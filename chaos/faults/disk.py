"""A faulty disk for SQLite: a VFS between the library and the file system, registered through its public ABI.

The default VFS is copied, opening is overridden, and each database, WAL and rollback journal that is opened gets a
table of methods of our own, which asks the plan, and keeps unsynced writes in an overlay when the disk is volatile.
The WAL index (-shm) is mapped memory and not covered; recovery makes it anew.

Installed into the very library that Python's sqlite3 uses: its symbols are looked up through that module. An
interpreter that hides them (linked statically) gets `Unavailable`, and scenarios are skipped with its reason.

A callback of ctypes that raises would answer SQLITE_OK, so each of ours turns an exception into an I/O error.
"""

import _sqlite3
import ctypes
import random
import sqlite3
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from chaos.faults.disk_plan import DiskPlan, Verdict
from chaos.faults.kinds import DiskVolatile, FileClass, Operation
from chaos.faults.overlay import BLOCK, Overlay

NAME = b"bulkhead-faults"
OK, IOERR, IOERR_SHORT_READ = 0, 10, 10 | (2 << 8)
_FILE_CLASSES: dict[int, FileClass] = {0x100: "db", 0x800: "journal", 0x80000: "wal"}

_pointer, _int, _int64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_OPEN = ctypes.CFUNCTYPE(_int, _pointer, _pointer, _pointer, _int, _pointer)
_DELETE = ctypes.CFUNCTYPE(_int, _pointer, _pointer, _int)
_CLOSE = ctypes.CFUNCTYPE(_int, _pointer)
_TRANSFER = ctypes.CFUNCTYPE(_int, _pointer, _pointer, _int, _int64)
_TRUNCATE = ctypes.CFUNCTYPE(_int, _pointer, _int64)
_SYNC = ctypes.CFUNCTYPE(_int, _pointer, _int)
_SIZE = ctypes.CFUNCTYPE(_int, _pointer, ctypes.POINTER(_int64))


class _Vfs(ctypes.Structure):
    """`struct sqlite3_vfs`, version 3."""

    _fields_ = [
        ("iVersion", _int),
        ("szOsFile", _int),
        ("mxPathname", _int),
        ("pNext", _pointer),
        ("zName", ctypes.c_char_p),
        ("pAppData", _pointer),
        ("xOpen", _OPEN),
        ("xDelete", _DELETE),
        ("others", _pointer * 14),
    ]


class _Methods(ctypes.Structure):
    """`struct sqlite3_io_methods`, version 2: without memory mapping, which would pass us by."""

    _fields_ = [
        ("iVersion", _int),
        ("xClose", _CLOSE),
        ("xRead", _TRANSFER),
        ("xWrite", _TRANSFER),
        ("xTruncate", _TRUNCATE),
        ("xSync", _SYNC),
        ("xFileSize", _SIZE),
        ("others", _pointer * 10),
        ("mapping", _pointer * 2),
    ]


class _File(ctypes.Structure):
    """`struct sqlite3_file`: what every file of every VFS begins with."""

    _fields_ = [("pMethods", ctypes.POINTER(_Methods))]


class Unavailable(Exception):
    """The library cannot be reached in this interpreter; the text says why."""


class _Failed(Exception):
    """A call of the real file failed with a result code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"SQLite result {code}")
        self.code = code


class _OpenFile:
    """An open file: whose it is, and its real methods. The backing of an overlay."""

    def __init__(self, address: int, real: Any, file_class: FileClass, path: str) -> None:
        self.address = address
        self.real = real
        self.file_class = file_class
        self.path = path

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the real file, zeros beyond its end."""
        buffer = ctypes.create_string_buffer(length)
        code = self.real.xRead(self.address, ctypes.addressof(buffer), length, offset)
        if code not in (OK, IOERR_SHORT_READ):
            raise _Failed(code)
        return buffer.raw

    def write(self, offset: int, data: bytes) -> None:
        """Write to the real file."""
        buffer = ctypes.create_string_buffer(data, len(data))
        _require(self.real.xWrite(self.address, ctypes.addressof(buffer), len(data), offset))

    def truncate(self, size: int) -> None:
        """Cut the real file off."""
        _require(self.real.xTruncate(self.address, size))

    def size(self) -> int:
        """Return the size of the real file."""
        found = _int64()
        _require(self.real.xFileSize(self.address, ctypes.byref(found)))
        return found.value


class Disk:
    """The faulty disk of this process. Make one, and before the first database is opened."""

    def __init__(self, plan: DiskPlan) -> None:
        self.plan = plan
        self._library = library()
        self._volatile: DiskVolatile | None = None
        self._overlays: dict[str, Overlay] = {}
        self._files: dict[int, _OpenFile] = {}
        self._tables: dict[int, _Methods] = {}
        self._lock = threading.RLock()
        self._register()

    def make_volatile(self, fault: DiskVolatile) -> None:
        """Keep unsynced writes of the files that the fault names in this process from now on."""
        self._volatile = fault

    def state(self) -> dict[str, object]:
        """Return how much is unsynced."""
        with self._lock:
            unsynced = sum(overlay.unsynced_bytes for overlay in self._overlays.values())
        return {"volatile": self._volatile is not None, "unsynced_bytes": unsynced, **self.plan.state()}

    def _register(self) -> None:
        find = self._library.sqlite3_vfs_find
        find.restype = ctypes.POINTER(_Vfs)
        real = find(None)
        self._real = real.contents
        self._vfs = _Vfs()
        ctypes.memmove(ctypes.byref(self._vfs), real, ctypes.sizeof(_Vfs))
        self._vfs.iVersion = min(3, self._real.iVersion)
        self._vfs.zName = NAME
        self._vfs.pNext = None
        self._vfs.xOpen = _OPEN(_guarded(self._open))
        self._vfs.xDelete = _DELETE(_guarded(self._delete))
        # SQLite keeps pointers into this object, and connections may be closed after the interpreter dropped it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))
        code = self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        if code != OK:
            raise Unavailable(f"sqlite3_vfs_register answered {code}")
        try:
            sqlite3.connect(f"file::memory:?vfs={NAME.decode()}", uri=True).close()
        except sqlite3.Error as error:
            raise Unavailable(
                f"the VFS went to another copy of SQLite than the module sqlite3 uses: {error}"
            ) from error

    # ------------------------------------------------------------ the VFS

    def _open(self, _: int, name: int | None, file: int, flags: int, out_flags: int | None) -> int:
        code: int = self._real.xOpen(ctypes.addressof(self._real), name, file, flags, out_flags)
        file_class = next((kind for bit, kind in _FILE_CLASSES.items() if flags & bit), None)
        if code != OK or name is None or file_class is None:
            return code
        opened = _File.from_address(file)
        real = opened.pMethods.contents
        path = ctypes.string_at(name).decode(errors="surrogateescape")
        with self._lock:
            self._files[file] = _OpenFile(file, real, file_class, path)
            opened.pMethods = ctypes.pointer(self._table(real))
        return OK

    def _table(self, real: _Methods) -> _Methods:
        """Return our table for a table of real methods; one is enough for all files that share it."""
        address = ctypes.addressof(real)
        if address not in self._tables:
            table = _Methods()
            # The real table may be of version 1 and shorter, but then SQLite does not look further in ours either.
            size = ctypes.sizeof(_Methods) - (0 if real.iVersion >= 3 else ctypes.sizeof(_pointer * 2))
            ctypes.memmove(ctypes.byref(table), ctypes.addressof(real), size)
            table.iVersion = min(2, real.iVersion)
            table.xClose = _CLOSE(_guarded(self._close))
            table.xRead = _TRANSFER(_guarded(self._read))
            table.xWrite = _TRANSFER(_guarded(self._write))
            table.xTruncate = _TRUNCATE(_guarded(self._truncate))
            table.xSync = _SYNC(_guarded(self._sync))
            table.xFileSize = _SIZE(_guarded(self._size))
            self._tables[address] = table
        return self._tables[address]

    def _delete(self, _: int, name: int, sync_folder: int) -> int:
        with self._lock:
            self._overlays.pop(ctypes.string_at(name).decode(errors="surrogateescape"), None)
        code: int = self._real.xDelete(ctypes.addressof(self._real), name, sync_folder)
        return code

    # ------------------------------------------------------------ the methods of a file

    def _close(self, address: int) -> int:
        with self._lock:
            file = self._files.pop(address)
        code: int = file.real.xClose(address)
        return code

    def _read(self, address: int, buffer: int, length: int, offset: int) -> int:
        file, verdict = self._begin(address, "read")
        if verdict.code:
            return verdict.code
        with self._lock:
            overlay = self._overlay(file)
            if overlay is not None:
                ctypes.memmove(buffer, overlay.read(file, offset, length), length)
                return OK if offset + length <= overlay.size(file) else IOERR_SHORT_READ
        code: int = file.real.xRead(address, buffer, length, offset)
        return code

    def _write(self, address: int, buffer: int, length: int, offset: int) -> int:
        file, verdict = self._begin(address, "write")
        if verdict.code:
            if verdict.partial:
                self._put(file, buffer, max(0, (offset + length - 1) // BLOCK * BLOCK - offset), offset)
            return verdict.code
        return self._put(file, buffer, length, offset)

    def _put(self, file: _OpenFile, buffer: int, length: int, offset: int) -> int:
        with self._lock:
            overlay = self._overlay(file)
            if overlay is not None:
                overlay.write(file, offset, ctypes.string_at(buffer, length))
                return OK
        code: int = file.real.xWrite(file.address, buffer, length, offset)
        return code

    def _truncate(self, address: int, size: int) -> int:
        file, verdict = self._begin(address, "truncate")
        if verdict.code:
            return verdict.code
        with self._lock:
            overlay = self._overlay(file)
            if overlay is not None:
                overlay.truncate(file, size)
                return OK
        code: int = file.real.xTruncate(address, size)
        return code

    def _sync(self, address: int, flags: int) -> int:
        file, verdict = self._begin(address, "sync")
        with self._lock:
            overlay = self._overlay(file)
            if overlay is not None and verdict.code:
                overlay.condemn()
            elif overlay is not None:
                overlay.flush(file)
        if verdict.code:
            return verdict.code
        code: int = file.real.xSync(address, flags)
        return code

    def _size(self, address: int, found: Any) -> int:
        with self._lock:
            file = self._files[address]
            overlay = self._overlay(file)
            if overlay is not None:
                found[0] = overlay.size(file)
                return OK
        code: int = file.real.xFileSize(address, found)
        return code

    def _begin(self, address: int, operation: Operation) -> tuple[_OpenFile, Verdict]:
        file = self._files[address]
        verdict = self.plan.decide(operation, file.file_class, file.path)
        if verdict.delay_s:
            time.sleep(verdict.delay_s)
        return file, verdict

    def _overlay(self, file: _OpenFile) -> Overlay | None:
        """Return the overlay of a file, which all of its connections share; None when the disk is not volatile."""
        overlay = self._overlays.get(file.path)
        fault = self._volatile
        if overlay is None and fault is not None and _names(fault, file):
            rng = random.Random(f"{fault.seed} {file.path}")
            overlay = self._overlays[file.path] = Overlay(leak=fault.leak, rng=rng)
        return overlay


def library() -> ctypes.CDLL:
    """Return the SQLite that the module sqlite3 uses; raise Unavailable when its symbols cannot be reached."""
    path = getattr(_sqlite3, "__file__", None)
    found = ctypes.CDLL(path)  # looking up a name in a library looks into those that it is linked with
    try:
        found.sqlite3_libversion.restype = ctypes.c_char_p
        version = found.sqlite3_libversion().decode()
        _ = found.sqlite3_vfs_find, found.sqlite3_vfs_register
    except AttributeError as error:
        raise Unavailable(
            f"this interpreter ({sys.executable}) does not show the symbols of its SQLite: {error}"
        ) from error
    if version != sqlite3.sqlite_version:
        raise Unavailable(f"found SQLite {version}, the module sqlite3 uses {sqlite3.sqlite_version}")
    return found


def unavailable() -> str | None:
    """Return why there can be no faulty disk in this interpreter, None when there can."""
    try:
        library()
    except (Unavailable, OSError) as error:
        return str(error)
    return None


def _names(fault: DiskVolatile, file: _OpenFile) -> bool:
    return fault.file in (None, file.file_class) and (fault.name is None or fault.name in file.path)


def _require(code: int) -> None:
    if code != OK:
        raise _Failed(code)


def _guarded(method: Callable[..., int]) -> Callable[..., int]:
    def guarded(*arguments: Any) -> int:
        try:
            return method(*arguments)
        except _Failed as error:
            return error.code
        except BaseException:
            traceback.print_exc()
            return IOERR

    return guarded
