-- Leases, in groups that were stamped alike: when, for how long, what is left of it, the ids, the messages, and four
-- numbers for each: deliveries, attempts, crashes, whether its expiry is ignored; no numbers for first deliveries.

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

-- What this claim holds already: its answer was lost, and it is repeated.
local function held_by(token, claim)
  local groups = {}
  local at, length = tonumber(claim[1]), tonumber(claim[2])
  for _, id in ipairs(lines(claim[3])) do
    local record = call('HMGET', base .. 'job:' .. id, 'state', 'attempts', 'crashes', 'ignore_expiry')
    local lease_until = held_until(token, record[1])
    if lease_until then
      local _, deliveries = read_state(record[1])
      groups[#groups + 1] = {
        at, length, math.min(lease_until - now, length), { id }, messages({ id }),
        { deliveries, tonumber(record[2] or 0), tonumber(record[3] or 0), tonumber(record[4] or 0) },
      }
    end
  end
  return groups
end

local function stamp(queue, limit, token, length)
  local ids, numbers = {}, {}
  local again, failed = base .. 'again:' .. queue, base .. 'failed:' .. queue
  local lease_until = now + length
  local first = held(1, lease_until, token)
  local is_full = false
  local has_old = call('EXISTS', again) == 1
  for priority = 9, 0, -1 do
    local ready = base .. 'ready:' .. queue .. ':' .. priority
    local best = call('ZRANGEBYSCORE', ready, '-inf', now, 'LIMIT', 0, limit - #ids)
    -- Of a job that was never delivered nothing has to be read: there are no counts yet.
    local is_old = has_old and each('SMISMEMBER', again, best) or {}
    local taken = 0
    for place, id in ipairs(best) do
      local job, field = base .. 'job:' .. id, first
      local deliveries, attempts, crashes, ignore_expiry = 1, 0, 0, 0
      if is_old[place] == 1 then
        local record = call('HMGET', job, 'state', 'attempts', 'crashes', 'ignore_expiry')
        attempts, crashes = tonumber(record[2] or 0), tonumber(record[3] or 0)
        ignore_expiry = tonumber(record[4] or 0)
        -- A suspect runs alone: it waits for the next claim, or is all there is in this one.
        is_full = crashes > 0
        if is_full and #ids > 0 then
          break
        end
        local _, before = read_state(record[1])
        deliveries = before + 1
        field = held(deliveries, lease_until, token)
        call('ZREM', failed, id)
        call('SREM', again, id)
      end
      call('HSET', job, 'state', field)
      taken = taken + 1
      ids[#ids + 1] = id
      if has_old then
        local last = #numbers
        numbers[last + 1], numbers[last + 2] = deliveries, attempts
        numbers[last + 3], numbers[last + 4] = crashes, ignore_expiry
      end
      if is_full then
        break
      end
    end
    -- These are the first ones of the index, so they leave it by their rank, which is quicker than by their names.
    if taken > 0 then
      call('ZREMRANGEBYRANK', ready, 0, taken - 1)
    end
    is_full = is_full or #ids == limit
    if is_full then
      break
    end
  end
  if is_full then
    wake(queue)
  else
    call('DEL', base .. 'wake:' .. queue)
  end
  if #ids == 0 then
    return {}
  end
  call('HSET', base .. 'claim:' .. token .. ':' .. queue, 'at', at_once, 'length', length, 'held', #ids,
    'ids', table.concat(ids, '\n'))
  call('ZADD', base .. 'leased:' .. queue, lease_until, token)
  call('ZADD', base .. 'lengths', length, length)
  return { { now, length, length, ids, messages(ids), numbers } }
end

local function claim(queue, limit, token, length)
  local known = call('HMGET', base .. 'claim:' .. token .. ':' .. queue, 'at', 'length', 'ids')
  if known[1] then
    -- If all of these leases have ended, they are the reaper's, and the next claim has a token of its own.
    return held_by(token, known)
  elseif limit <= 0 or call('HEXISTS', base .. 'pauses', queue) == 1 then
    return {}
  end
  return stamp(queue, limit, token, length)
end
