-- The transcript: what was said and done, immutable, in the order of arrival.
--
-- A file with another schema than this one is taken for damaged (comments and spaces don't count): what changes more
-- than those needs a new user_version.

PRAGMA application_id = 0x62685452; -- "bhTR"
PRAGMA user_version = 1;

-- identity: uuid of the data directory; clock: the last time that was given to an event without one (µs); first_seq:
-- where this segment begins (absent: 1); restored: it took the place of a damaged one.
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- seq counts from first_seq without gaps. What filters look at stands before the content, so that a filter reads one
-- page of a row and not the overflow pages of a long one. ts is µs UTC; tags and meta are JSON.
CREATE TABLE events (
    seq INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    ts INTEGER NOT NULL,
    kind TEXT NOT NULL,
    actor TEXT NOT NULL,
    scope TEXT NOT NULL,
    channel TEXT,
    project TEXT,
    trace_id TEXT,
    request_id TEXT,
    content_hash BLOB NOT NULL CHECK (length(content_hash) = 32),
    tags TEXT NOT NULL,
    meta TEXT,
    content TEXT NOT NULL
) STRICT;

CREATE INDEX events_by_session ON events (tenant, session_id, seq);

-- Which event a request led to: its own, or the one that it was found to repeat.
CREATE TABLE requests (
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (tenant, request_id)
) STRICT, WITHOUT ROWID;

-- A summary of each session, kept in the transaction that appends.
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    first_ts INTEGER NOT NULL,
    last_ts INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    events INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_id)
) STRICT, WITHOUT ROWID;

CREATE UNIQUE INDEX sessions_by_last_seq ON sessions (last_seq);

-- Events without an id that are young enough to be repeated by mistake; empty while duplicate_window_s is 0.
-- key is a sha256 over tenant, source and content hash; ts the event's time, seen when it arrived.
CREATE TABLE recent (
    key BLOB PRIMARY KEY,
    seq INTEGER NOT NULL,
    ts INTEGER NOT NULL,
    seen INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX recent_by_seen ON recent (seen);
