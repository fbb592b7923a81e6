"""A wall clock that jumps: for one daemon and its workers, by a preloaded library; the machine's clock is left alone.

The library adds an offset to CLOCK_REALTIME (clock_gettime, gettimeofday, time) and nothing to any other clock. The
offset is in a file that every process of the daemon maps, so a jump happens everywhere at once. It is compiled when it
is needed; where there is no C compiler, or no preloading, `compile_library` says why and the scenario is skipped.
"""

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

OFFSET_FILE = "BULKHEAD_CHAOS_CLOCK"
SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *offset_ns;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("BULKHEAD_CHAOS_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(0, sizeof(long long), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) offset_ns = page;
}

int clock_gettime(clockid_t which, struct timespec *now) {
    if (!real_clock_gettime) real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock_gettime(which, now);
    if (failed || which != CLOCK_REALTIME || !offset_ns) return failed;
    long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + *offset_ns;
    now->tv_sec = ns / 1000000000LL;
    now->tv_nsec = ns % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec at;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &at);
    now->tv_sec = at.tv_sec;
    now->tv_usec = at.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *where) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (where) *where = at.tv_sec;
    return at.tv_sec;
}
"""


class NoShim(Exception):
    """The wall clock of a process cannot be changed here; the text says why."""


class WallClock:
    """The offset of the wall clock of every process that is started with `environment`."""

    def __init__(self, folder: Path) -> None:
        self._library = compile_library(folder, "clock", SOURCE)
        self._file = folder / "clock.offset"
        self._file.write_bytes(struct.pack("=q", 0))

    def environment(self) -> dict[str, str]:
        """Return what a process needs in its environment from its start."""
        return {"LD_PRELOAD": str(self._library), OFFSET_FILE: str(self._file)}

    def set(self, seconds: float) -> None:
        """Let the wall clock be so many seconds ahead (negative: behind), at once and everywhere."""
        with self._file.open("r+b", buffering=0) as file:  # in place: the processes have it mapped
            file.write(struct.pack("=q", int(seconds * 1e9)))


def compile_library(folder: Path, name: str, code: str) -> Path:
    """Compile a library to be preloaded into a folder and return it; raise NoShim where that is not possible."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if sys.platform != "linux" or compiler is None:
        raise NoShim(f"the library {name!r} needs Linux and a C compiler (cc)")
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(code, encoding="ascii")
    command = [compiler, "-shared", "-fPIC", "-O1", "-U_FORTIFY_SOURCE", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoShim(f"the library {name!r} does not compile: {done.stderr[-500:]}")
    check = [sys.executable, "-c", "import time; print(time.time())"]
    shown = subprocess.run(
        check, env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True, check=False
    )
    if shown.returncode:
        raise NoShim(f"the library {name!r} cannot be preloaded: {shown.stderr[-500:]}")
    return library
