-- Edges between jobs that wait for others and the jobs that they wait for.

-- policy: 0 cancel, 1 run, 2 wait. outcome: 0 open, 1 met, 2 cancelled. Edges are deleted with their child.
CREATE TABLE holdfast_edges (
    parent  INTEGER NOT NULL,
    child   INTEGER NOT NULL,
    policy  INTEGER NOT NULL,
    outcome INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (child, parent)
) STRICT, WITHOUT ROWID;

CREATE INDEX holdfast_edges_by_parent ON holdfast_edges (parent, outcome, policy);

-- Blocked jobs are counted and listed by this index.
CREATE INDEX holdfast_edges_open ON holdfast_edges (child) WHERE outcome = 0;

-- Parents whose edges may disagree with their states.
CREATE TABLE holdfast_notes (
    parent INTEGER PRIMARY KEY
) STRICT;
