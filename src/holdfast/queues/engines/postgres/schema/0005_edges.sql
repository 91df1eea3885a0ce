-- Dependencies between jobs.

-- The job `child` waits for the job `parent` while `outcome` is 0. policy: 0 cancel, 1 run, 2 wait. outcome: 0 open, 1
-- met, 2 cancelled. The rows of a child are deleted with its record.
CREATE TABLE holdfast.edges (
    parent  bigint   NOT NULL,
    child   bigint   NOT NULL,
    policy  smallint NOT NULL CHECK (policy BETWEEN 0 AND 2),
    outcome smallint NOT NULL DEFAULT 0 CHECK (outcome BETWEEN 0 AND 2),
    PRIMARY KEY (parent, child)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.1);

CREATE INDEX edges_by_child ON holdfast.edges (child);

-- The edges that the end or a replay of the parent may change.
CREATE INDEX edges_unmet ON holdfast.edges (parent, outcome, policy, child) WHERE outcome <> 1;

-- Jobs that have ended or were replayed, deleted, or got a child, and whose edges may disagree with their states. A job
-- may have several notes: with a unique key, a worker would wait for a caller whose transaction left a note on the same
-- job.
CREATE TABLE holdfast.notes (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    parent bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
