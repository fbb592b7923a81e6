-- A session that was put away: closed, and listed on demand only.
DROP INDEX sessions_by_activity;
DROP INDEX sessions_by_status;
ALTER TABLE sessions ADD COLUMN archived_at INTEGER;

CREATE INDEX sessions_present ON sessions (tenant, last_active_at, session_id) WHERE archived_at IS NULL;
CREATE INDEX sessions_present_by_status ON sessions (tenant, status, last_active_at, session_id)
    WHERE archived_at IS NULL;
CREATE INDEX sessions_archived ON sessions (tenant, last_active_at, session_id) WHERE archived_at IS NOT NULL;
CREATE INDEX sessions_by_agent ON sessions (tenant, agent, last_active_at, session_id)
    WHERE agent IS NOT NULL AND archived_at IS NULL;
