-- Take back what was not settled in time. ARGV: limit of crashes, what the record of such a run tells, its error in
-- one line, how many jobs at most, and the queues, if not all. Answers how many it were.
local crash_limit, told, line, limit = tonumber(ARGV[1]), ARGV[2], ARGV[3], tonumber(ARGV[4])
local queues = #ARGV > 4 and { ARGV[5] } or call('SMEMBERS', base .. 'queues')

local function of_claim(token, queue, name)
  return call('HGET', base .. 'claim:' .. token .. ':' .. queue, name)
end

-- What this claim holds, renewed or not: id, state, as the record has it, and end of the lease.
local function held_jobs(token, queue)
  local found = {}
  for _, id in ipairs(lines(of_claim(token, queue, 'ids'))) do
    local field = call('HGET', base .. 'job:' .. id, 'state')
    if state_of(field) == PROCESSING then
      local _, _, lease_until, owner = read_state(field)
      if owner == token then
        found[#found + 1] = { id, field, lease_until }
      end
    end
  end
  return found
end

-- The wall clock was set back: such a lease would outlive its worker by as much. No lease is longer ahead than twice
-- the shortest length there ever was, unless it is worth a closer look.
local function clamp(queue, shortest)
  local leased, renewed = base .. 'leased:' .. queue, base .. 'renewed:' .. queue
  local latest = '(' .. digits(now + 2 * shortest)
  local ahead = call('ZRANGEBYSCORE', leased, latest, '+inf', 'WITHSCORES')
  for place = 1, #ahead, 2 do
    local token, lease_until = ahead[place], tonumber(ahead[place + 1])
    local length = tonumber(of_claim(token, queue, 'length'))
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
    local field = call('HGET', base .. 'job:' .. id, 'state')
    local _, _, lease_until, token = read_state(field)
    local length = tonumber(of_claim(token, queue, 'length'))
    if lease_until > now + 2 * length then
      renew(id, field, queue, now + length)
    end
  end
end

local function reap(id, field, queue)
  local job = base .. 'job:' .. id
  local record = call('HMGET', job, 'priority', 'crashes', 'cancel_request')
  local _, deliveries, _, token = read_state(field)
  local claimed_at = tonumber(of_claim(token, queue, 'at'))
  local crashes = (record[2] or 0) + 1
  -- Neither a claim nor a verdict: nobody's settlement is a repetition of this one.
  local ended = string.rep('\0', 16) .. '-crashed ' .. digits(claimed_at) .. ' ' .. digits(math.max(claimed_at, now))
  let_go(token, queue, { id })
  call('HSET', base .. 'told:' .. id, deliveries, told)
  local changes = { 'crashes', crashes, 'last_error', line, 'end:' .. deliveries, ended }
  give_back(id, queue, record[1], WAITING, deliveries, now, changes, record[3], crashes >= crash_limit)
end

-- Take back what of this claim has ended; how many of at most so many.
local function reap_claim(token, queue, most)
  local reaped, is_held = 0, false
  for _, job in ipairs(held_jobs(token, queue)) do
    if job[3] > now then
      is_held = true
    elseif reaped == most then
      return reaped
    else
      reap(job[1], job[2], queue)
      reaped = reaped + 1
    end
  end
  -- What is still held was renewed, and is in an index of its own.
  if is_held then
    call('ZADD', base .. 'leased:' .. queue, now + of_claim(token, queue, 'length'), token)
  end
  return reaped
end

local reaped = 0
local shortest = call('ZRANGE', base .. 'lengths', 0, 0)[1]
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
    reap(id, call('HGET', base .. 'job:' .. id, 'state'), queue)
    reaped = reaped + 1
  end
end
return reaped
