"""generation_builder: makes LanceDB generations from the truth, publishes them, and retires them.

Owns the index folder (`actors/generation.py` knows its paths): the generations, the pointer CURRENT, the lock. All
of it may be deleted at any time: it is derived from the events, the units and the notes, and built again.

Promises
    * A generation is complete, tested, durable and immutable before anybody sees it: built in `gen-N.tmp`, tested,
      fsynced, described by a manifest with a hash of every file, renamed, and only then named by CURRENT.
    * The same truth gives the same rows in the same order, hence the same answers: by words at every size, by meaning
      up to the size of a vector index (its training cannot be seeded; above, its recall is tested).
    * A build that fails, is killed or runs out of disk leaves what served before as it was, and no file behind.
    * Nothing that cannot be read is taken for deleted: its rows are taken over from the generation before.
    * What is left out is told, with the reason.
    * Embedding is never waited for: a row without a vector has none, is listed as pending, and gets one in a later
      delta or generation.
    * What is acknowledged is in a delta a second or two later, also while a full generation is being built: a delta is
      as complete, tested, durable and immutable as a generation, and is replaced whole.

The trio side (in the daemon) decides what is built and when; actor.py wires it together:
    desk.py wishes.py seat.py   what its tasks share: the house and the worker; what is asked for; who does the work
    steps.py                    where a build is, shown; pace.py (pure) estimates speed and time left
    looking.py watching.py      how far the truth is ahead, is the index still there; which roots are to be walked now
    deltas.py rebuilding.py     when a delta, or a full generation, is made, and what came of it; ending one
    full_build.py               one full generation: its process, catching up, publication
    building.py                 one build, step by step, of either
    publishing.py               what is served and what goes
    verifying.py scrubbing.py   is it still what was sealed, and do searches find what they should; slowly, all the time
    archiving.py                a sealed segment of the transcript becomes an archive
    embedding.py ahead.py       missing vectors, into the cache; those of new rows first
    giving_way.py               searches go before embedding
    counting.py                 what was accepted and what of it can be found: item_states.py (pure)
    succession.py               a change of the embedding model

Two workers (processes) do it, step by step: one makes the deltas and looks after the folder, another one comes and
goes with each full generation, at the lowest priority:
    worker.py        child entry; lanes; errors end the build
    draft.py         the build under way: stage, write, index, test, seal     draft_table.py   one table of it
    staging.py       rows on their way into a table (Arrow IPC)       vectors.py   vectors by hash
    store.py         tables: the code here that touches LanceDB       faults.py    its errors
    vector_index.py  the vector index of a table: build, test, drop
    shelf.py         sealed generations: recover, flip, retire        index_lock.py
    documents.py     notes of a scan into rows; what is held          scan_report.py
    roots.py         the last walk of each root, at its own pace     patience.py   calls to file systems that may hang
    delta.py         what makes a delta of a draft: what is handed on, read anew, masked
    earlier.py       what an earlier view has that can be used again
    archive_lane.py archive_file.py  events into a Parquet file, read back before it has its name
    sampling.py      questions about a view whose answers are known   scrub.py     a sealed folder, read again in pieces
and, pure:
    changes.py (which notes differ)  chunk.py  rows.py  pending.py  probes.py  skips.py  ignore.py  index_policy.py
    pace.py  deferring.py (which notes wait)  rounds.py (when a root is walked)
    watch_mode.py (events or polling; debounce)
    (scan.py reads folders, not files)

The embedding worker (another process; neither LanceDB nor Arrow in it): embedder.py. The process that watches the
source roots (the same): watcher.py, root_watch.py (one root).
"""
