-- Settle, then claim. ARGV: queue, limit, claim, length of the lease, crash limit, settlements. Returns the answers,
-- the leases, and the ids of dead-lettered jobs.
local answers = settle(6, ARGV[5])
resolve_noted()
return { answers, claim(ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])), dead_lettered }
