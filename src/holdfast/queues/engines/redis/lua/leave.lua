-- ARGV: worker.
call('ZREM', base .. 'workers', ARGV[1])
return call('UNLINK', base .. 'worker:' .. ARGV[1])
