-- ARGV: queue, limit, claim, length of the lease.
return { claim(ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])), dead_lettered }
