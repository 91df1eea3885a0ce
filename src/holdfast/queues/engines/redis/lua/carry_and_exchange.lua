-- Settle, then claim. ARGV: queue, limit, claim, length of the lease, limit of crashes, jobs, what settlements carry,
-- settlements. Returns the jobs still to be compared, the answers, the leases (or the unique key that refuses the call,
-- with the job that has it), and the ids of dead-lettered jobs.
local open, answers, conflict = settle_and_carry(6, ARGV[5])
if not answers then
  return { open, answers, conflict, dead_lettered }
end
return { open, answers, claim(ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])), dead_lettered }
