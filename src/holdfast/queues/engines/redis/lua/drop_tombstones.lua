-- Delete expired tombstones. ARGV: how many. Returns how many were deleted.
local old = call('ZRANGEBYSCORE', base .. 'stones', '-inf', now, 'LIMIT', 0, ARGV[1])
for _, id in ipairs(old) do
  call('UNLINK', base .. 'job:' .. id)
  call('ZREM', base .. 'stones', id)
end
return #old
