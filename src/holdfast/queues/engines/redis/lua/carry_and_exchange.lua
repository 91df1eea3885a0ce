-- Settle, then claim. ARGV: queue, limit, claim, length of the lease, limit of crashes, jobs, what settlements carry,
-- settlements. Returns the jobs still to be compared, the answers, the leases, and the ids of dead-lettered jobs.
local open, answers = settle_and_carry(6, ARGV[5])
if not answers then
  return { open }
end
return { open, answers, claim(ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])), dead_lettered }
