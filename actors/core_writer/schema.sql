-- The evolving truth: sessions, units, markdown roots, and the counters that must never repeat.

PRAGMA application_id = 0x6268434F; -- "bhCO"
PRAGMA user_version = 1;

-- identity: uuid of the data directory; core_seq: the last change of a unit; sources_seq: of the roots;
-- generation: the last number given to one; sessions_cursor: up to which event the sessions are adopted;
-- writer_epoch: how often the file was opened for writing; core_seq_floor: changes up to there may be missing, as a
-- restore did not have them.
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- last_seq and events are what the transcript told last; closed_at and closed_seq what stood when it was closed.
CREATE TABLE sessions (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'closed')),
    title TEXT,
    agent TEXT,
    meta TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    last_active_at INTEGER NOT NULL,
    closed_at INTEGER,
    closed_seq INTEGER,
    last_seq INTEGER NOT NULL DEFAULT 0,
    events INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (tenant, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_by_activity ON sessions (tenant, last_active_at, session_id);
CREATE INDEX sessions_by_status ON sessions (tenant, status, last_active_at, session_id);

-- One row a version. core_seq numbers the changes of all units, without gaps. Exactly one version of a unit is the
-- latest. A unit_id belongs to one tenant, as generations know units by their id alone.
CREATE TABLE units (
    core_seq INTEGER PRIMARY KEY,
    unit_id TEXT NOT NULL,
    version INTEGER NOT NULL CHECK (version >= 1),
    latest INTEGER NOT NULL CHECK (latest IN (0, 1)),
    tenant TEXT NOT NULL,
    session_id TEXT,
    type TEXT NOT NULL,
    scope TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('active', 'deprecated', 'forgotten')),
    confidence REAL,
    parent_unit_id TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    tags TEXT NOT NULL,
    event_refs TEXT NOT NULL,
    facts TEXT,
    text TEXT NOT NULL,
    UNIQUE (unit_id, version)
) STRICT;

CREATE UNIQUE INDEX units_latest ON units (unit_id) WHERE latest = 1;
CREATE INDEX units_by_tenant ON units (tenant, core_seq) WHERE latest = 1;

-- Folders of markdown notes. The files are the truth; this is where to look for them.
CREATE TABLE sources (
    source_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    path TEXT NOT NULL,
    name TEXT NOT NULL,
    added_at INTEGER NOT NULL,
    UNIQUE (tenant, path),
    UNIQUE (tenant, name)
) STRICT;

-- The first result of each request, given again when the request is repeated. The oldest are dropped.
CREATE TABLE requests (
    id INTEGER PRIMARY KEY,
    tenant TEXT NOT NULL,
    request_id TEXT NOT NULL,
    method TEXT NOT NULL,
    result TEXT NOT NULL,
    ts INTEGER NOT NULL,
    UNIQUE (tenant, request_id)
) STRICT;
