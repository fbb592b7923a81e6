"""With which code the daemon ends; docs/OPERATIONS.md says what an outer manager should do with each.

Light: the first thing that a starting daemon imports. A process whose interpreter lock is held ends with 1, from C.
"""

OK = 0  # drained
INTERNAL = 70  # an internal error, or the truth has rested for too long
LISTENER = 71  # the listener died too often
WATCHDOG = 72  # the thread that watches the loop died
CANNOT_CREATE = 73  # the data directory cannot be created or used as it is, or its lock was removed
TEMPORARY = 75  # another daemon, a drain that would not end, a second signal, or a loop that stood still
CONFIG = 78  # the configuration is not usable
