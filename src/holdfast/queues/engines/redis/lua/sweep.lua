-- Delete expired cells and full buckets. ARGV: how many of each. Returns how many were deleted.
local cells = call('ZRANGEBYSCORE', base .. 'expiries', '-inf', now, 'LIMIT', 0, ARGV[1])
for _, name in ipairs(cells) do
  local kind, key = string.match(name, '^(%S+) (.*)$')
  if kind then
    call('HDEL', base .. 'cells:' .. kind, key)
    call('ZREM', base .. 'keys:' .. kind, key)
  end
end
write('ZREM', 'expiries', cells)
local full = call('ZRANGEBYSCORE', base .. 'buckets', '-inf', now, 'LIMIT', 0, ARGV[1])
write('ZREM', 'buckets', full)
return #cells + #full
