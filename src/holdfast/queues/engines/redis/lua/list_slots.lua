-- Slots that jobs hold or wait for, in the order of their names. ARGV: how many to return, how many of the jobs that
-- wait for each, how many names to check, the name after which to continue; then the names, if only these are wanted.
-- Returns the holders (slot, id, queue, since, fence), the number of jobs that wait (slot, number), the first of these
-- (slot, id, queue, since), and the last name checked, if there may be more.
local limit, shown, checked = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local names, last = {}, false
if #ARGV == 4 then
  names = call('ZRANGEBYLEX', base .. 'used', '(' .. ARGV[4], '+', 'LIMIT', 0, checked)
  last = #names == checked and names[checked]
end
for place = 5, #ARGV do
  names[#names + 1] = ARGV[place]
end

local function by_time(first, second)
  return first.since < second.since or (first.since == second.since and first.place < second.place)
end

local function holders_of(name)
  local places = rows.places({ name })
  for _, one in ipairs(places) do
    one.place = time_of(fields(base .. 'job:' .. one.number, 'number')[1])
  end
  table.sort(places, by_time)
  return places
end

-- How many jobs wait for the slot, and the first of these, with their queues.
local function waiters_of(name)
  local number, first = 0, {}
  for _, crowd in ipairs(rows.queues({ name })) do
    local waiting = 'waiting:' .. name .. ':' .. crowd[2]
    for _, member in ipairs(found_in('ZRANGE', waiting, 0, shown - 1)) do
      first[#first + 1] = { member, crowd[2] }
    end
    number = number + call('ZCARD', base .. waiting)
  end
  table.sort(first, function(one, other) return one[1] < other[1] end)
  return number, first
end

local holders, numbers, waiters, found = {}, {}, {}, 0
for _, name in ipairs(names) do
  local places = holders_of(name)
  local number, first = waiters_of(name)
  if #places > 0 or number > 0 then
    found = found + 1
  end
  for _, one in ipairs(places) do
    holders[#holders + 1] = { name, one.number, one.queue, one.since, one.owner_token and one.fence or false }
  end
  if number > 0 then
    numbers[#numbers + 1] = { name, number }
  end
  for place = 1, math.min(shown, #first) do
    local id = string.sub(first[place][1], 18)
    local _, _, since = blocked_on(state_field(id))
    waiters[#waiters + 1] = { name, id, first[place][2], since or 0 }
  end
  if found == limit then
    last = false
    break
  end
end
return { holders, numbers, waiters, last }
