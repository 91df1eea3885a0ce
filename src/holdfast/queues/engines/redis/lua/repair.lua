-- Set aside every index of the wrong type. ARGV: kinds of cells to check as well. Returns the names of the keys that
-- were set aside.
local TYPES = { jobs = 'zset', queues = 'set', completions = 'hash', pauses = 'hash', stones = 'zset',
  lengths = 'zset', waited = 'zset', used = 'zset', slots = 'zset', sizes = 'hash', uniques = 'hash', expiries = 'zset',
  buckets = 'zset', watched = 'hash', notes = 'zset', rebuild = 'hash' }
local OF_QUEUE = { failed = 'zset', again = 'set', leased = 'zset', renewed = 'zset', blocked = 'zset',
  completed = 'zset', dead = 'zset', cancelled = 'zset', wake = 'list' }
local found = {}

local function check(name, wanted)
  local kind = call('TYPE', base .. name).ok
  local is_damaged = kind ~= wanted and kind ~= 'none'
  if is_damaged then
    set_aside(name)
    found[#found + 1] = name
  end
  return is_damaged
end

for name, wanted in pairs(TYPES) do
  check(name, wanted)
end
for _, queue in ipairs(call('SMEMBERS', base .. 'queues')) do
  for name, wanted in pairs(OF_QUEUE) do
    check(name .. ':' .. queue, wanted)
  end
  for priority = 0, 9 do
    check('ready:' .. queue .. ':' .. priority, 'zset')
  end
end

for _, name in ipairs(call('ZRANGE', base .. 'used', 0, 999)) do
  check('places:' .. name, 'hash')
  if not check('queues:' .. name, 'set') then
    for _, queue in ipairs(call('SMEMBERS', base .. 'queues:' .. name)) do
      check('waiting:' .. name .. ':' .. queue, 'zset')
    end
  end
end

-- A sweep also uses the kinds of the cells that expire next.
local kinds = {}
for _, kind in ipairs(ARGV) do
  kinds[kind] = true
end
for _, name in ipairs(call('ZRANGE', base .. 'expiries', 0, 999)) do
  kinds[string.match(name, '^(%S+) ') or ''] = true
end
for kind in pairs(kinds) do
  local cells = base .. 'cells:' .. kind
  if check('cells:' .. kind, 'hash') then
    call('UNLINK', base .. 'keys:' .. kind)
  elseif check('keys:' .. kind, 'zset') then
    for _, key in ipairs(call('HKEYS', cells)) do
      call('ZADD', base .. 'keys:' .. kind, 0, key)
    end
  end
end

-- Counts have to be whole numbers; these are counted again.
for _, number in ipairs(call('HVALS', base .. 'completions')) do
  if not string.match(number, '^-?%d+$') or #number > 15 then
    set_aside('completions')
    found[#found + 1] = 'completions'
    break
  end
end

-- The next number is greater than that of every job.
local number = try('GET', base .. 'number')
if number and not (text(number) and string.match(number, '^%d+$') and #number <= 15) then
  set_aside('number')
  found[#found + 1] = 'number'
  call('SET', base .. 'number', call('ZREVRANGE', base .. 'jobs', 0, 0, 'WITHSCORES')[2] or 0)
end
return found
