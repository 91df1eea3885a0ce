-- The scripts that were applied, and when.
CREATE TABLE IF NOT EXISTS holdfast_schema (
    version    INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL
) STRICT;

-- The record of every job, small and often updated. Times are microseconds since the epoch, UTC.
-- state: 0 waiting, 1 failed, 2 processing, 3 blocked, 4 completed, 5 dead, 6 cancelled, 7 deleted (a tombstone:
-- the message is deleted, `digest` identifies the content, and `finished_at` is when the id becomes free).
CREATE TABLE holdfast_jobs (
    seq            INTEGER PRIMARY KEY,
    id             TEXT    NOT NULL,
    queue          TEXT    NOT NULL,
    job            TEXT    NOT NULL,
    priority       INTEGER NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state          INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 7),
    due_at         INTEGER NOT NULL,
    accepted_at    INTEGER NOT NULL,
    trace_id       TEXT,
    attempts       INTEGER NOT NULL DEFAULT 0,
    crashes        INTEGER NOT NULL DEFAULT 0,
    deliveries     INTEGER NOT NULL DEFAULT 0,
    ignore_expiry  INTEGER NOT NULL DEFAULT 0,
    owner_token    BLOB,
    claimed_at     INTEGER,
    lease_us       INTEGER,
    lease_until    INTEGER,
    cancel_request TEXT,
    cancel_reason  TEXT,
    dead_reason    TEXT,
    expired        INTEGER NOT NULL DEFAULT 0,
    finished_at    INTEGER,
    last_error     TEXT,
    digest         BLOB,
    CHECK (state <> 2 OR lease_until IS NOT NULL)
) STRICT;

CREATE UNIQUE INDEX holdfast_jobs_id ON holdfast_jobs (id);

-- Only the jobs that a claim can take: finished and leased jobs are not in this index.
CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (queue, priority, due_at, id, state) WHERE state <= 1;

-- Leases are few: this index finds the jobs of a repeated claim, and is small enough for the reaper to scan.
CREATE INDEX holdfast_jobs_leased ON holdfast_jobs (owner_token, queue, lease_until) WHERE state = 2;

CREATE INDEX holdfast_jobs_finished ON holdfast_jobs (state, finished_at, queue) WHERE state >= 4;

-- The signed message, written once and never changed: an update of a job does not rewrite its payload.
CREATE TABLE holdfast_messages (
    seq  INTEGER PRIMARY KEY,
    wire BLOB NOT NULL
) STRICT;

-- The end of each delivery, written in the transaction that settled or reaped it: the claim and the verdict, by which a
-- repeated settlement is recognised (both NULL if the job was reaped), and the record of the attempt.
CREATE TABLE holdfast_attempts (
    seq           INTEGER NOT NULL,
    delivery      INTEGER NOT NULL,
    owner_token   BLOB,
    verdict       TEXT,
    outcome       TEXT,
    started_at    INTEGER,
    ended_at      INTEGER,
    error_type    TEXT,
    error_message TEXT,
    traceback     TEXT,
    output        TEXT,
    result        BLOB,
    note          TEXT,
    PRIMARY KEY (seq, delivery)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_pauses (
    queue  TEXT PRIMARY KEY,
    reason TEXT    NOT NULL,
    since  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_facts (
    kind TEXT NOT NULL,
    fact TEXT NOT NULL,
    PRIMARY KEY (kind, fact)
) STRICT, WITHOUT ROWID;
