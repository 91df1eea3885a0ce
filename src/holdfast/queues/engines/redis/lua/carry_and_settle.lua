-- ARGV: limit of crashes, jobs, what settlements carry, settlements. Returns the jobs still to be compared, the
-- answers, and the unique key that refuses the call, with the job that has it.
local open, answers, conflict = settle_and_carry(2, ARGV[1])
return { open, answers, conflict }
