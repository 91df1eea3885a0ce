-- Shared state: small values that are written on conditions, and token buckets.

-- A dropped or expired cell stays until it is swept, so that the versions of its key keep growing.
CREATE TABLE holdfast_cells (
    kind TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    version INTEGER NOT NULL,
    expires_at INTEGER,
    PRIMARY KEY (kind, key)
) STRICT;

CREATE INDEX holdfast_cells_by_expiry ON holdfast_cells (expires_at) WHERE expires_at IS NOT NULL;

-- The instant at which a bucket will be full again. One in the past means full now.
CREATE TABLE holdfast_buckets (
    name TEXT NOT NULL PRIMARY KEY,
    full_at INTEGER NOT NULL
) STRICT;

INSERT INTO holdfast_cells (kind, key, value, version)
SELECT kind, fact, x'', CAST(strftime('%s', 'now') AS INTEGER) * 1000000 FROM holdfast_facts;

DROP TABLE holdfast_facts;

DROP TABLE holdfast_workers;
