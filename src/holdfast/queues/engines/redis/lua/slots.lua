-- Slots: the decisions of `contract/slots.py`, repeated on the keys of this server. Functions have the same names and
-- decide in the same order as there: `rows` are the rows of slots, `locked` is `LockedSlots`. Scripts run one at a
-- time, so no slot has to be locked.
--
-- No function fails because of a damaged key. An index of the wrong type is set aside where it is found. Values in the
-- others are compared with the record of the job, which is authoritative.
local PROMOTION_US, PROMOTE_AT_ONCE, MAX_PROMOTIONS = 5000000, 16, 1000
-- How many waiting jobs one command reads, and how many are read to find one whose slot is large enough.
local READ_AT_ONCE, MAX_READ = 100, 1000

local rows, locked = {}, {}
-- By name: the last fence number of each slot, the places that are taken (by job), jobs whose place is no longer valid,
-- and the size that was set.
local fences, taken, gone, sizes = {}, {}, {}, {}

-- A place is stored as its fence number, when it was taken, until when new jobs cannot take it (empty if it is held),
-- and the rest: the claim (16 bytes) if it is held, and the queue.
local function read_place(slot, number, stored)
  local fence, since, expires, rest = string.match(stored, '^(%d+) (%d+) (%d*) (.*)$')
  if not fence then
    return nil
  end
  local place = { slot = slot, number = number, fence = time_of(fence), since = time_of(since), queue = rest }
  if expires == '' then
    place.owner_token, place.queue = string.sub(rest, 1, 16), string.sub(rest, 17)
  else
    place.until_us = time_of(expires)
  end
  return place
end

-- Whether a place is taken. The job of a promotion is due, or was claimed and is about to enter.
local function is_taken(place)
  if place.owner_token then
    return held_until(place.owner_token, state_field(place.number))
  end
  local record = fields(base .. 'job:' .. place.number, 'state', 'queue', 'due_at')
  local state = state_of(record[1])
  if state == PROCESSING then
    local _, _, lease_until = read_state(record[1])
    return record[2] == place.queue and (lease_until or 0) > now
  end
  return record[2] == place.queue and (state == WAITING or state == FAILED) and time_of(record[3]) <= now
end

-- The position of a blocked job among those of its slot and queue: by priority, due time and id.
local function member_of(id, priority, due)
  return 9 - rank(priority) .. string.format('%016.0f', time_of(due)) .. id
end

local function tidy_slot(name)
  if call('EXISTS', base .. 'places:' .. name, base .. 'queues:' .. name) == 0 then
    write('ZREM', 'used', { name })
  end
end

-- Index a job that is blocked on this slot. Repeating this changes nothing.
local function start_waiting(slot, queue, id, member, since)
  write('ZADD', 'waiting:' .. slot .. ':' .. queue, { 0, member })
  write('SADD', 'queues:' .. slot, { queue })
  write('ZADD', 'waited', { 0, slot })
  write('ZADD', 'used', { 0, slot })
  write('ZADD', 'blocked:' .. queue, { digits(since), id })
end

local function stop_waiting(slot, queue, member)
  local waiting = 'waiting:' .. slot .. ':' .. queue
  write('ZREM', waiting, { member })
  if call('EXISTS', base .. waiting) == 0 then
    write('SREM', 'queues:' .. slot, { queue })
    if call('EXISTS', base .. 'queues:' .. slot) == 0 then
      write('ZREM', 'waited', { slot })
      tidy_slot(slot)
    end
  end
end

-- Remove a blocked job from its indexes. The caller changes its state.
local function unblock(id, field, queue, priority, due)
  local slot = blocked_on(field)
  if slot then
    stop_waiting(slot, queue, member_of(id, priority, due))
  end
  write('ZREM', 'blocked:' .. queue, { id })
end

-- The size that was set for a slot, if any, and until when the slot admits no job.
function rows.size(name)
  if not sizes[name] then
    local size, closed_until = string.match(text(try('HGET', base .. 'sizes', name)) or '', '^(%d+) (%d+)$')
    sizes[name] = { tonumber(size), time_of(closed_until) }
  end
  return unpack(sizes[name], 1, 2)
end

-- Change the sizes of slots: name, size (false for the sizes in the messages), and for how long the slot is closed.
function rows.resize(resizes)
  for _, one in ipairs(resizes) do
    local name, size, closed_for = unpack(one)
    if size then
      write('HSET', 'sizes', { name, digits(size) .. ' ' .. digits(closed_for > 0 and now + closed_for or 0) })
    else
      write('HDEL', 'sizes', { name })
    end
  end
end

-- Clear the closing time of the slot if its cooldown has expired.
function rows.open(name)
  local size, closed_until = rows.size(name)
  if size and closed_until > 0 and closed_until <= now then
    write('HSET', 'sizes', { name, digits(size) .. ' 0' })
    sizes[name] = { size, 0 }
  end
end

