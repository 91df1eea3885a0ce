-- Reap jobs whose leases have expired. ARGV: crash limit, the details of such an attempt, its error in one line, how
-- many jobs at most, and the queue, if not all. Returns how many jobs were reaped, and the ids of dead-lettered ones.
local crash_limit, told, line, limit = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local queues = #ARGV > 4 and { ARGV[5] } or call('SMEMBERS', base .. 'queues')

local shortest = tonumber(call('ZRANGE', base .. 'lengths', 0, 0)[1])

-- The length of the leases of a claim; the shortest length that leases have had if the stored one is not valid.
local function claimed_for(token, queue)
  return length_of(of_claim(token, queue, 'length')) or shortest or 60000000
end

-- Shorten leases that expire too far in the future. If the clock was set back, they would outlive their worker by as
-- much. Only leases that expire later than twice the shortest length from now are checked.
local function clamp(queue, shortest)
  local leased, renewed = base .. 'leased:' .. queue, base .. 'renewed:' .. queue
  local latest = '(' .. digits(now + 2 * shortest)
  local ahead = call('ZRANGEBYSCORE', leased, latest, '+inf', 'WITHSCORES')
  for place = 1, #ahead, 2 do
    local token, lease_until = ahead[place], tonumber(ahead[place + 1])
    local length = claimed_for(token, queue)
    if lease_until > now + 2 * length then
      for _, job in ipairs(held_jobs(token, queue)) do
        if job[3] > now + 2 * length then
          renew(job[1], job[2], queue, now + length)
        end
      end
      call('ZADD', leased, now + length, token)
    end
  end
  for _, id in ipairs(call('ZRANGEBYSCORE', renewed, latest, '+inf')) do
    local field = state_field(id)
    local _, _, lease_until, token = read_state(field or '')
    local length = claimed_for(token, queue)
    if state_of(field) ~= PROCESSING then
      call('ZREM', renewed, id)
    elseif (lease_until or 0) > now + 2 * length then
      renew(id, field, queue, now + length)
    end
  end
end

local function reap(id, field, queue)
  local job = base .. 'job:' .. id
  local record = fields(job, 'priority', 'crashes', 'cancel_request', 'queue')
  local _, deliveries, _, token = read_state(field)
  local claimed_at = tonumber(of_claim(token, queue, 'at') or nil) or now
  local crashes = count(record[2]) + 1
  deliveries = count(deliveries)
  -- Without claim and verdict, so that no settlement is taken for a repetition of this one.
  local ended = string.rep('\0', 16) .. '-crashed ' .. digits(claimed_at) .. ' ' .. digits(math.max(claimed_at, now))
  write('HSET', 'told:' .. id, { deliveries, told })
  local changes = { 'crashes', crashes, 'last_error', line, 'end:' .. deliveries, ended }
  if record[4] ~= queue then
    changes[7], changes[8] = 'queue', queue
  end
  end_delivery(token, id, queue, record[1], WAITING, deliveries, now, changes, record[3], crashes >= crash_limit)
end

-- Reap the expired leases of this claim, up to a limit. Returns how many were reaped.
local function reap_claim(token, queue, most)
  local reaped, is_held = 0, false
  local jobs = held_jobs(token, queue)
  if #jobs == 0 then
    call('UNLINK', base .. 'claim:' .. token .. ':' .. queue)
    call('ZREM', base .. 'leased:' .. queue, token)
  end
  for _, job in ipairs(jobs) do
    if job[3] > now then
      is_held = true
    elseif reaped == most then
      return reaped
    else
      reap(job[1], job[2], queue)
      reaped = reaped + 1
    end
  end
  -- The jobs still held were renewed: they are in the index `renewed`.
  if is_held then
    call('ZADD', base .. 'leased:' .. queue, now + claimed_for(token, queue), token)
  end
  return reaped
end

-- Reap up to the limit. Returns how many were reaped.
local function reap_all()
  local reaped = 0
  for _, queue in ipairs(queues) do
    if shortest then
      clamp(queue, shortest)
    end
    for _, token in ipairs(call('ZRANGEBYSCORE', base .. 'leased:' .. queue, '-inf', now)) do
      reaped = reaped + reap_claim(token, queue, limit - reaped)
      if reaped == limit then
        return reaped
      end
    end
    for _, id in ipairs(call('ZRANGEBYSCORE', base .. 'renewed:' .. queue, '-inf', now, 'LIMIT', 0, limit - reaped)) do
      local field = state_field(id)
      if state_of(field) == PROCESSING then
        reap(id, field, queue)
        reaped = reaped + 1
      end
      call('ZREM', base .. 'renewed:' .. queue, id)
    end
  end
  return reaped
end

local reaped = reap_all()
resolve_noted()
return { reaped, dead_lettered }
