"""transcript_appender: everything that was said and done, appended and never changed.

Owns `transcript_appender/00000001.db` (the truth) and `keywords.db` beside it (derived, may be deleted).

Promises
* An acknowledged event is on the disk (fsync before the answer) and has its place: `seq` without gaps, from 1.
* The same `event_id`, or the same `request_id` within a tenant, is one event, however often it is sent.
* An acknowledged event is found by keyword in the next request.
* A broken keyword index never holds up an append, and is made again without anybody's help.

Invariants
* `max(seq) = count(*)` of events; `sessions` is what one would count from `events`.
* Nothing is acknowledged that a reader could not see.

    actor.py      the trio side: group commit
    worker.py     the process: who does what on which lane
    drafts.py     pure: what of a client's event is acceptable, and its hash
    appending.py  one transaction for a batch: ids, times, duplicates
    store.py      events: the statements
    sessions.py   the summary of sessions: the statements
    search.py     keyword search: rows for the index, candidates from its hits
    schema.sql

It is not the place where sessions are opened and closed (core_writer), and knows nothing of generations.
"""
