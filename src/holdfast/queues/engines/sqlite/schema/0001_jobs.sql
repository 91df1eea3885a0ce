-- Which of these scripts were applied, and when.
CREATE TABLE IF NOT EXISTS holdfast_schema (
    version    INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL
) STRICT;

-- The record of every job, small and often updated. Times are microseconds since the epoch, UTC.
-- state: 0 waiting, 1 failed, 2 processing, 3 blocked, 4 completed, 5 dead, 6 cancelled, 7 forgotten (a tombstone:
-- the message is gone, `digest` knows the content again, `finished_at` is when the id becomes free).
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

-- What a claim looks at, and nothing else: finished and leased jobs are not in it.
CREATE INDEX holdfast_jobs_ready ON holdfast_jobs (queue, priority, due_at, id, state) WHERE state <= 1;

-- Leases are few: one index finds what a repeated claim already stamped, and is small enough for the reaper to walk.
CREATE INDEX holdfast_jobs_leased ON holdfast_jobs (owner_token, queue, lease_until) WHERE state = 2;

CREATE INDEX holdfast_jobs_finished ON holdfast_jobs (state, finished_at, queue) WHERE state >= 4;

-- The signed message, written once and never touched again: updating a job does not rewrite its payload.
CREATE TABLE holdfast_messages (
    seq  INTEGER PRIMARY KEY,
    wire BLOB NOT NULL
) STRICT;

-- How each delivery ended, written with the change it caused: by which claim and with which verdict (neither, if the
-- reaper ended it), so that a repeated settlement is recognised, and what the attempt has to tell.
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
