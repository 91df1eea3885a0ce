-- How many jobs of a queue have ended how is counted here, entry by entry, without looking at a job.
CREATE INDEX holdfast_jobs_tally ON holdfast_jobs (state, queue) WHERE state >= 4;
