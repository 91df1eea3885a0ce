-- Set aside every index of the wrong type. Answers their names.
local TYPES = { jobs = 'zset', queues = 'set', completions = 'hash', pauses = 'hash', stones = 'zset',
  lengths = 'zset', expiries = 'zset', buckets = 'zset' }
local OF_QUEUE = { failed = 'zset', again = 'set', leased = 'zset', renewed = 'zset', completed = 'zset', dead = 'zset',
  cancelled = 'zset', wake = 'list' }
local found = {}

local function check(name, wanted)
  local kind = call('TYPE', base .. name).ok
  if kind ~= wanted and kind ~= 'none' then
    set_aside(name)
    found[#found + 1] = name
  end
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
return found
