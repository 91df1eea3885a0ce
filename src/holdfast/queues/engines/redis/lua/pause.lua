-- ARGV: queue, reason.
return call('HSET', base .. 'pauses', ARGV[1], at_once .. ' ' .. ARGV[2])
