-- A claim returns leases, in groups that were stamped together: when, for how long, how much time is left, the ids,
-- the messages, and four numbers for each: deliveries, attempts, crashes, and whether its expiry is ignored. First
-- deliveries have no numbers.

local function messages(ids)
  local wires = {}
  for first = 1, #ids, 1000 do
    local keys = {}
    for place = first, math.min(first + 999, #ids) do
      keys[#keys + 1] = base .. 'wire:' .. ids[place]
    end
    for _, wire in ipairs(call('MGET', unpack(keys))) do
      wires[#wires + 1] = wire
    end
  end
  return wires
end

-- The leases that this claim holds already: it is repeated because its answer was lost.
local function held_by(token, claim)
  local groups = {}
  local at, length = tonumber(claim[1]) or now, length_of(claim[2]) or 0
  for _, id in ipairs(lines(claim[3])) do
    local record = fields(base .. 'job:' .. id, 'state', 'attempts', 'crashes', 'ignore_expiry')
    local lease_until = held_until(token, record[1])
    if lease_until then
      local _, deliveries = read_state(record[1])
      groups[#groups + 1] = {
        at, length, math.min(lease_until - now, length), { id }, messages({ id }),
        { count(deliveries), count(record[2]), count(record[3]), count(record[4]) },
      }
    end
  end
  return groups
end

-- Choose the best jobs that are due. Returns their ids, the records of those that were delivered before by their
-- places, how many were chosen from each priority, whether more may be due, and whether any was delivered before. A
-- suspect runs alone: it is the only job of this claim, or waits for the next one. Nothing is written here, so that a
-- script that fails because of a damaged index has changed nothing.
local function choose(queue, limit)
  local ids, old, taken, is_full = {}, {}, {}, false
  local again, rebuild = base .. 'again:' .. queue, base .. 'rebuild'
  -- EXISTS counts a key as often as it is named, so 2 and 3 mean that there is a note in `rebuild`: `again` may be
  -- incomplete, and every record is read instead.
  local found = call('EXISTS', again, rebuild, rebuild)
  local has_old, is_incomplete = found > 0, found > 1
  for priority = 9, 0, -1 do
    local best = call('ZRANGEBYSCORE', base .. 'ready:' .. queue .. ':' .. priority, '-inf', now, 'LIMIT', 0,
      limit - #ids)
    -- The record of a job that was never delivered is not read: it has no counts.
    local is_old = has_old and not is_incomplete and each('SMISMEMBER', again, best) or {}
    taken[priority] = 0
    for place, id in ipairs(best) do
      if is_incomplete or is_old[place] == 1 then
        local record = fields(base .. 'job:' .. id, 'state', 'attempts', 'crashes', 'ignore_expiry')
        is_full = count(record[3]) > 0
        if is_full and #ids > 0 then
          break
        end
        old[#ids + 1] = record
      end
      taken[priority] = taken[priority] + 1
      ids[#ids + 1] = id
      if is_full then
        break
      end
    end
    is_full = is_full or #ids == limit
    if is_full then
      break
    end
  end
  return ids, old, taken, is_full, has_old
end

local FIRST = { 1, 0, 0, 0 }

-- Lease the best jobs that are due. One without a readable record is dead-lettered instead.
local function stamp(queue, limit, token, length)
  local ids, old, taken, is_full, has_old = choose(queue, limit)
  if is_full then
    wake(queue)
  else
    call('DEL', base .. 'wake:' .. queue)
  end
  if #ids == 0 then
    return {}
  end
  local lease_until = now + length
  call('ZADD', base .. 'leased:' .. queue, lease_until, token)
  call('ZADD', base .. 'lengths', length, length)
  call('HSET', base .. 'claim:' .. token .. ':' .. queue, 'at', at_once, 'length', length, 'held', #ids,
    'ids', table.concat(ids, '\n'))
  -- These are the first members of their index. Removing them by rank is faster than by name.
  for priority, number in pairs(taken) do
    if number > 0 then
      call('ZREMRANGEBYRANK', base .. 'ready:' .. queue .. ':' .. priority, 0, number - 1)
    end
  end
  local first, stamped, damaged, numbers = held(1, lease_until, token), {}, {}, {}
  for place, id in ipairs(ids) do
    local record, field = old[place] or FIRST, first
    if old[place] then
      record[1] = count(record[1] and select(2, read_state(record[1]))) + 1
      field = held(record[1], lease_until, token)
      try('ZREM', base .. 'failed:' .. queue, id)
      try('SREM', base .. 'again:' .. queue, id)
    end
    -- 0 means that the field existed, and so did the record.
    if try('HSET', base .. 'job:' .. id, 'state', field) ~= 0 then
      damaged[#damaged + 1] = id
    else
      stamped[#stamped + 1] = id
      if has_old then
        local last = #numbers
        numbers[last + 1], numbers[last + 2] = record[1], count(record[2])
        numbers[last + 3], numbers[last + 4] = count(record[3]), count(record[4])
      end
    end
  end
  for _, id in ipairs(damaged) do
    dead_letter(id, queue)
    let_go(token, queue, { id })
  end
  if #stamped == 0 then
    return stamp(queue, limit, token, length)
  end
  return { { now, length, length, stamped, messages(stamped), numbers } }
end

local function claim(queue, limit, token, length)
  local known = call('HMGET', base .. 'claim:' .. token .. ':' .. queue, 'at', 'length', 'ids')
  if known[1] then
    -- If all of its leases have expired, the reaper requeues the jobs. The next claim has another token.
    return held_by(token, known)
  elseif limit <= 0 or call('HEXISTS', base .. 'pauses', queue) == 1 then
    return {}
  end
  return stamp(queue, limit, token, length)
end
