-- Work that was put down: who holds it, what became of it, and which events of a session were given to a summary.

-- status and ready_at: a queued job without ready_at can be leased, one with it not before then. token counts the
-- leases of a job and never goes back; lease_expires_at stands while it is leased. causes: why attempts came to
-- nothing, the last ones, as JSON. finished_at stands with done and cancelled, which are dropped some time later.
CREATE TABLE jobs (
    job_seq INTEGER PRIMARY KEY,
    job_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('queued', 'leased', 'done', 'dead', 'cancelled')),
    priority INTEGER NOT NULL,
    key TEXT,
    session_id TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    ready_at INTEGER,
    attempts INTEGER NOT NULL,
    attempts_max INTEGER NOT NULL,
    token INTEGER NOT NULL,
    worker TEXT,
    lease_expires_at INTEGER,
    finished_at INTEGER,
    causes TEXT NOT NULL,
    payload TEXT,
    result TEXT
) STRICT;

CREATE UNIQUE INDEX jobs_open_key ON jobs (tenant, kind, key)
    WHERE key IS NOT NULL AND status IN ('queued', 'leased');
CREATE INDEX jobs_ready ON jobs (tenant, kind, priority DESC, job_seq) WHERE status = 'queued' AND ready_at IS NULL;
CREATE INDEX jobs_waiting ON jobs (tenant, ready_at) WHERE status = 'queued' AND ready_at IS NOT NULL;
CREATE INDEX jobs_retried ON jobs (ready_at) WHERE status = 'queued' AND ready_at IS NOT NULL AND attempts > 0;
CREATE INDEX jobs_leased ON jobs (lease_expires_at) WHERE status = 'leased';
CREATE INDEX jobs_finished ON jobs (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX jobs_by_status ON jobs (tenant, status, kind, job_seq);

-- Up to which event a session was given to summarize jobs, how many events it had then, the last of these jobs, and
-- when the next one is due (NULL: nothing says so yet).
CREATE TABLE summaries (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    until_seq INTEGER NOT NULL,
    events INTEGER NOT NULL,
    job_id TEXT,
    due_at INTEGER,
    PRIMARY KEY (tenant, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX summaries_due ON summaries (due_at) WHERE due_at IS NOT NULL;
