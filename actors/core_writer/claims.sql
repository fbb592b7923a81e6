-- Whose turn a session is. A row is a lease: it says nothing once its time is over, and is dropped at leisure.
-- expires_ns is CLOCK_MONOTONIC of the boot `boot`; granted_at and expires_at (µs UTC) are for people to read. token
-- fences: of two claims on a session the later one has the higher.
CREATE TABLE claims (
    tenant TEXT NOT NULL,
    session_id TEXT NOT NULL,
    claim_id TEXT NOT NULL,
    holder TEXT,
    token INTEGER NOT NULL,
    lease_ms INTEGER NOT NULL CHECK (lease_ms > 0),
    granted_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    boot TEXT NOT NULL,
    expires_ns INTEGER NOT NULL,
    PRIMARY KEY (tenant, session_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX claims_by_end ON claims (expires_at);
