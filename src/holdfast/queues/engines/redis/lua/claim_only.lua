-- ARGV: queue, limit, claim, length of the lease. Returns the leases, and the ids of dead-lettered jobs.
return { claim(ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])), dead_lettered }
