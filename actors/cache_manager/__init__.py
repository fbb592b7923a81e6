"""cache_manager: vectors that were paid for once.

Owns `cache_manager/cache.db`. Everything in it can be computed again, so the file may be deleted at any time, also
while it is in use, and a damaged, foreign or newer one is replaced by an empty one.

Promises
* The file does not outgrow `bytes_max` (its WAL is cut back to 8 MiB): the least recently used vectors give way
  before new ones are written, and freed pages are given back to the file system.
* A vector that comes back is the one that was put: its checksum is compared, its length is that of its identity.
* A full disk is not an error here: what can't be kept is dropped and counted.

Invariants
* `entries` and `vectors` have the same ids.

    actor.py    the trio side: a plain relay
    worker.py   the process: who does what on which lane
    file.py     the file: opened, noticed when gone, replaced when damaged
    store.py    the statements
    schema.sql

It never computes a vector, and nobody waits for it: every refusal is a miss.
"""
