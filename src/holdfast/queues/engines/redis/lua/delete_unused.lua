-- Delete what nothing uses. ARGV: what (`uniques`, `places` or `slots`), where to continue, how many to check, and how
-- long an unused slot is retained. Returns how many were deleted, and where to continue, if there may be more.
local what, from, limit, retained = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local deleted = 0

-- Keys whose job is final or deleted, and whose period has expired.
local function delete_uniques()
  local cursor, stored = unpack(call('HSCAN', base .. 'uniques', from == '' and '0' or from, 'COUNT', limit))
  for at = 1, #stored, 2 do
    local expires, id = string.match(stored[at + 1], '^(%d+) (.*)$')
    local state = id and state_of(state_field(id))
    if time_of(expires) <= now and (not state or state == FORGOTTEN or FINISHED[state]) then
      deleted = deleted + call('HDEL', base .. 'uniques', stored[at])
    end
  end
  return cursor ~= '0' and cursor
end

-- Places of jobs that no longer hold them. If jobs wait for the slot, they are promoted first: see `promote.lua`.
local function delete_places()
  local names = call('ZRANGEBYLEX', base .. 'used', '(' .. from, '+', 'LIMIT', 0, limit)
  for _, name in ipairs(names) do
    if call('EXISTS', base .. 'queues:' .. name) == 0 then
      local _, left = rows.places({ name })
      rows.free(left)
      tidy_slot(name)
      deleted = deleted + #left
    end
  end
  return #names == limit and names[limit]
end

-- Slots that have not been used for a while. Those in use are skipped, and the next page begins after them.
local function delete_slots()
  local skipped = tonumber(from) or 0
  local idle = call('ZRANGEBYSCORE', base .. 'slots', '-inf', now - retained, 'LIMIT', skipped, limit)
  for _, name in ipairs(idle) do
    if call('EXISTS', base .. 'places:' .. name, base .. 'queues:' .. name) == 0 then
      deleted = deleted + call('ZREM', base .. 'slots', name)
    else
      skipped = skipped + 1
    end
  end
  return #idle == limit and digits(skipped)
end

local next_from = ({ uniques = delete_uniques, places = delete_places, slots = delete_slots })[what]()
return { deleted, next_from }