function rows.places(names)
  local found, left = {}, {}
  for _, name in ipairs(names) do
    local stored = found_in('HGETALL', 'places:' .. name)
    for at = 1, #stored, 2 do
      local place = read_place(name, stored[at], stored[at + 1])
      if place and is_taken(place) then
        found[#found + 1] = place
      else
        left[#left + 1] = { name, stored[at] }
      end
    end
  end
  return found, left
end

function rows.take(places)
  for _, one in ipairs(places) do
    local stored = digits(one.fence) .. ' ' .. at_once .. '  ' .. one.owner_token .. one.queue
    write('HSET', 'places:' .. one.slot, { one.number, stored })
    write('ZADD', 'slots', { digits(one.fence), one.slot })
    write('ZADD', 'used', { 0, one.slot })
  end
end

function rows.free(places)
  for _, one in ipairs(places) do
    write('HDEL', 'places:' .. one[1], { one[2] })
    tidy_slot(one[1])
  end
end

-- Turn the place of each slot and job, if there is one, into a promotion.
function rows.reserve(places, until_us)
  for _, one in ipairs(places) do
    local name, id = unpack(one)
    local stored = text(try('HGET', base .. 'places:' .. name, id))
    local place = stored and read_place(name, id, stored)
    if place then
      write('HSET', 'places:' .. name, { id, '0 ' .. at_once .. ' ' .. digits(until_us) .. ' ' .. place.queue })
    end
  end
end

-- A job may appear twice in a batch, but is blocked once. If cancellation was requested, it is cancelled instead.
function rows.block(waiters)
  for _, one in ipairs(waiters) do
    local id, queue, token = one.number, one.queue, one.owner_token
    local record = fields(base .. 'job:' .. id, 'state', 'priority', 'due_at', 'cancel_request')
    local _, deliveries = read_state(record[1] or '')
    if held_until(token, record[1]) and record[4] then
      end_delivery(token, id, queue, record[2], WAITING, deliveries, now, { 'queue', queue }, record[4])
    elseif held_until(token, record[1]) then
      local field = BLOCKED .. deliveries .. ':' .. at_once .. ' ' .. digits(one.size) .. ' ' .. one.slot
      start_waiting(one.slot, queue, id, member_of(id, record[2], record[3]), now)
      write('HSET', 'job:' .. id, { 'state', field, 'queue', queue })
      let_go(token, queue, { id })
    end
  end
end

function rows.queues(names)
  local crowds = {}
  for _, name in ipairs(names) do
    local queues = found_in('SMEMBERS', 'queues:' .. name)
    table.sort(queues)
    for _, queue in ipairs(queues) do
      crowds[#crowds + 1] = { name, queue }
    end
  end
  return crowds
end

-- The first jobs of a crowd whose size is greater than `ahead`. One that is no longer blocked on this slot has no size:
-- it is chosen, and then found not to wait.
local function best_of(crowd, limit)
  local name, queue = unpack(crowd)
  local found, from, number = {}, 0, limit
  repeat
    local members = found_in('ZRANGE', 'waiting:' .. name .. ':' .. queue, from, from + number - 1)
    for _, member in ipairs(members) do
      local id = string.sub(member, 18)
      local slot, size = blocked_on(state_field(id))
      size = slot == name and size or math.huge
      if size > crowd.ahead and #found < limit then
        found[#found + 1] = { crowd = crowd, slot = name, number = id, queue = queue, member = member, size = size }
      end
    end
    local is_last = #members < number
    from, number = from + number, READ_AT_ONCE
  until is_last or #found == limit or from >= MAX_READ
  return found
end

function rows.best(crowds, limit)
  local found = {}
  for _, crowd in ipairs(crowds) do
    for _, waiter in ipairs(best_of(crowd, limit)) do
      found[#found + 1] = waiter
    end
  end
  return found
end

-- One without a readable record is dead-lettered.
function rows.promote(waiters, until_us)
  local promoted = {}
  for _, one in ipairs(waiters) do
    local id, queue = one.number, one.queue
    local record = fields(base .. 'job:' .. id, 'state', 'priority', 'due_at')
    stop_waiting(one.slot, queue, one.member)
    if not record[1] then
      write('ZREM', 'blocked:' .. queue, { id })
      dead_letter(id, queue)
    elseif state_of(record[1]) == BLOCKED and (blocked_on(record[1]) or one.slot) == one.slot then
      local _, deliveries = read_state(record[1])
      write('ZREM', 'blocked:' .. queue, { id })
      move(id, queue, record[2], WAITING, count(deliveries), digits(time_of(record[3])), { 'queue', queue })
      write('HSET', 'places:' .. one.slot, { id, '0 ' .. at_once .. ' ' .. digits(until_us) .. ' ' .. queue })
      write('ZADD', 'used', { 0, one.slot })
      promoted[id] = true
    end
  end
  return promoted
end

local function sorted(names)
  local found = {}
  for name in pairs(names) do
    found[#found + 1] = name
  end
  table.sort(found)
  return found
end

-- The jobs of settlements that were just applied leave their slots: slot and job of each. Those that were returned
-- before they started are in `reserved`, and keep their turn.
function locked.leave(freed, reserved)
  local names, numbers = {}, {}
  for _, left in ipairs({ freed, reserved }) do
    for _, one in ipairs(left) do
      names[one[1]], numbers[one[1]] = true, (numbers[one[1]] or 0) + 1
    end
  end
  rows.free(freed)
  rows.reserve(reserved, now + PROMOTION_US)
  locked._read(names)
  return locked._promote(numbers, {})
end

-- Promote as many waiting jobs as there are free places in these slots, which were read. Slots that open because their
-- time is over are not examined again.
function locked.promote(names)
  local numbers = {}
  for _, name in ipairs(names) do
    numbers[name] = MAX_PROMOTIONS
    rows.open(name)
  end
  return locked._promote(numbers, {})
end

function locked.resize(resizes)
  local names = {}
  for _, one in ipairs(resizes) do
    names[one[1]] = true
  end
  rows.resize(resizes)
  locked._read(names)
  return locked.promote(sorted(names))
end

-- The current size of a slot: 0 while it is closed, else the one that was set, or the one in the message.
function locked._size(name, size)
  local stored, closed_until = rows.size(name)
  return closed_until > now and 0 or stored or size
end

function locked._read(names)
  for name in pairs(names) do
    taken[name], gone[name] = {}, {}
  end
  local places, left = rows.places(sorted(names))
  for _, place in ipairs(places) do
    taken[place.slot][place.number] = place
  end
  for _, one in ipairs(left) do
    table.insert(gone[one[1]], one[2])
  end
end

-- The number of places that are taken before those of the jobs of this queue.
function locked._ahead(name, queue)
  local number = 0
  for _, one in pairs(taken[name]) do
    if one.owner_token or one.queue == queue then
      number = number + 1
    end
  end
  return number
end

function locked._has_place(waiter)
  return locked._ahead(waiter.slot, waiter.queue) < locked._size(waiter.slot, waiter.size)
end

-- Promote the best jobs of each queue, because a paused queue must not hold up the others. `freed` has the number of
-- places that became free in each slot: once as many jobs of a queue are promoted, there are no others to look for. If
-- the work of a slot is finished, all jobs that wait for it are promoted, since none of them has to run.
function locked._promote(freed, finished)
  local chosen_names = sorted(freed)
  local crowds = rows.queues(chosen_names)
  local until_us, promoted, tried = now + PROMOTION_US, 0, 0
  for _, crowd in ipairs(crowds) do
    crowd.missing = freed[crowd[1]]
  end
  while #crowds > 0 and tried < MAX_PROMOTIONS do
    for _, crowd in ipairs(crowds) do
      local ahead, size = locked._ahead(crowd[1], crowd[2]), rows.size(crowd[1])
      -- If the sizes in the messages do not matter, the first jobs are the best.
      crowd.ahead = not finished[crowd[1]] and (size or 0) <= ahead and ahead or 0
      crowd.found, crowd.chosen, crowd.stale = 0, 0, 0
    end
    local chosen = {}
    for _, waiter in ipairs(rows.best(crowds, PROMOTE_AT_ONCE)) do
      waiter.crowd.found = waiter.crowd.found + 1
      if locked._reserve(waiter, finished[waiter.slot]) then
        waiter.crowd.chosen = waiter.crowd.chosen + 1
        chosen[#chosen + 1] = waiter
      end
    end
    local really = rows.promote(chosen, until_us)
    for _, waiter in ipairs(chosen) do
      if really[waiter.number] then
        promoted = promoted + 1
      else
        taken[waiter.slot][waiter.number] = waiter.before
        waiter.crowd.stale = waiter.crowd.stale + 1
      end
    end
    crowds, tried = locked._still_missing(crowds), tried + #chosen
  end
  -- Until waiting jobs are promoted, a place that is no longer valid tells `repair` that a place is free.
  for _, name in ipairs(#crowds == 0 and chosen_names or {}) do
    for _, id in ipairs(gone[name]) do
      if not taken[name][id] then
        rows.free({ { name, id } })
      end
    end
  end
  return promoted
end

-- The crowds in which more jobs may have a place: where all jobs found were chosen, or where fewer were promoted than
-- places became free, because rows were stale or because of different sizes.
function locked._still_missing(crowds)
  local rest = {}
  for _, one in ipairs(crowds) do
    one.missing = one.missing - one.chosen + one.stale
    local has_others = one.stale > 0 or one.chosen > 0 and one.found == PROMOTE_AT_ONCE
    if one.chosen == PROMOTE_AT_ONCE or one.missing > 0 and has_others then
      rest[#rest + 1] = one
    end
  end
  return rest
end

-- Reserve a place for a waiting job, if there is one.
function locked._reserve(waiter, is_finished)
  local places = taken[waiter.slot]
  if not locked._has_place(waiter) and not is_finished then
    return false
  end
  waiter.before = places[waiter.number]
  places[waiter.number] = { slot = waiter.slot, number = waiter.number, queue = waiter.queue, fence = 0 }
  return true
end
