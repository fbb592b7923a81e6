"""core_writer: what evolves: sessions, memory units, markdown roots, and numbers that must never repeat.

Owns `core_writer/core.db` (the truth) and `keywords.db` beside it (derived, may be deleted).

Promises
* An acknowledged change is on the disk (fsync before the answer), once, however often its request_id is sent.
* A unit is never overwritten: a change appends a version, and `expected_version` refuses to build on an old one.
* `core_seq` grows by one with each change of a unit, in the same transaction; so does `sources_seq` with the roots.
* A generation number is given out once.
* Damaged files are never written to: what can be read of them is served, a copy is set aside, and only a restore by
  command (from a backup, or of what can be read) makes the room writable again. No number is given out twice by that.

Invariants
* Each unit has exactly one latest version; older versions are deprecated (or forgotten), never active.
* What the transcript says of a session is adopted, not invented; adopting twice changes nothing.

    actor.py      the trio side: follows the transcript's sessions
    worker.py     the process: who does what on which lane
    store.py      the kind of file, counters, generation numbers
    requests.py   exactly once: the first result of a request
    continuity.py restoring.py    is every change there that was counted; what a restore must mend and carry over
    sessions.py  units.py  sources.py    the statements and rules of each
    search.py     keyword search: rows for the index, candidates from its hits
    schema.sql

It knows no events (transcript_appender), and never opens a note.
"""
