-- Dependencies between jobs.

-- The job `child` waits for the job `parent` while `outcome` is 0. policy: 0 cancel, 1 run, 2 wait. outcome: 0 open, 1
-- met, 2 cancelled. The rows of a child are deleted with its record.
CREATE TABLE IF NOT EXISTS holdfast_edges (
    parent  BIGINT  NOT NULL,
    child   BIGINT  NOT NULL,
    policy  TINYINT NOT NULL CHECK (policy BETWEEN 0 AND 2),
    outcome TINYINT NOT NULL DEFAULT 0 CHECK (outcome BETWEEN 0 AND 2),
    PRIMARY KEY (parent, child),
    KEY by_parent (parent, outcome, policy, child),
    KEY by_child (child, outcome)
) ENGINE = InnoDB;

-- Jobs that have ended or were replayed, deleted, or got a child, and whose edges may disagree with their states. A job
-- may have several notes: with a unique key, a worker would wait for a caller whose transaction left a note on the same
-- job.
CREATE TABLE IF NOT EXISTS holdfast_notes (
    id     BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    parent BIGINT NOT NULL,
    KEY by_parent (parent)
) ENGINE = InnoDB;
