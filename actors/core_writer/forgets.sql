-- Forgetting: what was ordered, and which items it was. Kept for ever, without any content.

-- state: ordered (some items may not be known yet), masked (nobody is answered with them), erased (no file of the truth
-- holds their content), gone (no generation does either). event_until and core_until: the last event and the last
-- change of units that are meant; event_cursor: up
-- to there all are known; unit_cursor: the same of units (core_seq); request_cursor: up to there the kept results of
-- requests were looked through. generation_after: no generation above this number holds any of it.
CREATE TABLE forgets (
    forget_seq INTEGER PRIMARY KEY,
    forget_id TEXT NOT NULL UNIQUE,
    tenant TEXT NOT NULL,
    scope TEXT NOT NULL,
    reason TEXT NOT NULL,
    principal TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('ordered', 'masked', 'erased', 'gone')),
    ordered_at INTEGER NOT NULL,
    masked_at INTEGER,
    erased_at INTEGER,
    gone_at INTEGER,
    event_until INTEGER NOT NULL,
    core_until INTEGER NOT NULL,
    event_cursor INTEGER NOT NULL DEFAULT 0,
    unit_cursor INTEGER NOT NULL DEFAULT 0,
    request_cursor INTEGER NOT NULL DEFAULT 0,
    generation_after INTEGER
) STRICT;

CREATE INDEX forgets_by_tenant ON forgets (tenant, forget_seq);
CREATE INDEX forgets_open ON forgets (forget_seq) WHERE state <> 'gone';

-- seq: the event's, 0 for a unit. erased: its content is gone from core.db (units) or the transcript (events).
CREATE TABLE tombstones (
    tombstone_seq INTEGER PRIMARY KEY,
    corpus TEXT NOT NULL CHECK (corpus IN ('events', 'units')),
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    seq INTEGER NOT NULL,
    forget_seq INTEGER NOT NULL,
    erased INTEGER NOT NULL DEFAULT 0 CHECK (erased IN (0, 1)),
    UNIQUE (corpus, id)
) STRICT;

CREATE INDEX tombstones_of_forget ON tombstones (forget_seq, corpus, tombstone_seq);
CREATE INDEX tombstones_to_erase ON tombstones (forget_seq, tombstone_seq) WHERE erased = 0;
