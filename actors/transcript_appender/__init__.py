"""transcript_appender: everything that was said and done, appended and never changed.

Owns the segments `transcript_appender/00000001.db …` (the truth; the last one is written to), their catalogue
`segments.json`, and what is derived and may be deleted: `keywords.db`, and in `readable/` what is left of damaged ones.

Promises
* An acknowledged event is on the disk (fsync before the answer) and has its place: `seq` ascends from 1, without gaps
  within a segment; the catalogue explains a gap between two.
* The same `event_id`, or the same `request_id` within a tenant, is one event, however often it is sent.
* An acknowledged event is found by keyword in the next request.
* A broken keyword index never holds up an append, and is made again without anybody's help.
* A full segment is sealed and the next one begun; nobody waits longer than for a few fsyncs, and no read sees an event
  twice or not at all because of it. No event is added to a sealed segment.
* A damaged segment is sealed as it is and a new one begun; appends go on. What can be read of it is served, content
  that does not match its hash never, and answers say what may be missing. By command a good copy takes its place.

Invariants
* In a segment `max(seq) - first_seq + 1 = count(*)` of events; `sessions` is what one would count from its `events`.
* No seq is given out twice, whatever was lost.
* Nothing is acknowledged that a reader could not see.

    actor.py      the trio side: group commit
    worker.py     the process: who does what on which lane
    drafts.py     pure: what of a client's event is acceptable, and its hash
    appending.py  one transaction for a batch: ids, times, duplicates
    store.py      events: the statements
    sessions.py   the summary of sessions: the statements
    reading.py    reads over all segments, and what may be missing from them
    search.py     keyword search: rows for the index, candidates from its hits
    schema.sql

    catalogue.py  segments.json: which segments there are, in which state
    segments.py   at the start: find the segment to write to, seal a damaged one
    rotation.py   when a segment is full: the next one takes its place, and everybody goes on
    archiving.py  what stays of a segment when an archive takes its place
    examine.py    a look at a file that changes nothing
    soundness.py  pure: could this row have been written?
    layout.py     has the file the tables that it must have?
    views.py      reading a damaged file row by row
    salvage.py    copies of what is left of damaged segments
    shelf.py      the earlier segments, as one lane has them open
    restoring.py  a good copy in the place of a damaged segment

Of a segment that was archived (by generation_builder, on command or by age) a list of its events stays: `archived/`.

It is not the place where sessions are opened and closed (core_writer), and knows nothing of generations.
"""
