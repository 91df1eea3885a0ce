-- Slots, which are semaphores held by running jobs, and unique keys. A transaction that decides about a slot locks its
-- row first and reads the other tables afterwards.

-- `fence` is the last fence number assigned. If `size` is null, the size in a job's message applies. No job enters
-- before `closed_until`.
CREATE TABLE holdfast.slots (
    fence        bigint  NOT NULL,
    closed_until bigint  NOT NULL DEFAULT 0,
    size         integer,
    name         text    COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Places that are taken. A row with a token is valid while its job is processing under that token with an unexpired
-- lease. A row without one is a promotion and is valid while its job is due or claimed in `queue`. Before `until`, new
-- jobs cannot take the place.
CREATE TABLE holdfast.places (
    seq         bigint NOT NULL,
    fence       bigint NOT NULL,
    since       bigint NOT NULL,
    until       bigint,
    slot        text   COLLATE "C" NOT NULL,
    queue       text   COLLATE "C" NOT NULL,
    owner_token bytea,
    PRIMARY KEY (slot, seq)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX places_by_job ON holdfast.places (seq);

-- The slot that each blocked job waits for. A row whose job is not blocked is stale. `lane` is 9 minus the priority,
-- and `size` is the size of the slot according to the job's message.
CREATE TABLE holdfast.blocked (
    seq    bigint   PRIMARY KEY,
    due_at bigint   NOT NULL,
    since  bigint   NOT NULL,
    size   integer  NOT NULL,
    lane   smallint NOT NULL,
    slot   text     COLLATE "C" NOT NULL,
    queue  text     COLLATE "C" NOT NULL,
    id     text     COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX blocked_by_turn ON holdfast.blocked (slot, queue, lane, due_at, id);

-- The job that was last stored with each unique key, or '', and the end of its period, or 0.
CREATE TABLE holdfast.uniques (
    until bigint NOT NULL,
    key   text   COLLATE "C" PRIMARY KEY,
    id    text   COLLATE "C" NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
