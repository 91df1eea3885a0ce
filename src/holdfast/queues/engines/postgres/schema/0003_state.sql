-- Shared state: small values that are written on conditions, and token buckets.

-- A dropped or expired cell stays until it is swept, so that the versions of its key keep growing. Version 0 means that
-- there is nothing under the key: a writer has inserted the row in order to lock it.
CREATE TABLE holdfast.cells (
    version    bigint NOT NULL,
    expires_at bigint,
    kind       text   COLLATE "C" NOT NULL,
    key        text   COLLATE "C" NOT NULL,
    value      bytea  NOT NULL,
    PRIMARY KEY (kind, key)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX cells_by_expiry ON holdfast.cells (expires_at) WHERE expires_at IS NOT NULL;

-- The instant at which a bucket will be full again. One in the past means full now.
CREATE TABLE holdfast.buckets (
    full_at bigint NOT NULL,
    name    text   COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

INSERT INTO holdfast.cells (kind, key, value, version)
SELECT kind, fact, '', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint FROM holdfast.facts;

DROP TABLE holdfast.facts;

DROP TABLE holdfast.workers;
