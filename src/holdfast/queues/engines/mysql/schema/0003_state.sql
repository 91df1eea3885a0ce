-- Shared state: small values that are written on conditions, and token buckets.

-- A dropped or expired cell stays until it is swept, so that the versions of its key keep growing. Version 0 is a
-- placeholder, already expired: a writer inserts it if there is no cell, to have a row that it can lock.
CREATE TABLE IF NOT EXISTS holdfast_cells (
    kind       VARBINARY(63)   NOT NULL,
    name       VARBINARY(1024) NOT NULL,
    value      LONGBLOB        NOT NULL,
    version    BIGINT          NOT NULL,
    expires_at BIGINT,
    PRIMARY KEY (kind, name),
    KEY by_expiry (expires_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The instant at which a bucket will be full again. One in the past means full now.
CREATE TABLE IF NOT EXISTS holdfast_buckets (
    name    VARBINARY(1024) NOT NULL PRIMARY KEY,
    full_at BIGINT          NOT NULL,
    KEY by_time (full_at)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- An earlier run of this script may have been interrupted after it dropped the facts, which were cells by then.
CREATE TABLE IF NOT EXISTS holdfast_facts (
    kind VARBINARY(255)  NOT NULL,
    fact VARBINARY(1024) NOT NULL,
    PRIMARY KEY (kind, fact)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT INTO holdfast_cells (kind, name, value, version)
SELECT kind, fact, '', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM holdfast_facts
ON DUPLICATE KEY UPDATE value = VALUES(value);

DROP TABLE IF EXISTS holdfast_facts;

DROP TABLE IF EXISTS holdfast_workers;
