CREATE SCHEMA IF NOT EXISTS "holdfast";

-- The scripts that were applied, and when.
CREATE TABLE IF NOT EXISTS holdfast.schema (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Accepted jobs: written once, with the signed message, and not changed until the job is deleted. Times are
-- microseconds since the epoch, UTC.
CREATE TABLE holdfast.jobs (
    seq         bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    accepted_at bigint   NOT NULL,
    due_at      bigint   NOT NULL,
    priority    smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    id          text     COLLATE "C" NOT NULL,
    queue       text     COLLATE "C" NOT NULL,
    job         text     COLLATE "C" NOT NULL,
    trace_id    text,
    wire        bytea    NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);

CREATE UNIQUE INDEX jobs_id ON holdfast.jobs (id);

-- The state of unfinished jobs: narrow rows, because a claim rewrites them. A job is either here or in `ended_jobs`.
-- state: 0 waiting, 1 failed, 2 processing, 3 blocked. Only processing jobs have a token, so a statement that checks
-- the token does not check the state, unless it uses an index that needs the state.
CREATE TABLE holdfast.open_jobs (
    seq            bigint   PRIMARY KEY,
    due_at         bigint   NOT NULL,
    claimed_at     bigint,
    lease_us       bigint,
    lease_until    bigint,
    attempts       integer  NOT NULL DEFAULT 0,
    crashes        integer  NOT NULL DEFAULT 0,
    deliveries     integer  NOT NULL DEFAULT 0,
    priority       smallint NOT NULL CHECK (priority BETWEEN 0 AND 9),
    state          smallint NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),
    ignore_expiry  boolean  NOT NULL DEFAULT false,
    id             text     COLLATE "C" NOT NULL,
    queue          text     COLLATE "C" NOT NULL,
    owner_token    bytea,
    cancel_request text,
    last_error     text,
    CHECK ((state = 2) = (owner_token IS NOT NULL)),
    CHECK (state <> 2 OR lease_until IS NOT NULL)
) WITH (
    -- Every row is rewritten once and then deleted: leave room for that in its page, and vacuum long before a fifth of
    -- a large table is dead.
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.1, autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Only the jobs that a claim can take: leased jobs are not in this index.
CREATE INDEX open_jobs_ready ON holdfast.open_jobs (queue, priority, due_at, id) WHERE state <= 1;

-- Leases are few: this index finds the jobs of a repeated claim, and is small enough for the reaper to scan.
CREATE INDEX open_jobs_leased ON holdfast.open_jobs (owner_token) WHERE state = 2;

-- Finished jobs. state: 4 completed, 5 dead, 6 cancelled, 7 deleted (a tombstone: the message is deleted, `digest`
-- identifies the content, and `finished_at` is when the id becomes free). A success without a result or output is
-- stored here (`owner_token`, `started_at`, `ended_at`), without a row in the attempts.
CREATE TABLE holdfast.ended_jobs (
    seq           bigint   PRIMARY KEY,
    finished_at   bigint   NOT NULL,
    due_at        bigint   NOT NULL,
    started_at    bigint,
    ended_at      bigint,
    attempts      integer  NOT NULL,
    crashes       integer  NOT NULL,
    deliveries    integer  NOT NULL,
    state         smallint NOT NULL CHECK (state BETWEEN 4 AND 7),
    expired       boolean  NOT NULL DEFAULT false,
    ignore_expiry boolean  NOT NULL,
    queue         text     COLLATE "C" NOT NULL,
    owner_token   bytea,
    cancel_reason text,
    dead_reason   text,
    last_error    text,
    digest        bytea
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);

CREATE INDEX ended_jobs_finished ON holdfast.ended_jobs (state, finished_at, seq);

-- The end of each delivery, written in the transaction that settled or reaped it: the claim and the verdict, by which a
-- repeated settlement is recognised (both NULL if the job was reaped), and the record of the attempt.
CREATE TABLE holdfast.attempts (
    seq           bigint  NOT NULL,
    started_at    bigint,
    ended_at      bigint,
    delivery      integer NOT NULL,
    owner_token   bytea,
    verdict       text,
    outcome       text,
    error_type    text,
    error_message text,
    traceback     text,
    output        bytea, -- UTF-8: a program may print a NUL, which text cannot hold
    result        bytea,
    note          text,
    PRIMARY KEY (seq, delivery)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);

-- The progress of running jobs: only the latest report.
CREATE TABLE holdfast.progress (
    seq      bigint PRIMARY KEY,
    delivery integer          NOT NULL,
    done     double precision NOT NULL,
    total    double precision,
    message  text             NOT NULL,
    at       bigint           NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE TABLE holdfast.pauses (
    queue  text COLLATE "C" PRIMARY KEY,
    reason text   NOT NULL,
    since  bigint NOT NULL
);

CREATE TABLE holdfast.facts (
    kind text COLLATE "C" NOT NULL,
    fact text COLLATE "C" NOT NULL,
    PRIMARY KEY (kind, fact)
);

-- The registry of workers, for operators: no job depends on it. `report` is JSON, written by the worker's version of
-- Holdfast. The worker is lost from `lost_at` on, unless it sends another heartbeat.
CREATE TABLE holdfast.workers (
    id         text COLLATE "C" PRIMARY KEY,
    heard_at   bigint NOT NULL,
    lost_at    bigint NOT NULL,
    stop_order text,
    report     text   NOT NULL
);
