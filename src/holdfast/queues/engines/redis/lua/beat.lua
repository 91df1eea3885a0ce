-- ARGV: worker, report, how long it may be silent. Answers the order given to it.
local worker = base .. 'worker:' .. ARGV[1]
call('HSET', worker, 'report', ARGV[2], 'heard_at', now)
call('ZADD', base .. 'workers', now + ARGV[3], ARGV[1])
return call('HGET', worker, 'order')
