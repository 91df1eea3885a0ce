-- Free ids that were known long enough, and forget lost workers. ARGV: how many ids, how long a worker stays lost.
local old = call('ZRANGEBYSCORE', base .. 'stones', '-inf', now, 'LIMIT', 0, ARGV[1])
for _, id in ipairs(old) do
  call('UNLINK', base .. 'job:' .. id)
  call('ZREM', base .. 'stones', id)
end
for _, worker in ipairs(call('ZRANGEBYSCORE', base .. 'workers', '-inf', now - ARGV[2])) do
  call('UNLINK', base .. 'worker:' .. worker)
  call('ZREM', base .. 'workers', worker)
end
return #old
