-- What an agent asks a person for. One that is pending and whose time is over has expired, whether that is noted or not.
CREATE TABLE approvals (
    approval_id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    session_id TEXT,
    action TEXT NOT NULL,
    detail TEXT,
    status TEXT NOT NULL CHECK (status IN ('pending', 'approved', 'denied', 'expired')),
    requested_by TEXT NOT NULL,
    requested_at INTEGER NOT NULL,
    expires_at INTEGER,
    decided_by TEXT,
    decided_at INTEGER,
    reason TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX approvals_by_tenant ON approvals (tenant, approval_id);
CREATE INDEX approvals_by_status ON approvals (tenant, status, approval_id);
CREATE INDEX approvals_by_session ON approvals (tenant, session_id, approval_id) WHERE session_id IS NOT NULL;
CREATE INDEX approvals_to_expire ON approvals (expires_at) WHERE status = 'pending' AND expires_at IS NOT NULL;
