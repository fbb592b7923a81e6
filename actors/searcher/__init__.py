"""searcher: from a question to candidates, and from candidates to an answer.

Two processes like `worker.py` are kept by the actor, one active and one warm spare; LanceDB lives only in them. The
actor asks a worker for candidates of a view (a generation, or a generation with a delta over it) and, at the same time,
the truth for keyword hits newer than that view; `ranking.py` makes one order of both.

    actor.py   reply.py               the trio side: what is asked of whom, what the client reads
    asking.py  blame.py               whose turn it is, who is asked and who as well; what a search answers for
    truth.py                          what the truth has found, and for how long it is waited for
    pool.py    pair.py                the lives of the two workers; who is in which place, and whether to trust it
    hedging.py recycling.py           pure: when to ask the second worker too; when a worker has served long enough
    ranking.py                        pure: two lists to one order; exact names; the rows newer than a generation
    confidence.py                     pure: are the best hits about the question at all
    preferences.py                    pure, off by default: newer hits, hits that differ
    leases.py                         pure: which view serves, who reads which, whose files may go
    worker.py                         the child's entry: what it takes, on which lane
    search.py                         one search in a worker, and what is said when a list is missing
    query_vectors.py models.py        the vector of a question, bounded in time; the models of this process
    comparing.py                      pure: how far two generations agree, when the embedding model changes
    trying.py                         a verification's questions, asked as people's are
    store.py                          views opened for reading: one list of the rows of both folders
    lance_tables.py  lance_queries.py the tables of one folder, opened and checked; one query of one table. LanceDB is
                                      touched in these three only
    lance_filters.py masking.py       pure: Filters to conditions; which rows of a generation a delta hides
    vector_index.py                   pure: how thoroughly the index of a table is asked
    bm25.py                           pure: the keyword score, with the frequencies of two tables
    documents.py                      lines of a note under a registered root

Failover. A death is seen by the end of the pipe, and what was in hand is repeated by the other worker at once. A worker
that is stopped or stuck is seen by those who wait for it (twice the 95th percentile, 40 to 250 ms; then the other one
is asked as well, and when it answers while the first one is mute, everything moves over), by its missing beats (600 ms:
it is asked no more; 2 s: it is killed) and by what it owes (5 s: killed). Measured with keyword searches from the fault
to the answer of those under way: SIGSTOP at most 67 ms (before there were hedges: 7 s, and by keyword only), SIGKILL at
most 64 ms; a search that begins within 2 s of a SIGSTOP takes at most 87 ms (20 ms otherwise).

What a worker promises: a view is served only after every byte of its folders was compared with their manifests and each
table was opened at its sealed version and probed; nothing in it is ever written; the keyword list does not wait for the
vector beyond `embed_deadline_ms`; a missing list has a reason in `degraded`:

    no_vectors             the generation was built without a model, or has no vector yet
    identity_mismatch      its vectors are of another space than the query's; never compared
    embedder_unavailable   the model failed, there is none, or it gave no usable vector
    embedding_late         the model did not answer in time, or is still busy with something earlier
    vector_search_late     the vector came, its search ran into the deadline
    no_terms               the question holds no word, and there was no vector list either

Decisions and what they rest on:

* Both lists are cut per corpus after the filters, so a narrow filter loses nothing. BM25 counts the frequencies of a
  whole table, not of the filtered part. Measured on conversations filtered by session, against an index for each
  session: no loss (LoCoMo R@5 54.0 against 53.1, fused on one of them 57.9 both; MemoryBank fused 96.0 and 93.4
  against 96.0 and 90.6). Where English outnumbers Chinese twelve to one in the same table, Chinese questions lose
  0.9 points of R@5 and 2.9 of nDCG@10, which is within the noise of the set.
* Each table has frequencies of its own, so scores of two corpora are only roughly comparable: a word that is rare
  among the units scores higher there. The three corpora are merged by them all the same.
* What is served, read, closed or doubted is always a view, known by its number (`split_view`), so a new delta is a
  swap like a new generation: searches under way end where they began. Views of one generation share it: a delta of
  1,000 rows is verified and opened in 30 ms, whatever lies below it.
* A delta has frequencies of its own, and a small one says nothing: the same row would score anything from a tenth to
  several times as much in it. With a delta every keyword hit is scored anew with the frequencies of both tables, less
  those of the rows that the delta masks, from the counts that the builder puts beside each table. So a view gives the
  hits and scores of a fresh generation of the same rows, which is tested. It costs 1 ms for 200 hits, and 1 to 2 ms
  for reading their terms.
* Masked rows are left out of what LanceDB found; see `lance_queries.py` for what the alternative costs.
* Vectors are searched exactly while a table is small, else by its index, refined with the full vectors, so the scores
  are exact in any case. The narrower the filters, the more of the index is looked into: they lose nothing either
  (`vector_index.py`; numbers in docs/MEASUREMENTS.md).
* Order within a list: score, then newest, id, piece. Where the limit cuts through rows of equal score, LanceDB
  chooses which of them are in the list: always the same for the same generation, the earliest written.
* A value of a filter is never printed into a condition: see `lance_queries._where` for the hole in LanceDB's own
  printer.
* LanceDB creates a folder that it is asked to open, so verification comes first; a closed table brings the process
  down when it is used, so generations are let go of and never closed.
"""
