-- Which of these scripts were applied, and when. A definition commits by itself, so each may be repeated, should its
-- script have been cut off.
CREATE TABLE IF NOT EXISTS holdfast_schema (
    version    INT    NOT NULL PRIMARY KEY,
    applied_at BIGINT NOT NULL
) ENGINE = InnoDB;

-- The record of every job with its signed message. Times are microseconds since the epoch, UTC.
-- state: 0 waiting, 1 failed, 2 processing, 3 blocked, 4 completed, 5 dead, 6 cancelled, 7 forgotten (a tombstone:
-- the message is gone, `digest` knows the content again, `finished_at` is when the id becomes free).
-- What a claim and an acknowledgement change has a fixed width and is never NULL, so that InnoDB changes it in place.
-- Names that are compared are bytes: no collation takes two of them for the same.
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
    -- Where a job stands: it follows from the above, and is written with it. The lanes 0 to 9 are those who wait, the
    -- most urgent first, then comes one lane for each state (its number and 8).
    lane           TINYINT        NOT NULL CHECK (lane BETWEEN 0 AND 15),
    -- What a lane is looked up by: those who wait by their queue (the first half of its SHA-256), those who run by
    -- their claim, the others by nothing (zeros).
    mark           BINARY(16)     NOT NULL,
    -- Since when: due, claimed or finished.
    since          BIGINT         NOT NULL,
    UNIQUE KEY by_id (id),
    -- The only index that a claim or a verdict touches. It ends with what counting needs.
    KEY by_turn (lane, mark, since, id, queue, state)
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;

-- How each delivery ended, written with the change it caused: by which claim and with which verdict (neither, if the
-- reaper ended it), so that a repeated settlement is recognised, and what the attempt has to tell.
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

-- How far a running job says it is: the latest report of its latest delivery that made one.
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

-- Which workers there are, for people only: no job depends on it. `report` is JSON, as the worker's own version of
-- Holdfast writes it. From `lost_at` on the worker counts as lost, unless it is heard again.
CREATE TABLE IF NOT EXISTS holdfast_workers (
    id         VARBINARY(255) NOT NULL PRIMARY KEY,
    heard_at   BIGINT         NOT NULL,
    lost_at    BIGINT         NOT NULL,
    stop_order VARCHAR(31),
    report     LONGTEXT       NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin ROW_FORMAT = DYNAMIC;
