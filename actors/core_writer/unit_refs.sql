-- Which units rest on an event, by their latest versions. Derived from units.event_refs, in the same transactions.
CREATE TABLE unit_refs (
    tenant TEXT NOT NULL,
    event_id TEXT NOT NULL,
    unit_id TEXT NOT NULL,
    PRIMARY KEY (tenant, event_id, unit_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX unit_refs_by_unit ON unit_refs (unit_id);

INSERT OR IGNORE INTO unit_refs (tenant, event_id, unit_id)
SELECT u.tenant, r.value, u.unit_id FROM units AS u, json_each(u.event_refs) AS r WHERE u.latest = 1;
