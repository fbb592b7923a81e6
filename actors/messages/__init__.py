"""Every message in the house, grouped by recipient. Read this second, after docs/ARCHITECTURE.md.

A message is a frozen, keyword-only, tagged msgspec struct. The same struct travels from the route to the
mailbox, and, where the work is storage, on to the worker process; there is no second vocabulary for the pipe.
Deadlines travel beside the message (in the envelope and in the frame), never inside it.

Units: times called `ts` are int64 microseconds since the epoch, UTC; `*_ms` are milliseconds; `seq` counts
events of this data directory from 1 upwards, without gaps within a segment; `core_seq` counts changes of units from 1.

`answer` is the type that the recipient replies with. `may_repeat` says whether the message may be given to the next
incarnation when one died with it in hand: true for reads, and for writes that are idempotent by an id.
Fields called `rows` and `row` are JSON or msgpack text made by the worker: the daemon relays them undecoded.
"""
