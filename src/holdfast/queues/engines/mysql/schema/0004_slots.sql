-- Slots, which are semaphores held by running jobs, and the keys of unique jobs.

-- Each row is the lock of a slot. `fence` is the last fence number assigned, `size` is the number of places that was set,
-- if any, and no job enters before `closed_until`.
CREATE TABLE IF NOT EXISTS holdfast_slots (
    name         VARBINARY(1024) NOT NULL PRIMARY KEY,
    fence        BIGINT          NOT NULL,
    size         INT,
    closed_until BIGINT          NOT NULL DEFAULT 0
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The places that are taken. A row with a token is valid while its job is leased by that claim. A row without one is a
-- promotion and is valid while its job is due or claimed in `queue`. Before `until`, new jobs cannot take the place.
CREATE TABLE IF NOT EXISTS holdfast_places (
    slot        VARBINARY(1024) NOT NULL,
    seq         BIGINT          NOT NULL,
    queue       VARBINARY(63)   NOT NULL,
    owner_token BINARY(16),
    fence       BIGINT          NOT NULL,
    since       BIGINT          NOT NULL,
    until       BIGINT          NOT NULL,
    PRIMARY KEY (slot, seq),
    KEY by_job (seq)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The jobs that wait for a slot. A row is valid while its job is blocked. `lane` is 9 minus the priority, and `size` is
-- the number of places according to the job's message.
CREATE TABLE IF NOT EXISTS holdfast_blocked (
    seq    BIGINT          NOT NULL PRIMARY KEY,
    slot   VARBINARY(1024) NOT NULL,
    queue  VARBINARY(63)   NOT NULL,
    lane   TINYINT         NOT NULL,
    due_at BIGINT          NOT NULL,
    id     VARBINARY(255)  NOT NULL,
    size   INT             NOT NULL,
    since  BIGINT          NOT NULL,
    KEY by_turn (slot, queue, lane, due_at, id)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The job that was last stored with a unique key, and the end of its period, or 0. If a key has no row, a caller
-- inserts one without a job, so that there is a row to lock.
CREATE TABLE IF NOT EXISTS holdfast_uniques (
    name  VARBINARY(1024) NOT NULL PRIMARY KEY,
    id    VARBINARY(255)  NOT NULL,
    until BIGINT          NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
