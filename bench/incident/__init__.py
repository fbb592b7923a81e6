"""The incident, side by side: the same work on Bulkhead and on one SQLite file, before and while the index is rebuilt.

What happened: 17,395 chunks of 1,536 dimensions lay in the file that also held sessions, transcript and approvals. A
rebuild of the index was published in one transaction; for as long as that took every write failed with `database is
locked` after 5 s, searches died at a fixed deadline, and the old error was replayed for a minute.

The two take turns, window by window, in one run, and never work at the same time. Both get the same notes, cut into the
same chunks, the same vectors from the same endpoint on loopback, the same questions, and the same clients at the same
pace, in a process of their own; both acknowledge after fsync. Prints tables, draws a picture, asserts nothing.

    work.py                           what both are given; the vectors too: chaos/vectors.py, chaos/endpoint.py
    memory.py load.py                 what a client does; the clients, one process for one system
    bulkhead.py                       Bulkhead: a real daemon on a real socket
    monolith.py                       the one file, as the incident describes it: single_file.py, reindex.py
    windows.py usage.py               one run: who has his turn when; memory and disk
    results.py measure.py             what was seen; sums over it (pure)
    table.py figure.py                what is printed and drawn (pure)
"""

from bench.incident.command import main

__all__ = ["main"]
