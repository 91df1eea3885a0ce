-- Slots, which running jobs hold and blocked jobs wait for, and the keys of unique jobs.

-- The last fence number assigned, the size that was set, if any, and until when the slot admits no job, or 0.
CREATE TABLE holdfast_slots (
    name         TEXT PRIMARY KEY,
    fence        INTEGER NOT NULL,
    size         INTEGER,
    closed_until INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- A place is valid while its job is processing under `owner_token` and the lease has not expired. Without a token, the
-- job was promoted, and its place is valid while the job is due or claimed in `queue`. Before `until`, new jobs cannot
-- take it.
CREATE TABLE holdfast_places (
    slot        TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    queue       TEXT    NOT NULL,
    owner_token BLOB,
    fence       INTEGER NOT NULL,
    since       INTEGER NOT NULL,
    until       INTEGER NOT NULL,
    PRIMARY KEY (slot, seq)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_places_by_job ON holdfast_places (seq);

-- The slot that a job waits for, with the order in which jobs are promoted. A row is valid while its job is blocked.
CREATE TABLE holdfast_blocked (
    seq    INTEGER PRIMARY KEY,
    slot   TEXT    NOT NULL,
    queue  TEXT    NOT NULL,
    lane   INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    id     TEXT    NOT NULL,
    size   INTEGER NOT NULL,
    since  INTEGER NOT NULL
) STRICT;

CREATE INDEX holdfast_blocked_by_turn ON holdfast_blocked (slot, queue, lane, due_at, id);

-- The job that was last stored with a key, and the end of its period, or 0.
CREATE TABLE holdfast_uniques (
    key   TEXT PRIMARY KEY,
    id    TEXT    NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
