-- The embedding cache. Everything in it can be computed again.

PRAGMA application_id = 0x62684341; -- "bhCA"
PRAGMA user_version = 1;

-- tick: the access clock. It moves once a batch of gets or puts, not once an access.
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- An embedding identity and the dimensions of its vectors.
CREATE TABLE identities (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    dimensions INTEGER NOT NULL
) STRICT;

-- Which vectors there are, and when each was used last. Apart from the vectors, because SQLite rewrites all of a
-- row that is updated: a look-up must not cost the disk a copy of what it read.
CREATE TABLE entries (
    id INTEGER PRIMARY KEY,
    identity INTEGER NOT NULL,
    key BLOB NOT NULL CHECK (length(key) = 32),
    used INTEGER NOT NULL,
    UNIQUE (identity, key)
) STRICT;

CREATE INDEX entries_by_use ON entries (used);

-- vector is little-endian float32; checksum a CRC-32 over key and vector, as nothing else would notice a flipped bit.
CREATE TABLE vectors (
    id INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    vector BLOB NOT NULL
) STRICT;
