"""A process that dies in the middle of its work on files: SIGKILL at the n-th call of a kind, by a preloaded library.

Every process of a daemon that is started with `environment` carries the library. It counts the calls of one process,
the target, on paths with a certain part, by kind, and kills it right before or right after the call that was chosen:
made by Python, by Arrow or by LanceDB, all of them call the C library. What is to happen and what did is in a file that
all of them map. It is compiled when it is needed; where there is no C compiler, or no preloading, NoShim is raised.
"""

import mmap
import struct
import threading
from pathlib import Path

from chaos.clock import compile_library

CONTROL_FILE = "BULKHEAD_CHAOS_CALLS"
KINDS = ("open", "write", "sync", "rename", "unlink", "mkdir", "close")
# target, kind, left, after, fired, counts, part, path: `struct control` below.
LAYOUT = struct.Struct("=iiqii7q256s512s")
_TARGET = 0
NO_KIND = -1
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, WRITE, SYNC, RENAME, UNLINK, MKDIR, CLOSE, KINDS };

#pragma pack(push, 1)
struct control {
    volatile int target, kind;
    volatile long long left;
    volatile int after, fired;
    volatile long long counts[KINDS];
    volatile char part[256];
    volatile char path[512];
};
#pragma pack(pop)

static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("BULKHEAD_CHAOS_CALLS");
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    int fd = path ? real_open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int (*real_close)(int) = dlsym(RTLD_NEXT, "close");
    real_close(fd);
    if (page != MAP_FAILED) control = page;
}

static void die(const char *path) {
    strncpy((char *)control->path, path, sizeof control->path - 1);
    control->fired = 1;
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Count a call; return whether the process is to die after it (or die before it, here). */
static int meet(int kind, const char *path) {
    if (!strstr(path, (const char *)control->part)) return 0;
    __sync_fetch_and_add(&control->counts[kind], 1);
    if (control->kind != kind || __sync_sub_and_fetch(&control->left, 1) != 0) return 0;
    if (!control->after) die(path);
    return 1;
}

static int watched(void) { return control && control->target == getpid(); }

static int meet_at(int kind, int folder, const char *name) {
    char path[4096], link[64];
    if (!watched() || !name) return 0;
    if (name[0] == '/') return meet(kind, name);
    if (folder == AT_FDCWD) {
        if (!getcwd(path, sizeof path / 2)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, path, sizeof path / 2);
        if (length < 0) return 0;
        path[length] = 0;
    }
    size_t used = strlen(path);
    snprintf(path + used, sizeof path - used, "/%s", name);
    return meet(kind, path);
}

static int meet_fd(int kind, int fd) {
    char path[4096], link[64];
    if (!watched()) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return meet(kind, path);
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define DONE(result) do { if (last) die("after the call"); return result; } while (0)

#define OPENER(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int last = meet_at(OPEN, AT_FDCWD, path); int result = real(path, flags, mode); DONE(result); \
    }
#define OPENER_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest); \
        int last = meet_at(OPEN, folder, path); int result = real(folder, path, flags, mode); DONE(result); \
    }
#define OF_FD(type, kind, name, parameters, arguments) \
    type name parameters { REAL(name); int last = meet_fd(kind, fd); type result = real arguments; DONE(result); }
#define OF_PATH(kind, name, parameters, arguments, folder, path) \
    int name parameters { \
        REAL(name); int last = meet_at(kind, folder, path); int result = real arguments; DONE(result); \
    }

OPENER(open)
OPENER(open64)
OPENER_AT(openat)
OPENER_AT(openat64)
OF_FD(ssize_t, WRITE, write, (int fd, const void *data, size_t size), (fd, data, size))
OF_FD(ssize_t, WRITE, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
OF_FD(ssize_t, WRITE, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
OF_FD(ssize_t, WRITE, writev, (int fd, const struct iovec *parts, int count), (fd, parts, count))
OF_FD(int, SYNC, fsync, (int fd), (fd))
OF_FD(int, SYNC, fdatasync, (int fd), (fd))
OF_FD(int, CLOSE, close, (int fd), (fd))
OF_PATH(RENAME, rename, (const char *old, const char *new), (old, new), AT_FDCWD, old)
OF_PATH(RENAME, renameat, (int from, const char *old, int to, const char *new), (from, old, to, new), from, old)
OF_PATH(RENAME, link, (const char *old, const char *new), (old, new), AT_FDCWD, old)
OF_PATH(RENAME, linkat, (int from, const char *old, int to, const char *new, int flags),
        (from, old, to, new, flags), from, old)
OF_PATH(UNLINK, unlink, (const char *path), (path), AT_FDCWD, path)
OF_PATH(UNLINK, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), folder, path)
OF_PATH(UNLINK, rmdir, (const char *path), (path), AT_FDCWD, path)
OF_PATH(MKDIR, mkdir, (const char *path, mode_t mode), (path, mode), AT_FDCWD, path)
OF_PATH(MKDIR, mkdirat, (int folder, const char *path, mode_t mode), (folder, path, mode), folder, path)
"""


class SyscallKiller:
    """Decides at which of its calls a process dies. `close` it when the daemon is gone."""

    def __init__(self, folder: Path) -> None:
        self._library = compile_library(folder, "calls", SOURCE)
        self._file = folder / "calls.control"
        self._file.write_bytes(bytes(LAYOUT.size))
        with self._file.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), LAYOUT.size)
        self._lock = threading.Lock()
        self.disarm()

    def environment(self) -> dict[str, str]:
        """Return what a process needs in its environment from its start."""
        return {"LD_PRELOAD": str(self._library), CONTROL_FILE: str(self._file)}

    def count(self, pid: int, part: str) -> None:
        """Count the calls of a process on paths with this part, from zero, and let it live."""
        self._write(pid, NO_KIND, 0, part, after=False)

    def arm(self, pid: int, kind: str, nth: int, part: str, *, after: bool = False) -> None:
        """Kill a process at (or right `after`) its `nth` call of a kind from now on, on paths with this part."""
        assert nth >= 1, "calls are counted from 1"
        self._write(pid, KINDS.index(kind), nth, part, after=after)

    def disarm(self) -> None:
        """Neither count nor kill anybody."""
        self._write(0, NO_KIND, 0, "", after=False)

    def counts(self) -> dict[str, int]:
        """Return how many calls of each kind the target has made since it was named."""
        return dict(zip(KINDS, LAYOUT.unpack(self._page[:])[5:12], strict=True))

    def fired(self) -> str | None:
        """Return the path at whose call the target died, None while it has not."""
        fields = LAYOUT.unpack(self._page[:])
        return fields[13].rstrip(b"\0").decode(errors="replace") if fields[4] else None

    def close(self) -> None:
        """Unmap the file."""
        self._page.close()

    def _write(self, pid: int, kind: int, left: int, part: str, *, after: bool) -> None:
        with self._lock:
            struct.pack_into("=i", self._page, _TARGET, 0)  # nobody, while the rest is written
            self._page[:] = LAYOUT.pack(0, kind, left, after, 0, *[0] * len(KINDS), part.encode(), b"")
            struct.pack_into("=i", self._page, _TARGET, pid)
