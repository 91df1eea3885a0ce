-- The scripts that were applied, and when. DDL commits by itself, so each statement can be repeated if its script was
-- interrupted.
CREATE TABLE IF NOT EXISTS holdfast_schema (
    version    INT    NOT NULL PRIMARY KEY,
    applied_at BIGINT NOT NULL
) ENGINE = InnoDB;

-- The record of every job with its signed message. Times are microseconds since the epoch, UTC.
-- state: 0 waiting, 1 failed, 2 processing, 3 blocked, 4 completed, 5 dead, 6 cancelled, 7 deleted (a tombstone:
-- the message is deleted, `digest` identifies the content, and `finished_at` is when the id becomes free).
-- Columns that a claim or an acknowledgement changes have a fixed width and are never NULL, so that InnoDB updates them
-- in place. Names are stored as bytes, so that no collation treats two of them as equal.
CREATE TABLE IF NOT EXISTS holdfast_jobs (
    seq            BIGINT         NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id             VARBINARY(255) NOT NULL,
    queue          VARBINARY(63)  NOT NULL,
    job            TEXT           NOT NULL,
    priority       TINYINT        NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state          TINYINT        NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 7),
    due_at         BIGINT         NOT NULL,
    accepted_at    BIGINT         NOT NULL,
    trace_id       TEXT,
    attempts       INT            NOT NULL DEFAULT 0,
    crashes        INT            NOT NULL DEFAULT 0,
    deliveries     INT            NOT NULL DEFAULT 0,
    owner_token    BINARY(16)     NOT NULL DEFAULT '',
    claimed_at     BIGINT         NOT NULL DEFAULT 0,
    lease_us       BIGINT         NOT NULL DEFAULT 0,
    lease_until    BIGINT         NOT NULL DEFAULT 0,
    finished_at    BIGINT         NOT NULL DEFAULT 0,
    expired        TINYINT        NOT NULL DEFAULT 0,
    ignore_expiry  TINYINT        NOT NULL DEFAULT 0,
    cancel_request LONGTEXT,
    cancel_reason  LONGTEXT,
    dead_reason    VARCHAR(63),
    last_error     LONGTEXT,
    digest         VARBINARY(64),
    wire           LONGBLOB       NOT NULL,
    -- Lane, mark and since follow from the columns above, and are written together with them. Waiting jobs have the
    -- lanes 0 to 9, the most urgent first. Every other state has one lane (its number plus 8).
    lane           TINYINT        NOT NULL CHECK (lane BETWEEN 0 AND 15),
    -- The key within a lane: the queue of a waiting job (the first half of its SHA-256), the claim of a leased one,
    -- zeros for all others.
    mark           BINARY(16)     NOT NULL,
    -- When the job is due, was claimed or has finished.
    since          BIGINT         NOT NULL,
    UNIQUE KEY by_id (id),
    -- The only index that a claim or a verdict changes. Its last columns are for counting.
    KEY by_turn (lane, mark, since, id, queue, state)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;

-- The end of each delivery, written in the transaction that settled or reaped it: the claim and the verdict, by which a
-- repeated settlement is recognised (both NULL if the job was reaped), and the record of the attempt.
CREATE TABLE IF NOT EXISTS holdfast_attempts (
    seq           BIGINT NOT NULL,
    delivery      INT    NOT NULL,
    owner_token   BINARY(16),
    verdict       VARCHAR(31),
    outcome       VARCHAR(31),
    started_at    BIGINT,
    ended_at      BIGINT,
    error_type    LONGTEXT,
    error_message LONGTEXT,
    traceback     LONGTEXT,
    output        LONGTEXT,
    result        LONGBLOB,
    note          LONGTEXT,
    PRIMARY KEY (seq, delivery)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;

-- The progress of running jobs: only the latest report.
CREATE TABLE IF NOT EXISTS holdfast_progress (
    seq      BIGINT   NOT NULL PRIMARY KEY,
    delivery INT      NOT NULL,
    done     DOUBLE   NOT NULL,
    total    DOUBLE,
    message  LONGTEXT NOT NULL,
    at       BIGINT   NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;

-- A claim locks the gate of its token, so that the same claim, sent twice, does not stamp two batches.
CREATE TABLE IF NOT EXISTS holdfast_gates (
    gate SMALLINT NOT NULL PRIMARY KEY
) ENGINE = InnoDB;

INSERT IGNORE INTO holdfast_gates (gate)
SELECT a.n + 4 * b.n + 16 * c.n + 64 * d.n
FROM (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS a
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS b
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS c
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS d;

CREATE TABLE IF NOT EXISTS holdfast_pauses (
    queue  VARBINARY(63) NOT NULL PRIMARY KEY,
    reason LONGTEXT      NOT NULL,
    since  BIGINT        NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;

CREATE TABLE IF NOT EXISTS holdfast_facts (
    kind VARBINARY(255)  NOT NULL,
    fact VARBINARY(1024) NOT NULL,
    PRIMARY KEY (kind, fact)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The registry of workers, for operators: no job depends on it. `report` is JSON, written by the worker's version of
-- Holdfast. The worker is lost from `lost_at` on, unless it sends another heartbeat.
CREATE TABLE IF NOT EXISTS holdfast_workers (
    id         VARBINARY(255) NOT NULL PRIMARY KEY,
    heard_at   BIGINT         NOT NULL,
    lost_at    BIGINT         NOT NULL,
    stop_order VARCHAR(31),
    report     LONGTEXT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;
