-- Finished jobs are counted by state and queue in this index, without reading their rows.
CREATE INDEX holdfast_jobs_tally ON holdfast_jobs (state, queue) WHERE state >= 4;
