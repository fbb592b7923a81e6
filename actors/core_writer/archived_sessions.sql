-- A session that was put away: closed, and listed on demand only.
ALTER TABLE sessions ADD COLUMN archived_at INTEGER;

CREATE INDEX sessions_archived ON sessions (tenant, last_active_at, session_id) WHERE archived_at IS NOT NULL;
CREATE INDEX sessions_by_agent ON sessions (tenant, agent, last_active_at, session_id) WHERE agent IS NOT NULL;
